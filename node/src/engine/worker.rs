//! The thread of an in-process engine: a bounded queue, one job at a time, exactly one answer for every job.
//!
//! The echo engine uses it. It must never hang: cancel, a dropped receiver, shutdown or a panic ends a job,
//! even during its wait for a slow reader.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, executor::block_on, select_biased};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    EVENT_CAPACITY, EngineError, EngineEvent, FinishReason, GenerateHandle, GenerateJob, GenerateStats,
    LogprobReport,
};

/// How often [`EventSink::wait`] checks whether the job was stopped.
const WAIT_SLICE: Duration = Duration::from_millis(2);

/// Runs jobs on the engine's thread.
pub(crate) trait Backend: Send + 'static {
    /// Runs `job` to its end and returns the reason of the end. Tokens go to `sink`.
    fn run(&mut self, job: &GenerateJob, sink: &mut EventSink) -> Result<FinishReason, EngineError>;
}

struct QueuedJob {
    job: GenerateJob,
    events: mpsc::Sender<EngineEvent>,
    /// Reserved room for the last event, so that its delivery never waits.
    last: mpsc::OwnedPermit<EngineEvent>,
    queued_at: Instant,
}

/// A named thread that owns a [`Backend`], and its queue.
pub(crate) struct Worker {
    queue: Mutex<Option<SyncSender<QueuedJob>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    queue_limit: usize,
}

impl Worker {
    /// Starts the thread. `queue_limit` jobs may wait besides the running one.
    pub(crate) fn spawn(name: &str, queue_limit: usize, backend: impl Backend) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(queue_limit.max(1));
        let stop = CancellationToken::new();
        let engine_stop = stop.clone();
        let thread = std::thread::Builder::new()
            .name(format!("engine-{name}"))
            .spawn(move || run_jobs(backend, &jobs, &engine_stop))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            stop,
            queue_limit: queue_limit.max(1),
        })
    }

    /// Queues a job; never blocks.
    pub(crate) fn submit(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY + 1);
        let last = events.clone().try_reserve_owned().expect("a new channel has room");
        let queued = QueuedJob { job, events, last, queued_at: Instant::now() };
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or(EngineError::ShutDown)?;
        queue.try_send(queued).map_err(|error| match error {
            TrySendError::Full(_) => EngineError::Busy { limit: self.queue_limit },
            TrySendError::Disconnected(_) => EngineError::ShutDown,
        })?;
        Ok(GenerateHandle { events: receiver })
    }

    /// Stops the running job, fails the waiting ones and joins the thread. Idempotent.
    pub(crate) fn shutdown(&self) {
        self.stop.cancel();
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("an engine thread ended by a panic");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn run_jobs(mut backend: impl Backend, jobs: &Receiver<QueuedJob>, stop: &CancellationToken) {
    while let Ok(QueuedJob { job, events, last, queued_at }) = jobs.recv() {
        let mut sink = EventSink {
            events,
            cancel: job.cancel.clone(),
            stop: stop.clone(),
            queued_at,
            started_at: Instant::now(),
            prefilled_at: None,
            first_text_at: None,
            input_tokens: 0,
            output_tokens: 0,
        };
        let outcome = match sink.interruption() {
            Some(interruption) => interruption,
            // A job leaves no state that a later job reads, so continuing is sound.
            None => catch_unwind(AssertUnwindSafe(|| backend.run(&job, &mut sink))).unwrap_or_else(|_| {
                tracing::error!("an engine job panicked");
                Err(EngineError::Panicked)
            }),
        };
        drop(job);
        last.send(match outcome {
            Ok(finish) => EngineEvent::Done { finish, stats: sink.stats() },
            Err(error) => EngineEvent::Failed(error),
        });
    }
}

/// A job's output: events to the reader, the stop signal, and the clock.
pub(crate) struct EventSink {
    events: mpsc::Sender<EngineEvent>,
    cancel: CancellationToken,
    stop: CancellationToken,
    queued_at: Instant,
    started_at: Instant,
    prefilled_at: Option<Instant>,
    first_text_at: Option<Instant>,
    input_tokens: u32,
    output_tokens: u32,
}

impl EventSink {
    /// How the job must end now, if it must: cancelled, without a reader, or by engine shutdown.
    pub(crate) fn interruption(&self) -> Option<Result<FinishReason, EngineError>> {
        if self.stop.is_cancelled() {
            Some(Err(EngineError::ShutDown))
        } else if self.cancel.is_cancelled() || self.events.is_closed() {
            Some(Ok(FinishReason::Cancelled))
        } else {
            None
        }
    }

    /// Reports the prompt's size.
    pub(crate) fn started(&mut self, input_tokens: u32) {
        self.input_tokens = input_tokens;
        self.send(EngineEvent::Started { input_tokens });
    }

    /// Reports the text of the resumed prefix.
    pub(crate) fn resumed(&mut self, text: String) {
        if !text.is_empty() {
            self.send(EngineEvent::Resumed { text });
        }
    }

    /// Notes that the prompt was evaluated.
    pub(crate) fn prefilled(&mut self) {
        self.prefilled_at = Some(Instant::now());
    }

    /// Counts one generated token.
    pub(crate) fn generated(&mut self) {
        self.output_tokens += 1;
    }

    /// Reports tokens with their text.
    pub(crate) fn token(&mut self, index: u32, ids: Vec<u32>, text: String, logprobs: Vec<LogprobReport>) {
        if ids.is_empty() && text.is_empty() {
            return;
        }
        if !text.is_empty() {
            self.first_text_at.get_or_insert_with(Instant::now);
        }
        self.send(EngineEvent::Token { index, ids, text, logprobs });
    }

    /// Sends an event, and waits for a slow reader until the job is stopped. [`Self::interruption`] ends the
    /// job at the next token.
    fn send(&self, event: EngineEvent) {
        let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) else { return };
        block_on(async {
            select_biased! {
                () = self.cancel.cancelled().fuse() => {}
                () = self.stop.cancelled().fuse() => {}
                _ = self.events.send(event).fuse() => {}
            }
        });
    }

    /// Waits `time`, or until the job is stopped.
    pub(crate) fn wait(&self, time: Duration) {
        let begin = Instant::now();
        while self.interruption().is_none()
            && let Some(left) = time.checked_sub(begin.elapsed())
        {
            std::thread::sleep(left.min(WAIT_SLICE));
        }
    }

    fn stats(&self) -> GenerateStats {
        let now = Instant::now();
        let prefilled_at = self.prefilled_at.unwrap_or(now);
        GenerateStats {
            input_tokens: self.input_tokens,
            cached_tokens: 0,
            output_tokens: self.output_tokens,
            queue_ms: millis(self.started_at - self.queued_at),
            prefill_ms: millis(prefilled_at - self.started_at),
            decode_ms: millis(now - prefilled_at),
            first_token_ms: self.first_text_at.map_or(0, |at| millis(at - self.queued_at)),
        }
    }
}

/// Whole milliseconds of a duration.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::Sampling, prompt::Prompt};

    struct ScriptedBackend;

    impl Backend for ScriptedBackend {
        fn run(&mut self, job: &GenerateJob, sink: &mut EventSink) -> Result<FinishReason, EngineError> {
            assert_ne!(job.sampling.seed, 666, "scripted panic");
            sink.started(1);
            for index in 0..job.sampling.max_tokens {
                if let Some(interruption) = sink.interruption() {
                    return interruption;
                }
                sink.generated();
                sink.token(index, vec![index], "x".into(), Vec::new());
            }
            Ok(FinishReason::Length)
        }
    }

    fn job(seed: u64, max_tokens: u32) -> GenerateJob {
        GenerateJob {
            prompt: Prompt::new(Vec::new()),
            sampling: Sampling { seed, max_tokens, ..Sampling::default() },
            resume_tokens: Vec::new(),
            constraint: None,
            cache_key: None,
            cancel: CancellationToken::new(),
        }
    }

    async fn last(mut handle: GenerateHandle) -> Option<EngineEvent> {
        let mut last = None;
        while let Some(event) = handle.next().await {
            last = Some(event);
        }
        last
    }

    #[tokio::test]
    async fn a_panic_fails_its_job_and_the_next_one_runs() {
        let worker = Worker::spawn("test", 4, ScriptedBackend).unwrap();
        let panicking = worker.submit(job(666, 1)).unwrap();
        let next = worker.submit(job(1, 3)).unwrap();
        assert_eq!(last(panicking).await, Some(EngineEvent::Failed(EngineError::Panicked)));
        let Some(EngineEvent::Done { finish, stats }) = last(next).await else { panic!("not done") };
        assert_eq!((finish, stats.output_tokens, stats.input_tokens), (FinishReason::Length, 3, 1));
    }

    #[tokio::test]
    async fn refuses_a_job_when_the_queue_is_full_and_stops_what_waits_for_its_reader() {
        let worker = Worker::spawn("test", 1, ScriptedBackend).unwrap();
        let mut running = worker.submit(job(0, u32::MAX)).unwrap();
        assert_eq!(running.next().await, Some(EngineEvent::Started { input_tokens: 1 }));
        let waiting = worker.submit(job(0, 1)).unwrap();
        assert_eq!(worker.submit(job(0, 1)).unwrap_err(), EngineError::Busy { limit: 1 });
        // `running` has no reader, so its thread blocks or soon blocks on a full channel.
        let (worker, ()) = tokio::task::spawn_blocking(move || {
            worker.shutdown();
            (worker, ())
        })
        .await
        .unwrap();
        assert_eq!(last(running).await, Some(EngineEvent::Failed(EngineError::ShutDown)));
        assert_eq!(last(waiting).await, Some(EngineEvent::Failed(EngineError::ShutDown)));
        assert_eq!(worker.submit(job(0, 1)).unwrap_err(), EngineError::ShutDown);
    }

    #[tokio::test]
    async fn a_cancel_reaches_a_job_that_waits_for_its_reader() {
        let worker = Worker::spawn("test", 1, ScriptedBackend).unwrap();
        let endless = job(0, u32::MAX);
        let cancel = endless.cancel.clone();
        let mut handle = worker.submit(endless).unwrap();
        while handle.events.len() < EVENT_CAPACITY {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        let mut tokens = 0;
        let finish = loop {
            match handle.next().await {
                Some(EngineEvent::Token { .. }) => tokens += 1,
                Some(EngineEvent::Done { finish, .. }) => break finish,
                Some(EngineEvent::Started { .. }) => {}
                other => panic!("unexpected {other:?}"),
            }
        };
        assert_eq!(finish, FinishReason::Cancelled);
        assert!(tokens <= EVENT_CAPACITY, "{tokens} tokens after the cancel");
    }

    #[tokio::test]
    async fn a_dropped_reader_frees_the_engine() {
        let worker = Worker::spawn("test", 2, ScriptedBackend).unwrap();
        drop(worker.submit(job(0, u32::MAX)).unwrap());
        assert!(matches!(
            last(worker.submit(job(0, 2)).unwrap()).await,
            Some(EngineEvent::Done { finish: FinishReason::Length, .. })
        ));
    }
}
