//! A scheduler on its own thread, behind a bounded queue.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    BatchOptions,
    answer::Answer,
    request::{BatchError, Finish, Request},
    scheduler::{Bounds, Load, Scheduler, StepOutcome},
    solo::{Solo, SoloScheduler},
};
use crate::Model;

/// The scheduler that the thread drives: requests on a model, step by step.
pub trait Steps: Send {
    /// Accepts a request, which begins in a later step, or gives it back with the reason: it can never be
    /// computed, or too many wait.
    ///
    /// # Errors
    /// The request and [`BatchError`]. Its sink was not called.
    fn accept(&mut self, request: Request) -> Result<(), (Box<Request>, BatchError)>;

    /// Ends all requests with this error.
    fn fail_all(&mut self, error: &BatchError);

    /// The requests, and the memory they hold.
    fn load(&self) -> Load;

    /// Ends requests that are over, admits those that fit, and makes one step with all that can proceed.
    /// Reads `clock` before and after computing.
    fn step(&mut self, clock: &dyn Fn() -> Instant) -> StepOutcome;
}

/// How often to poll the readers when all requests wait for theirs.
const PAUSED_LOOK: Duration = Duration::from_millis(2);

/// How often to look for expired blocks when there are no requests.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// State shared between the callers and the thread, behind a lock.
#[derive(Default)]
struct QueueState {
    /// Requests that the thread has not accepted yet.
    inbox: VecDeque<Request>,
    load: Load,
    closed: bool,
}

/// The queue in front of the thread.
struct RequestQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model's thread. Dropping it shuts it down.
pub struct Batcher {
    requests: Arc<RequestQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    bounds: Bounds,
    options: BatchOptions,
}

impl Batcher {
    /// Starts a thread with this name that owns the model.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn spawn(name: &str, model: Model, options: BatchOptions) -> std::io::Result<Self> {
        let options = options.bounded();
        let scheduler = Scheduler::new(model, options.clone());
        let bounds = scheduler.bounds();
        Self::drive(name, Box::new(scheduler), bounds, options)
    }

    /// Starts a thread with this name that owns a model which computes one sequence at a time. Keys and
    /// values may take `kv_budget` bytes. Of the options, only `queue` and `stall` count.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub fn spawn_solo(
        name: &str,
        model: Box<dyn Solo>,
        options: BatchOptions,
        kv_budget: usize,
    ) -> std::io::Result<Self> {
        let options = BatchOptions { slots: 1, ..options.bounded() };
        let scheduler = SoloScheduler::new(model, options.clone(), kv_budget);
        let bounds = scheduler.bounds();
        Self::drive(name, Box::new(scheduler), bounds, options)
    }

    fn drive(
        name: &str,
        scheduler: Box<dyn Steps>,
        bounds: Bounds,
        options: BatchOptions,
    ) -> std::io::Result<Self> {
        let state = QueueState { load: scheduler.load(), ..QueueState::default() };
        let requests = Arc::new(RequestQueue { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&requests);
        let thread =
            thread::Builder::new().name(name.to_owned()).spawn(move || keep_going(scheduler, &own))?;
        Ok(Self { requests, thread: Mutex::new(Some(thread)), bounds, options })
    }

    /// Queues a request. Never waits.
    ///
    /// # Errors
    /// [`BatchError`] if the request can never be computed, if too many wait, or after [`Self::shutdown`].
    /// The request's sink is then dropped without a call. After `Ok`, the sink gets its end exactly once.
    pub fn submit(&self, request: Request) -> Result<(), BatchError> {
        self.bounds.check(&request)?;
        let mut state = self.requests.lock();
        if state.closed {
            return Err(BatchError::ShutDown);
        }
        let present = state.inbox.len() + state.load.waiting + state.load.running;
        if present >= self.options.queue + self.options.slots {
            return Err(BatchError::Busy { limit: self.options.queue });
        }
        state.inbox.push_back(request);
        self.requests.changed.notify_one();
        Ok(())
    }

    /// The requests and the memory they hold, as of the last step.
    #[must_use]
    pub fn load(&self) -> Load {
        let state = self.requests.lock();
        Load { waiting: state.load.waiting + state.inbox.len(), ..state.load }
    }

    /// Ends all requests with [`BatchError::ShutDown`] within a step, frees the model and joins the thread.
    /// Idempotent. A sink may call it; the call then does not wait.
    pub fn shutdown(&self) {
        self.requests.lock().closed = true;
        self.requests.changed.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // The thread does not panic: it catches panics of the scheduler.
            let _ = thread.join();
        }
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The thread's main function. Whatever happens, it answers all requests before it ends.
fn keep_going(mut scheduler: Box<dyn Steps>, queue: &RequestQueue) {
    let result = catch_unwind(AssertUnwindSafe(|| drive(scheduler.as_mut(), queue)));
    let error = if result.is_ok() { BatchError::ShutDown } else { BatchError::Panicked };
    let mut state = queue.lock();
    state.closed = true;
    let left = std::mem::take(&mut state.inbox);
    state.load = Load { kv_budget: state.load.kv_budget, ..Load::default() };
    drop(state);
    scheduler.fail_all(&error);
    left.into_iter().for_each(|request| refuse(request, error.clone()));
}

fn refuse(request: Request, error: BatchError) {
    Answer::new(request.sink).finish(Finish::Failed(error));
}

fn drive(scheduler: &mut dyn Steps, queue: &RequestQueue) {
    loop {
        let mut state = queue.lock();
        state.load = scheduler.load();
        if state.closed {
            return;
        }
        let inbox = std::mem::take(&mut state.inbox);
        state.load.waiting += inbox.len();
        drop(state);
        for request in inbox {
            if let Err((request, error)) = scheduler.accept(request) {
                refuse(*request, error);
            }
        }
        let patience = match scheduler.step(&Instant::now) {
            StepOutcome::Stepped(_) => continue,
            StepOutcome::Paused => PAUSED_LOOK,
            StepOutcome::Idle => IDLE_LOOK,
        };
        let mut state = queue.lock();
        state.load = scheduler.load();
        if state.inbox.is_empty() && !state.closed {
            drop(queue.changed.wait_timeout(state, patience));
        }
    }
}
