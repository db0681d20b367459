//! A request and its answer, for every kind of model: its tokens so far, its chooser, and its limits.

use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::{
    answer::{Answer, guarded},
    request::{BatchError, Choice, Chooser, Finish, Request, SessionKey},
};

pub(super) struct Generation {
    /// Its number, in the order of arrival.
    pub number: u64,
    pub session: Option<SessionKey>,
    /// The prompt and the answer so far.
    pub tokens: Zeroizing<Vec<u32>>,
    /// How many of them belong to the prompt.
    pub prompt: usize,
    /// How many of these, at their end, the chooser scores.
    pub scored: usize,
    /// Maximum number of tokens, prompt included.
    pub limit: usize,
    pub chooser: Box<dyn Chooser>,
    pub answer: Answer,
    /// Tokens that the sink accepts now.
    pub room: usize,
    pub paused_since: Option<Instant>,
}

impl Generation {
    pub(super) fn new(number: u64, request: Request) -> Self {
        let Request { session, prompt: tokens, scored, max_tokens, chooser, sink } = request;
        let (prompt, answer) = (tokens.len(), Answer::new(sink));
        let limit = prompt + max_tokens;
        Self { number, session, tokens, prompt, scored, limit, chooser, answer, room: 0, paused_since: None }
    }

    /// Admits the request, with `cached` tokens of its prompt computed already. Returns how it ended, if it did.
    pub(super) fn begin(&mut self, cached: usize, stall: Duration, now: Instant) -> Option<Finish> {
        // Growing later would leave copies of the text in memory.
        let mut tokens = Zeroizing::new(Vec::with_capacity(self.limit));
        tokens.extend_from_slice(&self.tokens);
        self.tokens = tokens;
        self.paused_since = None;
        let started = self.answer.started(self.prompt, cached, now);
        started.err().map(Finish::Failed).or_else(|| self.look(stall, now))
    }

    pub(super) fn is_prefilling(&self) -> bool {
        self.tokens.len() == self.prompt
    }

    /// The first token whose logits are wanted: they predict the first scored token, or else the answer.
    pub(super) fn first_row(&self) -> usize {
        self.prompt - 1 - self.scored
    }

    /// Shows the chooser the scored token after `position`, with its logits. Returns how the request ended, if it
    /// did.
    pub(super) fn score(&mut self, position: usize, logits: &[f32]) -> Option<Finish> {
        let (before, after) = self.tokens.split_at(position + 1);
        let next = *after.first()?;
        guarded(|| self.chooser.score(before, next, logits)).err().map(Finish::Failed)
    }

    /// Asks the sink for room, which it must have again after `stall`. Returns how the request must end now, if it must.
    pub(super) fn look(&mut self, stall: Duration, now: Instant) -> Option<Finish> {
        match self.answer.room() {
            Err(error) => return Some(Finish::Failed(error)),
            Ok(None) => return Some(Finish::Cancelled),
            Ok(Some(room)) => self.room = room,
        }
        if self.room > 0 {
            self.paused_since = None;
            return None;
        }
        let since = *self.paused_since.get_or_insert(now);
        let stalled = now.saturating_duration_since(since) >= stall;
        stalled.then_some(Finish::Failed(BatchError::Stalled))
    }

    /// Lets the chooser choose by these logits. Returns how the request ended, if it did.
    pub(super) fn choose(&mut self, logits: &[f32], clock: &dyn Fn() -> Instant) -> Option<Finish> {
        let (token, is_last) = match guarded(|| self.chooser.choose(&self.tokens, logits)) {
            Ok(Choice::Token(token)) => (token, false),
            Ok(Choice::Last(token)) => (token, true),
            Ok(Choice::End) => return Some(Finish::End),
            Ok(Choice::Nothing) => return Some(Finish::Failed(BatchError::NoChoice)),
            Err(error) => return Some(Finish::Failed(error)),
        };
        if token as usize >= logits.len() {
            return Some(Finish::Failed(BatchError::NoChoice));
        }
        self.tokens.push(token);
        if let Err(error) = self.answer.token(token, logits, clock()) {
            return Some(Finish::Failed(error));
        }
        if is_last {
            return Some(Finish::End);
        }
        (self.tokens.len() == self.limit).then_some(Finish::Length)
    }
}

/// Ends an answer that is over. Returns true while it is not over.
pub(super) fn end_if(finish: Option<Finish>, answer: &mut Answer) -> bool {
    let Some(finish) = finish else { return true };
    answer.finish(finish);
    false
}
