//! A request that has not been admitted yet.

use std::time::Instant;

use zeroize::Zeroizing;

use super::{
    answer::Answer,
    generation::Generation,
    request::{BatchError, Chooser, Finish, Request, SessionKey},
};

/// A request and its sink, until a slot and memory are free.
pub(super) struct QueuedRequest {
    /// Its number, in the order of arrival.
    pub number: u64,
    pub session: Option<SessionKey>,
    pub prompt: Zeroizing<Vec<u32>>,
    pub scored: usize,
    pub max_tokens: usize,
    pub chooser: Box<dyn Chooser>,
    pub answer: Answer,
}

impl QueuedRequest {
    pub(super) fn new(number: u64, request: Request) -> Self {
        let Request { session, prompt, scored, max_tokens, chooser, sink } = request;
        Self { number, session, prompt, scored, max_tokens, chooser, answer: Answer::new(sink) }
    }

    /// How the request must end now, if it must.
    pub(super) fn look(&mut self) -> Option<Finish> {
        match self.answer.room() {
            Err(error) => Some(Finish::Failed(error)),
            Ok(None) => Some(Finish::Cancelled),
            Ok(Some(_)) => None,
        }
    }

    /// Admits the request, with `cached` tokens of its prompt computed already. `None` if its sink failed,
    /// which has ended it.
    pub(super) fn begin(self, cached: usize, now: Instant) -> Option<Generation> {
        let Self { number, mut prompt, scored, max_tokens, chooser, mut answer, .. } = self;
        let limit = prompt.len() + max_tokens;
        let mut tokens = Zeroizing::new(Vec::with_capacity(limit));
        tokens.append(&mut prompt);
        let prompt = tokens.len();
        if let Err(error) = answer.started(prompt, cached, now) {
            answer.finish(Finish::Failed(error));
            return None;
        }
        Some(Generation {
            number,
            tokens,
            prompt,
            scored,
            limit,
            chooser,
            answer,
            room: 0,
            paused_since: None,
        })
    }
}

/// Ends an answer that is over. Returns true while it is not over.
pub(super) fn end_if(finish: Option<Finish>, answer: &mut Answer) -> bool {
    let Some(finish) = finish else { return true };
    answer.finish(finish);
    false
}

/// Ends a waiting request with this error.
pub(super) fn fail(mut request: QueuedRequest, error: &BatchError) {
    request.answer.finish(Finish::Failed(error.clone()));
}
