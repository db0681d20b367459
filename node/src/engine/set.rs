//! Several models under one memory budget. A model is loaded when a turn needs it, and unloaded when it is
//! idle or another needs the room.
//!
//! `policy` decides, and this module acts. It loads and unloads on separate threads, so that neither the
//! reactor nor turns of other models wait. A turn holds its model ([`Engine::hold`]) from before its first
//! call until its end. A turn that gives up waiting leaves nothing behind. A load in progress continues, and
//! its model is then idle.

mod member;
mod open;
mod policy;

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use super::{Engine, EngineError};
pub(crate) use open::{SetError, open};
use policy::{ClaimId, ClaimStatus, Policy, PolicyStep};

/// How long a turn waits for its model before another node is the better choice: the time to read some
/// gigabytes from a disk.
pub(crate) const MODEL_WAIT: Duration = Duration::from_secs(60);

/// Longest sleep of the thread that unloads idle models; every event wakes it.
const MAX_IDLE_SLEEP: Duration = Duration::from_secs(3600);

/// Loads a model, blocking.
pub(crate) type Loader = Box<dyn Fn() -> Result<Arc<dyn Engine>, EngineError> + Send + Sync>;

/// Milliseconds of a monotonic clock.
pub(crate) type ClockMs = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A model of the set.
pub(crate) struct Member {
    /// Its name.
    pub(crate) name: String,
    /// Its memory in bytes, including the cache of its turns.
    pub(crate) bytes: u64,
    /// Loads it.
    pub(crate) load: Loader,
}

/// Limits of a set.
pub(crate) struct SetLimits {
    /// Bytes of all loaded models; `None` means no limit.
    pub(crate) budget_bytes: Option<u64>,
    /// How long a model may be idle; `None` means for ever.
    pub(crate) idle: Option<Duration>,
    /// How long a turn waits for its model.
    pub(crate) wait: Duration,
}

/// Receives events about models.
pub(crate) trait SetObserver: Send + Sync {
    /// The number and the bytes of models in memory changed. Must not block.
    fn taken(&self, _models: usize, _bytes: u64) {}
    /// A load ended, with or without success.
    fn load_ended(&self, _well: bool) {}
    /// A model was unloaded.
    fn unloaded(&self) {}
}

/// The mutable state of a set.
struct SetState {
    policy: Policy,
    engines: Vec<Option<Arc<dyn Engine>>>,
    /// The last load error of each model.
    failures: HashMap<usize, EngineError>,
    /// Running loads and unloads.
    working: usize,
    closed: bool,
}

struct ModelSet {
    members: Vec<Member>,
    /// Each model's ID, which its file must still match at each reload.
    identities: Vec<baton_proto::ids::ModelId>,
    state: Mutex<SetState>,
    /// Wakes the turns that wait for a model.
    changed: watch::Sender<()>,
    /// Wakes the threads that wait for the next idle model, or for shutdown.
    woken: Condvar,
    limits: SetLimits,
    clock: ClockMs,
    observer: Arc<dyn SetObserver>,
    idler: Mutex<Option<JoinHandle<()>>>,
}

/// Keeps a model in memory while it or a clone lives.
#[derive(Clone)]
pub struct Hold(#[expect(dead_code, reason = "what counts is that it is dropped")] Option<Arc<HoldGuard>>);

impl Hold {
    /// A hold on a model that is always in memory.
    #[must_use]
    pub(crate) fn none() -> Self {
        Self(None)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

struct HoldGuard {
    shared: Arc<ModelSet>,
    model: usize,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        let now_ms = (self.shared.clock)();
        self.shared.lock().policy.release(self.model, now_ms);
        self.shared.drive();
    }
}

/// A turn that waits for its model. Dropping it withdraws the claim, unless it was granted.
struct Claim<'a> {
    shared: &'a Arc<ModelSet>,
    model: usize,
    id: Option<ClaimId>,
}

impl Claim<'_> {
    /// The hold, once granted. A granted hold has an owner at once.
    fn poll(&mut self) -> Option<Result<Hold, EngineError>> {
        let now_ms = (self.shared.clock)();
        let mut state = self.shared.lock();
        if state.closed {
            return Some(Err(EngineError::ShutDown));
        }
        let answer = self.id.map_or(ClaimStatus::Failed, |id| state.policy.poll(id, now_ms));
        match answer {
            ClaimStatus::Wait => None,
            ClaimStatus::Granted => {
                self.id = None;
                drop(state);
                let held = HoldGuard { shared: self.shared.clone(), model: self.model };
                Some(Ok(Hold(Some(Arc::new(held)))))
            }
            ClaimStatus::Failed => {
                self.id = None;
                let unknown = || EngineError::LoadFailed { reason: "the reason is lost".to_owned() };
                Some(Err(state.failures.get(&self.model).cloned().unwrap_or_else(unknown)))
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.lock().policy.withdraw(id);
        }
        // Granted or withdrawn: other claims may be next.
        self.shared.drive();
    }
}

impl ModelSet {
    fn lock(&self) -> MutexGuard<'_, SetState> {
        // Every critical section leaves the state valid.
        self.state.lock()
    }

    /// Starts all due steps, and wakes the waiting turns.
    fn drive(self: &Arc<Self>) {
        loop {
            let now_ms = (self.clock)();
            let mut state = self.lock();
            if state.closed {
                break;
            }
            let Some(step) = state.policy.next(now_ms) else { break };
            state.working += 1;
            let (model, leaving) = match step {
                PolicyStep::Load(model) => (model, None),
                PolicyStep::Unload(model) => (model, state.engines[model].take()),
            };
            drop(state);
            let shared = self.clone();
            let name = format!("model-{}", self.members[model].name);
            let work = move || shared.work(step, leaving);
            if let Err(error) = thread::Builder::new().name(name).spawn(work) {
                let error = EngineError::LoadFailed { reason: format!("no thread: {error}") };
                self.ended(step, Err(error));
            }
        }
        self.tell();
    }

    fn tell(&self) {
        {
            // Reported under the lock, so that an observer never sees an older state after a newer one.
            let state = self.lock();
            let (models, bytes) = state.policy.taken();
            self.observer.taken(models, bytes);
        }
        self.changed.send_replace(());
        self.woken.notify_all();
    }

    /// Loads or unloads a model on its own thread.
    fn work(self: Arc<Self>, step: PolicyStep, leaving: Option<Arc<dyn Engine>>) {
        let name = match step {
            PolicyStep::Load(model) | PolicyStep::Unload(model) => &self.members[model].name,
        };
        let result = match step {
            PolicyStep::Load(model) => {
                let loaded = self.load(model);
                match &loaded {
                    Ok(_) => tracing::info!(model = name, "a model was loaded"),
                    Err(error) => tracing::error!(model = name, %error, "a model cannot be loaded"),
                }
                self.observer.load_ended(loaded.is_ok());
                loaded.map(Some)
            }
            PolicyStep::Unload(_) => {
                if let Some(engine) = leaving {
                    engine.shutdown();
                }
                self.observer.unloaded();
                tracing::info!(model = name, "a model was unloaded");
                Ok(None)
            }
        };
        self.ended(step, result);
        self.drive();
    }

    fn load(&self, model: usize) -> Result<Arc<dyn Engine>, EngineError> {
        let engine = catch_unwind(AssertUnwindSafe(&self.members[model].load));
        let engine = engine
            .unwrap_or_else(|_| Err(EngineError::Compute { reason: "its load panicked".to_owned() }))?;
        if engine.info().model_id != self.identities[model] {
            engine.shutdown();
            let reason = "its file is another model than at the start; restart the node".to_owned();
            return Err(EngineError::LoadFailed { reason });
        }
        Ok(engine)
    }

    /// Records the end of a step.
    fn ended(&self, step: PolicyStep, result: Result<Option<Arc<dyn Engine>>, EngineError>) {
        let now_ms = (self.clock)();
        let mut late = None;
        {
            let mut state = self.lock();
            match (step, result) {
                (PolicyStep::Unload(model), _) => state.policy.unloaded(model),
                (PolicyStep::Load(model), Ok(engine)) if !state.closed => {
                    state.engines[model] = engine;
                    state.failures.remove(&model);
                    state.policy.loaded(model, now_ms);
                }
                // The set is closed.
                (PolicyStep::Load(model), Ok(engine)) => {
                    late = engine;
                    state.policy.failed(model);
                }
                (PolicyStep::Load(model), Err(error)) => {
                    state.failures.insert(model, error);
                    state.policy.failed(model);
                }
            }
        }
        if let Some(engine) = late {
            engine.shutdown();
        }
        self.lock().working -= 1;
        self.tell();
    }

    /// Waits for a model and holds it.
    async fn hold(self: &Arc<Self>, model: usize) -> Result<Hold, EngineError> {
        let mut changed = self.changed.subscribe();
        let mut claim = {
            let id = self.lock().policy.claim(model);
            Claim { shared: self, model, id: Some(id) }
        };
        self.drive();
        let granted = async {
            loop {
                if let Some(answer) = claim.poll() {
                    return answer;
                }
                // The sender lives in `self`, so this cannot fail.
                let _ = changed.changed().await;
            }
        };
        let granted = tokio::time::timeout(self.limits.wait, granted).await;
        granted.unwrap_or_else(|_| Err(EngineError::NoRoom { seconds: self.limits.wait.as_secs() }))
    }

    /// The engine of a loaded model, with a hold on it.
    fn pinned(self: &Arc<Self>, model: usize) -> Result<(Arc<dyn Engine>, Hold), EngineError> {
        let now_ms = (self.clock)();
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShutDown);
        }
        let engine = state.engines[model].clone().ok_or(EngineError::NotLoaded)?;
        if !state.policy.pin(model, now_ms) {
            return Err(EngineError::NotLoaded);
        }
        drop(state);
        Ok((engine, Hold(Some(Arc::new(HoldGuard { shared: self.clone(), model })))))
    }

    /// Unloads models when they have been idle for too long.
    fn idle(self: Arc<Self>) {
        loop {
            self.drive_idle();
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let now_ms = (self.clock)();
            let sleep = match state.policy.next_idle_ms() {
                Some(at_ms) if at_ms <= now_ms => continue,
                Some(at_ms) => Duration::from_millis(at_ms - now_ms).min(MAX_IDLE_SLEEP),
                None => MAX_IDLE_SLEEP,
            };
            self.woken.wait_for(&mut state, sleep);
        }
    }

    /// As [`Self::drive`], but without a wake-up if nothing is due: otherwise the calling thread would wake
    /// itself for ever.
    fn drive_idle(self: &Arc<Self>) {
        let due = self.lock().policy.next_idle_ms().is_some_and(|at_ms| at_ms <= (self.clock)());
        if due {
            self.drive();
        }
    }

    fn shutdown(&self) {
        let engines: Vec<_> = {
            let mut state = self.lock();
            state.closed = true;
            state.engines.iter_mut().filter_map(Option::take).collect()
        };
        self.changed.send_replace(());
        self.woken.notify_all();
        for engine in engines {
            engine.shutdown();
        }
        let mut state = self.lock();
        while state.working > 0 {
            self.woken.wait(&mut state);
        }
        drop(state);
        let idler = self.idler.lock().take();
        if let Some(idler) = idler
            && idler.join().is_err()
        {
            tracing::error!("the thread of idle models ended by a panic");
        }
    }
}

#[cfg(test)]
mod tests;
