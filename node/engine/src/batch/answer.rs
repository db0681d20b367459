//! The answer of one request: its sink, which gets exactly one end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use super::request::{BatchError, Finish, Sink, Stats};

/// A sink and its statistics. If dropped without an end, it ends with [`BatchError::ShutDown`].
pub(super) struct Answer {
    sink: Option<Box<dyn Sink>>,
    stats: Stats,
    /// When the request was admitted, until its first token.
    admitted: Option<Instant>,
}

/// Runs `call` and turns a panic into an error. The caller must not use the state of a call that panicked.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, BatchError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| BatchError::Panicked)
}

impl Answer {
    pub(super) fn new(sink: Box<dyn Sink>) -> Self {
        Self { sink: Some(sink), stats: Stats::default(), admitted: None }
    }

    /// How many tokens the sink accepts; `None` if the reader has gone.
    pub(super) fn room(&mut self) -> Result<Option<usize>, BatchError> {
        guarded(|| self.sink.as_mut().and_then(|sink| sink.room()))
    }

    pub(super) fn started(&mut self, prompt: usize, cached: usize, now: Instant) -> Result<(), BatchError> {
        self.stats.cached_tokens = cached;
        self.admitted = Some(now);
        guarded(|| self.sink.iter_mut().for_each(|sink| sink.started(prompt, cached)))
    }

    pub(super) fn token(&mut self, token: u32, logits: &[f32], now: Instant) -> Result<(), BatchError> {
        if let Some(admitted) = self.admitted.take() {
            self.stats.prefill = now.saturating_duration_since(admitted);
        }
        guarded(|| self.sink.iter_mut().for_each(|sink| sink.token(token, logits)))
    }

    pub(super) fn finish(&mut self, finish: Finish) {
        if let Some(sink) = self.sink.take() {
            let stats = self.stats;
            // If a sink panics at its own end, no one is left to notify.
            let _ = guarded(|| sink.finished(finish, stats));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.finish(Finish::Failed(BatchError::ShutDown));
    }
}
