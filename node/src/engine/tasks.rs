//! The jobs of an engine that needs no thread of its own: one task each, bounded in number.
//!
//! The proxied and the echo engine use it. Cancel, a dropped receiver or shutdown ends a job at once, even during
//! its wait for a slow reader. Each job has exactly one last event.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    EVENT_CAPACITY, EngineError, EngineEvent, FinishReason, GenerateHandle, GenerateJob, GenerateStats,
};

/// The run of one job.
pub(super) trait JobRun: Send + 'static {
    /// Runs the job to its end, and waits for a slow reader. Dropping the future ends the run.
    fn run(&mut self, job: &GenerateJob) -> impl Future<Output = Result<FinishReason, EngineError>> + Send;

    /// The outcome of the job with its counts and times, after its end or its interruption.
    ///
    /// # Errors
    /// The job's own, or another that only its end shows.
    fn end(
        self,
        outcome: Result<FinishReason, EngineError>,
    ) -> Result<(FinishReason, GenerateStats), EngineError>;
}

/// The tasks of an engine.
pub(super) struct JobTasks {
    runtime: Handle,
    slots: Arc<Semaphore>,
    limit: usize,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl JobTasks {
    /// Tasks on `runtime`; `limit` jobs may be present at once.
    pub(super) fn new(runtime: Handle, limit: usize) -> Self {
        Self {
            runtime,
            slots: Arc::new(Semaphore::new(limit)),
            limit,
            stop: CancellationToken::new(),
            tasks: Mutex::new(JoinSet::new()),
        }
    }

    /// Starts a job; never blocks. `run` makes its run from the sender of its events.
    ///
    /// # Errors
    /// [`EngineError::Busy`], [`EngineError::ShutDown`].
    pub(super) fn start<R: JobRun>(
        &self,
        job: GenerateJob,
        run: impl FnOnce(mpsc::Sender<EngineEvent>) -> R,
    ) -> Result<GenerateHandle, EngineError> {
        let mut tasks = self.tasks.lock();
        if self.stop.is_cancelled() {
            return Err(EngineError::ShutDown);
        }
        let busy = EngineError::Busy { limit: self.limit };
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| busy)?;
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY + 1);
        let task = JobTask {
            job,
            // Reserved room for the last event, so that its delivery never waits.
            last: events.clone().try_reserve_owned().expect("a new channel has room"),
            reader: events.clone(),
            stop: self.stop.clone(),
            slot,
        };
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task.finish(run(events)), &self.runtime);
        Ok(GenerateHandle { events: receiver })
    }

    /// Refuses new jobs and stops the running ones. Dropping the engine aborts the tasks that are left.
    pub(super) fn shutdown(&self) {
        let mut tasks = self.tasks.lock();
        self.stop.cancel();
        while tasks.try_join_next().is_some() {}
    }
}

struct JobTask {
    job: GenerateJob,
    last: mpsc::OwnedPermit<EngineEvent>,
    reader: mpsc::Sender<EngineEvent>,
    stop: CancellationToken,
    slot: OwnedSemaphorePermit,
}

impl JobTask {
    async fn finish(self, mut run: impl JobRun) {
        let Self { job, last, reader, stop, slot } = self;
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => Err(EngineError::ShutDown),
            () = job.cancel.cancelled() => Ok(FinishReason::Cancelled),
            () = reader.closed() => Ok(FinishReason::Cancelled),
            outcome = run.run(&job) => outcome,
        };
        let outcome = run.end(outcome);
        drop(slot);
        last.send(match outcome {
            Ok((finish, stats)) => EngineEvent::Done { finish, stats },
            Err(error) => EngineEvent::Failed(error),
        });
    }
}

/// Whole milliseconds of a duration.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
