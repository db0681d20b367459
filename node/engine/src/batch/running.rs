//! A request that has been admitted: what it puts into a step, and what it makes of the logits.

use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::{
    answer::{Answer, guarded},
    draft::Drafter,
    request::{BatchError, Cancel, Choice, Chooser, Finish, RequestId, SessionKey},
};
use crate::{Chunk, Sequence, Want};

/// What a request does in a step.
pub(super) enum Work {
    /// Nothing: it waits for its turn or for its reader.
    Rest,
    /// Computes so many tokens of its prompt.
    Prefill(usize),
    /// Computes its last token, and checks those guessed after it.
    Decode(Zeroizing<Vec<u32>>),
}

pub(super) struct Running {
    pub id: RequestId,
    pub session: Option<SessionKey>,
    /// The prompt and the answer so far.
    pub tokens: Zeroizing<Vec<u32>>,
    /// How many of them are the prompt.
    pub prompt: usize,
    /// How many there may be.
    pub limit: usize,
    pub sequence: Sequence,
    /// Blocks that are set aside for it, those that it has among them.
    pub blocks: usize,
    pub chooser: Box<dyn Chooser>,
    pub answer: Answer,
    pub cancel: Cancel,
    pub end_by: Option<Instant>,
    pub draft: Drafter,
    /// Tokens that its sink takes.
    pub room: usize,
    pub paused_since: Option<Instant>,
    /// Steps in which others' prompts came before its own.
    pub passed_over: usize,
    /// Whether its blocks may be kept for the session's next request.
    pub keeps: bool,
}

impl Running {
    /// Blocks that it may still take.
    pub fn outstanding(&self) -> usize {
        self.blocks.saturating_sub(self.sequence.blocks().len())
    }

    pub fn is_prefilling(&self) -> bool {
        self.tokens.len() == self.prompt
    }

    /// Tokens of the prompt still to compute.
    pub fn remaining(&self) -> usize {
        self.prompt.saturating_sub(self.sequence.len())
    }

    /// Asks the sink for room. Says how the request must end now, if it must.
    pub fn look(&mut self, stall: Duration, now: Instant) -> Option<Finish> {
        if self.cancel.is_cancelled() {
            return Some(Finish::Cancelled);
        }
        if self.end_by.is_some_and(|end| end <= now) {
            return Some(Finish::Failed(BatchError::Deadline));
        }
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

    /// Its last token and guesses, at most `most` of them.
    pub fn decode(&mut self, most: usize) -> Work {
        let last = self.tokens.len() - 1;
        // A guess needs room in the answer and in the sink, for itself and for what is chosen after it.
        let most = most.min(self.limit - self.tokens.len() - 1).min(self.room - 1);
        let mut tokens = Zeroizing::new(Vec::with_capacity(1 + most));
        tokens.push(self.tokens[last]);
        tokens.extend_from_slice(self.draft.guess(&self.tokens, most));
        Work::Decode(tokens)
    }

    /// The step's chunk for its work.
    pub fn chunk<'a>(&'a mut self, work: &'a Work) -> Option<Chunk<'a>> {
        let (tokens, want) = match work {
            Work::Rest => return None,
            Work::Prefill(count) => {
                let from = self.sequence.len();
                let want = if from + count == self.prompt { Want::Last } else { Want::Nothing };
                (&self.tokens[from..from + count], want)
            }
            Work::Decode(tokens) => (tokens.as_slice(), Want::All),
        };
        Some(Chunk { sequence: &mut self.sequence, tokens, want })
    }

    /// Chooses tokens by the rows of its work, as far as they were guessed right, and forgets what was not. Says how the
    /// request ended, if it did.
    pub fn take<'l>(
        &mut self,
        work: &Work,
        rows: &mut impl Iterator<Item = &'l [f32]>,
        clock: &dyn Fn() -> Instant,
    ) -> Option<Finish> {
        let guesses = match work {
            Work::Rest => return None,
            Work::Prefill(_) if self.remaining() > 0 => return None,
            Work::Prefill(_) => &[],
            Work::Decode(tokens) => &tokens[1..],
        };
        let known = self.sequence.len() - guesses.len();
        let (mut right, mut finish) = (0, None);
        for (at, row) in rows.take(guesses.len() + 1).enumerate() {
            // The iterator is run to its end: the rows after are another request's.
            if finish.is_some() || right < at {
                continue;
            }
            let before = self.tokens.len();
            finish = self.choose(row, clock);
            if self.tokens.len() > before && guesses.get(at) == self.tokens.last() {
                right += 1;
            }
        }
        self.answer.stats.drafted_tokens += guesses.len();
        self.answer.stats.accepted_tokens += right;
        if finish.is_none() {
            self.draft.learn(guesses.len(), right);
        }
        self.sequence.truncate(known + right);
        finish
    }

    fn choose(&mut self, logits: &[f32], clock: &dyn Fn() -> Instant) -> Option<Finish> {
        if self.cancel.is_cancelled() {
            return Some(Finish::Cancelled);
        }
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
