//! Tests with engines that only count their loads, and with loads that wait for the test's permission.

use std::sync::{
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    mpsc,
};

use futures::FutureExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::{
    engine::{EngineInfo, EngineKind, GenerateHandle, GenerateJob, unseen},
    prompt::Prompt,
};

struct Fake {
    info: EngineInfo,
    memory: Arc<Memory>,
    closed: AtomicBool,
}

/// Memory use of fake models.
#[derive(Default)]
struct Memory {
    models: AtomicUsize,
    most: AtomicUsize,
}

impl Fake {
    fn load(name: &str, memory: &Arc<Memory>) -> Arc<dyn Engine> {
        let info = EngineInfo::new(name, EngineKind::Echo, 100, unseen(name.to_owned()));
        let now = memory.models.fetch_add(1, SeqCst) + 1;
        memory.most.fetch_max(now, SeqCst);
        Arc::new(Self { info, memory: memory.clone(), closed: AtomicBool::new(false) })
    }
}

impl Engine for Fake {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn count(&self, _prompt: &Prompt) -> Result<u32, EngineError> {
        assert!(!self.closed.load(SeqCst), "used after it was unloaded");
        Ok(7)
    }

    fn generate(&self, _job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        Err(EngineError::Unsupported { what: "anything" })
    }

    fn shutdown(&self) {
        if !self.closed.swap(true, SeqCst) {
            self.memory.models.fetch_sub(1, SeqCst);
        }
    }
}

/// A set of fake models of one byte each.
struct Bench {
    engines: Vec<Arc<dyn Engine>>,
    memory: Arc<Memory>,
    now_ms: Arc<AtomicU64>,
    /// Loads begun after the start, by model.
    begun: UnboundedReceiver<usize>,
    /// Lets a load end, with or without success.
    go_on: mpsc::Sender<bool>,
    taken: watch::Receiver<usize>,
}

struct Watcher(watch::Sender<usize>);

impl SetObserver for Watcher {
    fn taken(&self, models: usize, _bytes: u64) {
        self.0.send_replace(models);
    }
}

fn member(
    index: usize,
    memory: &Arc<Memory>,
    begun: &UnboundedSender<usize>,
    gate: &Arc<Mutex<mpsc::Receiver<bool>>>,
) -> Member {
    let name = format!("fake-{index}");
    let (memory, begun, gate) = (memory.clone(), begun.clone(), gate.clone());
    let (wanted, first) = (name.clone(), AtomicBool::new(true));
    let load: Loader = Box::new(move || {
        // Loads at the start need no permission.
        if !first.swap(false, SeqCst) {
            begun.send(index).unwrap();
            let go_on = gate.lock().recv();
            if go_on != Ok(true) {
                return Err(EngineError::LoadFailed { reason: "as the test says".to_owned() });
            }
        }
        Ok(Fake::load(&wanted, &memory))
    });
    Member { name, bytes: 1, load }
}

impl Bench {
    /// `models` models, of which `budget` may be in memory at once.
    fn new(models: usize, budget: u64, wait: Duration) -> Self {
        let (memory, now_ms) = (Arc::new(Memory::default()), Arc::new(AtomicU64::new(0)));
        let (begun_to, begun) = unbounded_channel();
        let (go_on, gate) = mpsc::channel();
        let gate = Arc::new(Mutex::new(gate));
        let (taken_to, taken) = watch::channel(0);
        let members = (0..models).map(|index| member(index, &memory, &begun_to, &gate)).collect();
        let limits = SetLimits { budget_bytes: Some(budget), idle: Some(Duration::from_secs(60)), wait };
        let clock = now_ms.clone();
        let clock: ClockMs = Arc::new(move || clock.load(SeqCst));
        let engines = open(members, limits, clock, Arc::new(Watcher(taken_to))).unwrap();
        Self { engines, memory, now_ms, begun, go_on, taken }
    }

    fn patient(models: usize, budget: u64) -> Self {
        Self::new(models, budget, MODEL_WAIT)
    }

    async fn until_taken(&mut self, models: usize) {
        self.taken.wait_for(|taken| *taken == models).await.unwrap();
    }

    /// Holds every model again, one after the other; any leftover would block this. Then shuts down.
    async fn check_nothing_is_left(self) {
        for engine in &self.engines {
            // For a possible load.
            self.go_on.send(true).unwrap();
            drop(engine.hold().await.unwrap());
        }
        self.engines[0].shutdown();
        assert_eq!(self.memory.models.load(SeqCst), 0);
    }
}

fn count(engine: &Arc<dyn Engine>) -> Result<u32, EngineError> {
    engine.count(&Prompt::new(Vec::new()))
}

#[tokio::test]
async fn a_model_is_loaded_when_a_turn_needs_it_and_another_makes_room() {
    let mut bench = Bench::patient(3, 2);
    assert_eq!((bench.memory.models.load(SeqCst), bench.memory.most.load(SeqCst)), (2, 2));
    // A model's properties are known without it.
    let names: Vec<_> = bench.engines.iter().map(|engine| engine.info().name.clone()).collect();
    assert_eq!(names, ["fake-0", "fake-1", "fake-2"]);
    assert_eq!((count(&bench.engines[1]), count(&bench.engines[2])), (Ok(7), Err(EngineError::NotLoaded)));
    bench.now_ms.store(1, SeqCst);
    let first = bench.engines[0].hold().await.unwrap();
    let third = bench.engines[2].clone();
    let waiting = tokio::spawn(async move { third.hold().await });
    assert_eq!(bench.begun.recv().await, Some(2));
    // During the load, the others' turns continue.
    assert_eq!(count(&bench.engines[0]), Ok(7));
    assert!(bench.engines[0].hold().now_or_never().is_some());
    assert_eq!(count(&bench.engines[1]), Err(EngineError::NotLoaded), "it made room");
    bench.go_on.send(true).unwrap();
    let hold = waiting.await.unwrap().unwrap();
    assert_eq!(count(&bench.engines[2]), Ok(7));
    assert_eq!(bench.memory.most.load(SeqCst), 2);
    drop((first, hold));
    bench.engines[0].shutdown();
    assert_eq!(bench.memory.models.load(SeqCst), 0);
    assert!(matches!(bench.engines[1].hold().await, Err(EngineError::ShutDown)));
    assert_eq!(count(&bench.engines[0]), Err(EngineError::ShutDown));
}

#[tokio::test]
async fn a_turn_that_waits_too_long_gets_the_reason_and_leaves_nothing() {
    let bench = Bench::new(2, 1, Duration::ZERO);
    let hold = bench.engines[0].hold().await.unwrap();
    assert!(matches!(bench.engines[1].hold().await, Err(EngineError::NoRoom { .. })));
    assert_eq!(count(&bench.engines[0]), Ok(7));
    // Nothing blocks the next turn for the loaded model.
    assert!(bench.engines[0].hold().await.is_ok());
    drop(hold);
    for engine in &bench.engines {
        engine.shutdown();
    }
    assert_eq!(bench.memory.models.load(SeqCst), 0);
}

#[tokio::test]
async fn a_turn_that_gives_up_at_any_moment_leaves_nothing_behind() {
    // Three moments: while others hold the room; during the load; between the load and the hold.
    for moment in 0..3 {
        let mut bench = Bench::patient(2, 1);
        let mut hold = Some(bench.engines[0].hold().await.unwrap());
        let other = bench.engines[1].clone();
        let mut waiting = Box::pin(other.hold());
        assert!((&mut waiting).now_or_never().is_none());
        if moment > 0 {
            drop(hold.take());
            assert_eq!(bench.begun.recv().await, Some(1));
        }
        if moment > 1 {
            bench.go_on.send(true).unwrap();
            bench.until_taken(1).await;
        }
        drop(waiting);
        drop(hold);
        if moment == 1 {
            // The begun load continues, and its model is then idle.
            bench.go_on.send(true).unwrap();
            bench.until_taken(1).await;
        }
        bench.check_nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_load_the_budget_holds_everybody_is_served_and_nothing_is_left() {
    let bench = Bench::patient(3, 2);
    for _ in 0..10_000 {
        bench.go_on.send(true).unwrap();
    }
    let mut turns = tokio::task::JoinSet::new();
    for turn in 0..300usize {
        let engine = bench.engines[turn * 7 % 3].clone();
        turns.spawn(async move {
            if turn % 5 == 0 {
                // Gives up after some steps.
                let mut waiting = Box::pin(engine.hold());
                for _ in 0..turn % 7 {
                    if (&mut waiting).now_or_never().is_some() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                return;
            }
            let hold = engine.hold().await.unwrap();
            let counting = engine.clone();
            let counted = tokio::task::spawn_blocking(move || count(&counting)).await.unwrap();
            assert_eq!(counted, Ok(7));
            drop(hold);
        });
    }
    while let Some(turn) = turns.join_next().await {
        turn.unwrap();
    }
    assert!(bench.memory.most.load(SeqCst) <= 2);
    bench.check_nothing_is_left().await;
}

#[tokio::test]
async fn a_failed_load_is_reported_and_retried() {
    let mut bench = Bench::patient(2, 1);
    bench.go_on.send(false).unwrap();
    let failed = bench.engines[1].hold().await.unwrap_err();
    assert_eq!(failed, EngineError::LoadFailed { reason: "as the test says".to_owned() });
    assert_eq!(bench.begun.recv().await, Some(1));
    bench.go_on.send(true).unwrap();
    assert!(bench.engines[1].hold().await.is_ok());
}

#[tokio::test]
async fn idle_models_are_unloaded_when_their_time_comes_and_loaded_again() {
    let mut bench = Bench::patient(2, 2);
    let hold = bench.engines[0].hold().await.unwrap();
    bench.now_ms.store(60_000, SeqCst);
    // Every event wakes the thread that unloads idle models.
    drop(hold.clone());
    drop(bench.engines[0].hold().await.unwrap());
    bench.until_taken(1).await;
    assert_eq!((count(&bench.engines[0]), count(&bench.engines[1])), (Ok(7), Err(EngineError::NotLoaded)));
    drop(hold);
    bench.now_ms.store(120_000, SeqCst);
    bench.go_on.send(true).unwrap();
    drop(bench.engines[1].hold().await.unwrap());
    bench.until_taken(1).await;
    assert_eq!((count(&bench.engines[0]), count(&bench.engines[1])), (Err(EngineError::NotLoaded), Ok(7)));
}

#[test]
fn refuses_what_never_fits_what_does_not_load_and_what_is_there_twice() {
    let memory = Arc::new(Memory::default());
    let open_these = |members| {
        let limits = SetLimits { budget_bytes: Some(5 << 20), idle: None, wait: MODEL_WAIT };
        open(members, limits, Arc::new(|| 0), Arc::new(Silent)).map(|engines| engines.len())
    };
    let fake = |name: &'static str, file: &'static str, bytes| {
        let memory = memory.clone();
        Member { name: name.to_owned(), bytes, load: Box::new(move || Ok(Fake::load(file, &memory))) }
    };
    assert_eq!(open_these(vec![fake("a", "a", 3 << 20), fake("b", "b", 3 << 20)]).unwrap(), 2);
    let large = open_these(vec![fake("a", "a", 1), fake("large", "b", 6 << 20)]).unwrap_err().to_string();
    assert!(large.contains("the model large takes about 6 MB, and model_memory_mb is 5"), "{large}");
    let same = open_these(vec![fake("a", "a", 1), fake("b", "a", 1)]).unwrap_err().to_string();
    assert!(same.contains("a and b are the same file"), "{same}");
    let broken: Loader = Box::new(|| Err(EngineError::LoadFailed { reason: "broken".to_owned() }));
    let broken = Member { name: "c".to_owned(), bytes: 1, load: broken };
    assert!(matches!(open_these(vec![broken]), Err(SetError::Load { name, .. }) if name == "c"));
}

struct Silent;

impl SetObserver for Silent {}

#[tokio::test]
async fn a_file_that_became_another_model_is_not_served() {
    let (memory, loads) = (Arc::new(Memory::default()), AtomicUsize::new(0));
    let changing = {
        let memory = memory.clone();
        let load: Loader = Box::new(move || {
            let file = if loads.fetch_add(1, SeqCst) == 0 { "before" } else { "after" };
            Ok(Fake::load(file, &memory))
        });
        Member { name: "changing".to_owned(), bytes: 1, load }
    };
    let other: Loader = Box::new({
        let memory = memory.clone();
        move || Ok(Fake::load("other", &memory))
    });
    let other = Member { name: "other".to_owned(), bytes: 1, load: other };
    let limits = SetLimits { budget_bytes: Some(1), idle: None, wait: MODEL_WAIT };
    let engines = open(vec![other, changing], limits, Arc::new(|| 0), Arc::new(Silent)).unwrap();
    let failed = engines[1].hold().await.unwrap_err();
    assert!(failed.to_string().contains("another model than at the start"), "{failed}");
    engines[0].shutdown();
    assert_eq!(memory.models.load(SeqCst), 0);
}
