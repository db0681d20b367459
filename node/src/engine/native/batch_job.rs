//! A job in the batch: its output, and the calls by which the batch computes it.

use std::sync::Arc;

use baton_engine::batch::{BatchError, Choice, Chooser, Finish, Sink, Stats};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::small;
use crate::engine::{EngineError, EngineEvent, FinishReason, GenerateStats};

/// A job's output: events to the reader, the stop signal, and its place within the engine's limit.
pub(super) struct Outlet {
    pub(crate) events: mpsc::Sender<EngineEvent>,
    /// Reserved room for the last event, so that its delivery never waits.
    pub(crate) last: Option<mpsc::OwnedPermit<EngineEvent>>,
    pub(crate) cancel: CancellationToken,
    pub(crate) _permit: OwnedSemaphorePermit,
    /// The limit of waiting jobs, which refusals name.
    pub(crate) queue_limit: usize,
}

impl Outlet {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.events.is_closed()
    }

    /// Sends an event. The caller has checked the room.
    pub(super) fn send(&self, event: EngineEvent) {
        // Closed: there is no reader. Full: impossible, because the batch checks the room first.
        let _ = self.events.try_send(event);
    }

    /// Ends the job; only the first call has an effect.
    pub(super) fn end(&mut self, outcome: Result<FinishReason, EngineError>, stats: GenerateStats) {
        if let Some(last) = self.last.take() {
            last.send(match outcome {
                Ok(finish) => EngineEvent::Done { finish, stats },
                Err(error) => EngineEvent::Failed(error),
            });
        }
    }

    /// The engine error for a job that the batch refused or failed.
    fn error(&self, error: &BatchError) -> EngineError {
        match error {
            BatchError::Busy { .. } | BatchError::Stalled => EngineError::Busy { limit: self.queue_limit },
            BatchError::TooLong { tokens, context } => {
                EngineError::ContextOverflow { needed: small(*tokens), limit: small(*context) }
            }
            BatchError::Token { .. } => EngineError::InvalidResume,
            BatchError::ShutDown => EngineError::ShutDown,
            error => EngineError::Compute { reason: error.to_string() },
        }
    }

    /// The outcome of a job that ended in the batch, and by itself as `ended` says.
    pub(super) fn outcome(
        &self,
        finish: Finish,
        ended: Option<Result<FinishReason, EngineError>>,
    ) -> Result<FinishReason, EngineError> {
        match (finish, ended) {
            (Finish::End, ended) => ended.unwrap_or(Ok(FinishReason::Stop)),
            (Finish::Length, _) => Ok(FinishReason::Length),
            (Finish::Cancelled, _) => Ok(FinishReason::Cancelled),
            (Finish::Failed(BatchError::NoChoice), Some(Err(error))) => Err(error),
            (Finish::Failed(error), _) => Err(self.error(&error)),
        }
    }
}

/// An answer that is made or checked.
pub(super) trait BatchJob: Send {
    fn outlet(&mut self) -> &mut Outlet;

    /// The token after `tokens`.
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice;

    /// Compares a given token with the choice after `tokens`.
    fn score(&mut self, _tokens: &[u32], _next: u32, _logits: &[f32]) {}

    /// Room for events of tokens.
    fn room(&self) -> usize;

    fn finish(&mut self, finish: Finish, stats: &Stats);
}

/// A job as the batch holds it: as its chooser, and as its sink.
#[derive(Clone)]
pub(super) struct SharedJob(Arc<Mutex<dyn BatchJob>>);

impl SharedJob {
    pub(super) fn new(job: impl BatchJob + 'static) -> Self {
        Self(Arc::new(Mutex::new(job)))
    }

    /// Ends a job that the batch refused.
    pub(super) fn refuse(&self, error: &BatchError) {
        let mut job = self.0.lock();
        let outlet = job.outlet();
        outlet.end(Err(outlet.error(error)), GenerateStats::default());
    }
}

impl Chooser for SharedJob {
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice {
        self.0.lock().choose(tokens, logits)
    }

    fn score(&mut self, tokens: &[u32], next: u32, logits: &[f32]) {
        self.0.lock().score(tokens, next, logits);
    }
}

impl Sink for SharedJob {
    fn room(&mut self) -> Option<usize> {
        let mut job = self.0.lock();
        (!job.outlet().is_cancelled()).then(|| job.room())
    }

    fn finished(self: Box<Self>, finish: Finish, stats: Stats) {
        self.0.lock().finish(finish, &stats);
    }
}
