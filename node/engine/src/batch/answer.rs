//! The answer of one request: its sink, which gets exactly one end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use super::request::{BatchError, Finish, Sink, Stats};

/// A sink and its statistics. If dropped without an end, it ends with [`BatchError::ShutDown`].
pub(super) struct Answer {
    sink: Option<Box<dyn Sink>>,
    pub stats: Stats,
    submitted: Instant,
    first_token: Option<Instant>,
}

/// Runs `call` and turns a panic into an error. The caller must not use the state of a call that panicked.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, BatchError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| BatchError::Panicked)
}

impl Answer {
    pub(super) fn new(sink: Box<dyn Sink>, prompt_tokens: usize, now: Instant) -> Self {
        let stats = Stats { prompt_tokens, ..Stats::default() };
        Self { sink: Some(sink), stats, submitted: now, first_token: None }
    }

    /// How many tokens the sink accepts; `None` if the reader has gone.
    pub(super) fn room(&mut self) -> Result<Option<usize>, BatchError> {
        guarded(|| self.sink.as_mut().and_then(|sink| sink.room()))
    }

    pub(super) fn started(&mut self, cached: usize, now: Instant) -> Result<(), BatchError> {
        self.stats.cached_tokens = cached;
        self.stats.queued = now.saturating_duration_since(self.submitted);
        let prompt = self.stats.prompt_tokens;
        guarded(|| self.sink.iter_mut().for_each(|sink| sink.started(prompt, cached)))
    }

    pub(super) fn token(&mut self, token: u32, logits: &[f32], now: Instant) -> Result<(), BatchError> {
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.stats.first_token = now.saturating_duration_since(self.submitted);
        }
        self.stats.output_tokens += 1;
        guarded(|| self.sink.iter_mut().for_each(|sink| sink.token(token, logits)))
    }

    pub(super) fn finish(&mut self, finish: Finish, now: Instant) {
        if let Some(first) = self.first_token {
            self.stats.decode = now.saturating_duration_since(first);
        }
        self.end(finish);
    }

    fn end(&mut self, finish: Finish) {
        if let Some(sink) = self.sink.take() {
            let stats = self.stats;
            // If a sink panics at its own end, no one is left to notify.
            let _ = guarded(|| sink.finished(finish, stats));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.end(Finish::Failed(BatchError::ShutDown));
    }
}
