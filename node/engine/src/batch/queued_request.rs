//! A request that has not been admitted yet.

use std::time::Instant;

use zeroize::Zeroizing;

use super::{
    answer::Answer,
    generation::Generation,
    request::{BatchError, Cancel, Chooser, Finish, Request, RequestId, SessionKey},
};

/// A request and its sink, until a slot and memory are free.
pub(super) struct QueuedRequest {
    pub id: RequestId,
    pub session: Option<SessionKey>,
    pub prompt: Zeroizing<Vec<u32>>,
    pub scored: usize,
    pub max_tokens: usize,
    pub start_by: Option<Instant>,
    pub end_by: Option<Instant>,
    pub cancel: Cancel,
    pub chooser: Box<dyn Chooser>,
    pub answer: Answer,
    /// Whether its blocks may be kept for the session's next request.
    pub keeps: bool,
}

impl QueuedRequest {
    pub(super) fn new(id: RequestId, request: Request, now: Instant) -> Self {
        let Request { session, prompt, scored, max_tokens, start_by, end_by, cancel, chooser, sink } =
            request;
        let answer = Answer::new(sink, prompt.len(), now);
        Self {
            id,
            session,
            prompt,
            scored,
            max_tokens,
            start_by,
            end_by,
            cancel,
            chooser,
            answer,
            keeps: true,
        }
    }

    /// How the request must end now, if it must.
    pub(super) fn look(&mut self, now: Instant) -> Option<Finish> {
        if self.cancel.is_cancelled() {
            return Some(Finish::Cancelled);
        }
        if [self.start_by, self.end_by].into_iter().flatten().any(|by| by <= now) {
            return Some(Finish::Failed(BatchError::Waited));
        }
        match self.answer.room() {
            Err(error) => Some(Finish::Failed(error)),
            Ok(None) => Some(Finish::Cancelled),
            Ok(Some(_)) => None,
        }
    }

    /// Admits the request, with `cached` tokens of its prompt computed already. `None` if its sink failed,
    /// which has ended it.
    pub(super) fn begin(self, cached: usize, now: Instant) -> Option<Generation> {
        let Self { id, mut prompt, scored, max_tokens, end_by, cancel, chooser, mut answer, .. } = self;
        let limit = prompt.len() + max_tokens;
        let mut tokens = Zeroizing::new(Vec::with_capacity(limit));
        tokens.append(&mut prompt);
        if let Err(error) = answer.started(cached, now) {
            answer.finish(Finish::Failed(error), now);
            return None;
        }
        let prompt = tokens.len();
        Some(Generation {
            id,
            tokens,
            prompt,
            scored,
            limit,
            chooser,
            answer,
            cancel,
            end_by,
            room: 0,
            paused_since: None,
        })
    }
}

/// Ends an answer that is over. Returns true while it is not over.
pub(super) fn end_if(finish: Option<Finish>, answer: &mut Answer, now: Instant) -> bool {
    let Some(finish) = finish else { return true };
    answer.finish(finish, now);
    false
}

/// Ends a waiting request with this error.
pub(super) fn fail(mut request: QueuedRequest, error: &BatchError, now: Instant) {
    request.answer.finish(Finish::Failed(error.clone()), now);
}
