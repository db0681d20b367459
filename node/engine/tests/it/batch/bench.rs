//! A scheduler under test, and requests whose answers are recorded.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use baton_engine::{
    Model, Options,
    batch::{
        BatchError, BatchOptions, Choice, Chooser, Finish, Request, Scheduler, SessionKey, Sink, Stats,
        StepOutcome, StepRows, Steps as _,
    },
    gguf::{DType, GgufFile},
    kernels::Isa,
    language::{Sampler, Sampling},
};
use zeroize::Zeroizing;

use crate::support::{
    hash,
    synthetic::{Shape, open},
};

pub(super) const VOCABULARY: usize = 48;

/// The smallest possible model: its answers are noise, but as specific as a large model's.
pub(super) fn tiny() -> GgufFile {
    let mut shape = Shape::new("llama", &[DType::Q4_1, DType::Q8_0]);
    (shape.layers, shape.hidden, shape.heads, shape.kv_heads) = (2, 32, 2, 1);
    (shape.head_dim, shape.feed_forward, shape.vocabulary) = (16, 32, VOCABULARY);
    open(&shape.writer().finish())
}

pub(super) fn model(file: &GgufFile, blocks: usize) -> Model {
    let options = Options { threads: 1, isa: Isa::best(), kv_budget: 1 << 30 };
    let block = Model::from_file(file, &options).unwrap().kv().shape().block_bytes();
    Model::from_file(file, &Options { kv_budget: blocks * block, ..options }).unwrap()
}

/// The events that a request got.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct AnswerEvents {
    pub started: Vec<(usize, usize)>,
    pub tokens: Vec<u32>,
    /// The hash of each token's logits.
    pub hashes: Vec<u64>,
    pub finished: Vec<Finish>,
    pub stats: Stats,
}

/// A sink that records its events, and accepts as many tokens as `room` says.
#[derive(Clone)]
pub(super) struct Record {
    pub events: Arc<Mutex<AnswerEvents>>,
    pub room: Arc<AtomicUsize>,
    pub is_gone: Arc<AtomicUsize>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { events: Arc::default(), room: Arc::new(AtomicUsize::new(usize::MAX)), is_gone: Arc::default() }
    }

    pub(super) fn events(&self) -> AnswerEvents {
        self.events.lock().unwrap().clone()
    }

    pub(super) fn finish(&self) -> Option<Finish> {
        let events = self.events();
        assert!(events.finished.len() <= 1, "answered once");
        events.finished.first().cloned()
    }
}

impl Sink for Record {
    fn room(&mut self) -> Option<usize> {
        (self.is_gone.load(Ordering::SeqCst) == 0).then(|| self.room.load(Ordering::SeqCst))
    }

    fn started(&mut self, prompt: usize, cached: usize) {
        self.events.lock().unwrap().started.push((prompt, cached));
    }

    fn token(&mut self, token: u32, logits: &[f32]) {
        let room = self.room.load(Ordering::SeqCst);
        assert!(room > 0, "a token without room");
        if room < usize::MAX {
            self.room.store(room - 1, Ordering::SeqCst);
        }
        let mut events = self.events.lock().unwrap();
        assert!(events.finished.is_empty(), "a token after the end");
        events.tokens.push(token);
        events.hashes.push(hash(logits));
    }

    fn finished(self: Box<Self>, finish: Finish, stats: Stats) {
        let mut events = self.events.lock().unwrap();
        events.finished.push(finish);
        events.stats = stats;
    }
}

/// Chooses by logits and noise, or repeats the token after an earlier occurrence of the last two tokens.
/// Answers vary, repeat themselves as natural text does, and are the same each time.
#[derive(Clone)]
pub(super) struct Noisy(pub u64);

impl Chooser for Noisy {
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice {
        let mut random = crate::support::Random::new(self.0 ^ (tokens.len() as u64) << 32);
        let (earlier, last) = (&tokens[..tokens.len() - 1], &tokens[tokens.len().saturating_sub(2)..]);
        if random.below(4) > 0
            && let Some(at) = earlier.windows(2).rposition(|two| two == last)
        {
            return Choice::Token(tokens[at + 2]);
        }
        let noisy = logits.iter().map(|logit| logit + random.unit());
        let best = noisy.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        Choice::Token(best.0 as u32)
    }
}

/// Always chooses the token with the largest logit, the first of equals.
pub(super) struct Greedy;

impl Chooser for Greedy {
    fn choose(&mut self, _tokens: &[u32], logits: &[f32]) -> Choice {
        let greedy = Sampler::new(&Sampling::default());
        Choice::Token(greedy.sample(&mut logits.to_vec(), &[], 0).unwrap())
    }
}

pub(super) fn session(number: u8) -> SessionKey {
    SessionKey([number; 32])
}

/// A greedy request of session 0.
pub(super) fn request(prompt: &[u32], max_tokens: usize, record: &Record) -> Request {
    Request {
        session: Some(session(0)),
        prompt: Zeroizing::new(prompt.to_vec()),
        scored: 0,
        max_tokens,
        chooser: Box::new(Greedy),
        sink: Box::new(record.clone()),
    }
}

/// A scheduler with a manual clock.
pub(super) struct Bench {
    pub scheduler: Scheduler,
    block_bytes: usize,
    pub now: Instant,
}

impl Bench {
    /// A tiny model's scheduler, without speculation and without a cache.
    pub(super) fn new(blocks: usize, options: BatchOptions) -> Self {
        Self::with(model(&tiny(), blocks), options)
    }

    pub(super) fn with(model: Model, options: BatchOptions) -> Self {
        let block_bytes = model.kv().shape().block_bytes();
        Self { scheduler: Scheduler::new(model, options), block_bytes, now: Instant::now() }
    }

    pub(super) fn submit(&mut self, request: Request) -> Result<(), BatchError> {
        self.scheduler.accept(request).map_err(|(_, error)| error)
    }

    /// Submits a greedy request of session 0.
    pub(super) fn ask(&mut self, prompt: &[u32], max_tokens: usize) -> Record {
        let record = Record::new();
        self.submit(request(prompt, max_tokens, &record)).unwrap();
        record
    }

    pub(super) fn step(&mut self) -> StepOutcome {
        let now = self.now;
        let progress = self.scheduler.step(&move || now);
        let load = self.scheduler.load();
        assert!(load.kv_bytes <= load.kv_budget);
        progress
    }

    /// Makes a step that must compute rows.
    pub(super) fn rows(&mut self) -> StepRows {
        match self.step() {
            StepOutcome::Stepped(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn wait(&mut self, milliseconds: u64) {
        self.now += Duration::from_millis(milliseconds);
    }

    /// Steps until no work is left.
    pub(super) fn finish(&mut self) -> usize {
        for steps in 0..100_000 {
            match self.step() {
                StepOutcome::Stepped(_) => {}
                StepOutcome::Idle => return steps,
                StepOutcome::Paused => panic!("paused"),
            }
        }
        panic!("it never ends")
    }

    pub(super) fn used_blocks(&self) -> usize {
        self.scheduler.load().kv_bytes / self.block_bytes
    }
}

/// No cache, no guesses.
pub(super) fn plain() -> BatchOptions {
    BatchOptions { cache_bytes: 0, speculate: false, chunk: 16, ..BatchOptions::default() }
}
