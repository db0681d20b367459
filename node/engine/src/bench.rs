//! Measures a model on this machine: tokens per second of prompts and of generation, and the memory used.
//!
//! Callers: `baton-node bench` and the example `bench`, which only read options and print. The measurement
//! covers [`Model::step`] alone, without choosing tokens, templates or texts.
//!
//! Users wait for wall-clock time, but it says little while other programs hold the cores. So [`Rate::own`]
//! is the rate by the calling thread's CPU time. With one thread, it is the speed of the code, whatever else
//! the machine does.

use std::time::Instant;

use crate::{Chunk, LoadError, Model, Sequence, StepError, threads::MAX_THREADS};

/// Prompt tokens in one step.
pub const CHUNK: usize = 512;

/// Maximum number of sequences at once: far beyond the number from which more gain nothing.
pub const MAX_BATCH: usize = 256;

/// Maximum number of repetitions: more do not improve the median.
pub const MAX_RUNS: usize = 101;

/// The measurement plan: each number of threads with each prompt length and each number of sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Threads, 1 to [`MAX_THREADS`].
    pub threads: Vec<usize>,
    /// Tokens of the prompts, at least 1.
    pub prompts: Vec<usize>,
    /// Sequences at once, 1 to [`MAX_BATCH`].
    pub batches: Vec<usize>,
    /// Tokens to generate for each sequence, at least 1.
    pub generated: usize,
    /// How often each prompt is computed, 1 to [`MAX_RUNS`].
    pub runs: usize,
}

/// Why a measurement failed or was not completed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A number of the plan is out of range.
    #[error("{0}")]
    Range(String),
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model refused a step: the cache's budget is too small for the plan.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The median of several measurements, by the clock.
    pub median: f64,
    /// The best measurement.
    pub best: f64,
    /// By the CPU time of the calling thread, whatever else the machine did; none where the system does not
    /// report it.
    pub own: Option<f64>,
}

/// The results of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Threads.
    pub threads: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Sequences at once.
    pub batch: usize,
    /// Computing a prompt, in chunks of [`CHUNK`] tokens.
    pub prefill: Rate,
    /// Generation after it, the tokens of all sequences together.
    pub decode: Rate,
}

/// Progress of a measurement.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Tokens have gone through the model.
    Tokens {
        /// So far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A case is complete.
    Case(&'a Case),
}

/// Memory of this process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes held now.
    pub resident: u64,
    /// The largest value so far.
    pub peak: u64,
}

impl Plan {
    /// Checks the plan against a model with this context.
    ///
    /// # Errors
    /// [`BenchError::Range`] names the first number out of range.
    pub fn check(&self, context: usize) -> Result<(), BenchError> {
        let within = |what, value: usize, least: usize, most: usize| {
            let text = || format!("{what} must be {least} to {most}: {value} is not");
            if (least..=most).contains(&value) { Ok(()) } else { Err(BenchError::Range(text())) }
        };
        for (what, values, most) in [
            ("how many numbers of threads there are", &self.threads, MAX_THREADS),
            ("how many lengths of prompts there are", &self.prompts, MAX_THREADS),
            ("how many numbers of sequences there are", &self.batches, MAX_THREADS),
        ] {
            within(what, values.len(), 1, most)?;
        }
        within("tokens to generate", self.generated, 1, context.saturating_sub(1))?;
        within("runs", self.runs, 1, MAX_RUNS)?;
        self.threads.iter().try_for_each(|value| within("threads", *value, 1, MAX_THREADS))?;
        self.batches.iter().try_for_each(|value| within("sequences at once", *value, 1, MAX_BATCH))?;
        let longest = context - self.generated;
        self.prompts.iter().try_for_each(|value| within("tokens of a prompt", *value, 1, longest))
    }

    /// Maximum number of positions in use at the same time, each sequence rounded up to whole blocks: the
    /// size of the cache.
    #[must_use]
    pub fn positions(&self) -> usize {
        let largest = |values: &[usize]| values.iter().copied().max().unwrap_or(0);
        let length = (largest(&self.prompts).saturating_add(self.generated))
            .checked_next_multiple_of(crate::kv::KV_BLOCK)
            .unwrap_or(usize::MAX);
        largest(&self.batches).saturating_mul(length)
    }

    /// Tokens that go through the model in all.
    fn tokens(&self) -> usize {
        let batches: usize = self.batches.iter().sum();
        let of_prompt = |prompt: &usize| (1 + self.runs + batches) * prompt + batches * self.generated;
        self.threads.len() * self.prompts.iter().map(of_prompt).sum::<usize>()
    }
}

/// The prompt of sequence `number`: the same tokens on every machine. No two sequences begin alike.
#[must_use]
pub fn prompt(number: usize, length: usize, vocabulary: usize) -> Vec<u32> {
    let token = |at: u32| (at.wrapping_mul(2_654_435_761) >> 8) as usize % vocabulary.max(1);
    let tokens = (0..length).map(|at| token(u32::try_from(at).unwrap_or(u32::MAX)));
    let first = number % vocabulary.max(1);
    tokens
        .enumerate()
        .map(|(at, token)| u32::try_from(if at == 0 { first } else { token }).unwrap_or(0))
        .collect()
}

/// Measures each case of the plan in turn, and reports to `progress`. Each prompt runs once before it is
/// measured. The model is loaded anew for each number of threads, because that number decides the layout of
/// its weights. Only one model is loaded at a time.
///
/// # Errors
/// [`BenchError`]. Cases already reported to `progress` stay valid.
pub fn measure(
    load: &mut dyn FnMut(usize) -> Result<Model, LoadError>,
    plan: &Plan,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Case>, BenchError> {
    // Refuse a plan that no model can satisfy before loading one.
    plan.check(usize::MAX)?;
    let (mut done, mut cases) = (0, Vec::new());
    for threads in &plan.threads {
        let mut model = load(*threads)?;
        plan.check(model.config().context)?;
        let mut meter = Meter { model: &mut model, progress, done, total: plan.tokens() };
        for length in &plan.prompts {
            let prefill = meter.prefill(*length, plan.runs)?;
            for batch in &plan.batches {
                let decode = meter.decode(*length, *batch, plan.generated)?;
                let case = Case { threads: *threads, prompt: *length, batch: *batch, prefill, decode };
                (meter.progress)(Progress::Case(&case));
                cases.push(case);
            }
        }
        done = meter.done;
    }
    Ok(cases)
}

/// This process's memory; none where the system does not report it.
#[must_use]
pub fn memory() -> Option<Memory> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
}

/// A model under measurement.
struct Meter<'a> {
    model: &'a mut Model,
    progress: &'a mut dyn FnMut(Progress<'_>),
    done: usize,
    total: usize,
}

impl Meter<'_> {
    fn count(&mut self, tokens: usize) {
        self.done += tokens;
        (self.progress)(Progress::Tokens { done: self.done, total: self.total });
    }

    fn prefill(&mut self, length: usize, runs: usize) -> Result<Rate, BenchError> {
        let tokens = prompt(0, length, self.model.vocabulary());
        let (mut times, mut own) = (Vec::new(), Vec::new());
        for run in 0..=runs {
            let mut sequence = self.model.sequence();
            let timer = Timer::start();
            self.read(&mut sequence, &tokens)?;
            // The first run allocates the buffers.
            if run > 0 {
                times.push(timer.wall());
                own.extend(timer.own());
            }
        }
        Ok(rate(length, times, median(own)))
    }

    fn decode(&mut self, length: usize, batch: usize, generated: usize) -> Result<Rate, BenchError> {
        let (mut sequences, mut next) = (Vec::new(), Vec::new());
        for number in 0..batch {
            let tokens = prompt(number, length, self.model.vocabulary());
            let mut sequence = self.model.sequence();
            next.push(self.read(&mut sequence, &tokens)?);
            sequences.push(sequence);
        }
        let (mut times, mut own) = (Vec::new(), Some(0.0));
        for _ in 0..generated {
            let mut chunks: Vec<Chunk<'_>> = sequences
                .iter_mut()
                .zip(&next)
                .map(|(sequence, token)| Chunk { sequence, tokens: std::slice::from_ref(token), logits: 1 })
                .collect();
            let timer = Timer::start();
            let logits = self.model.step(&mut chunks)?;
            times.push(timer.wall());
            own = own.zip(timer.own()).map(|(sum, time)| sum + time);
            next = logits.rows().map(largest).collect();
            self.count(batch);
        }
        let own = own.map(|own| own / generated as f64);
        Ok(rate(batch, times, own))
    }

    /// Computes a prompt, and returns the likeliest next token.
    fn read(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<u32, StepError> {
        let mut best = 0;
        for tokens in tokens.chunks(CHUNK) {
            let logits = self.model.step(&mut [Chunk { sequence, tokens, logits: 1 }])?;
            best = logits.rows().next().map_or(0, largest);
            self.count(tokens.len());
        }
        Ok(best)
    }
}

/// The index of the largest number, the first of equals.
fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The rate of `tokens` in each of `times`; `own` is the calling thread's CPU time for as many.
fn rate(tokens: usize, times: Vec<f64>, own: Option<f64>) -> Rate {
    let per_second = |seconds: f64| tokens as f64 / seconds.max(f64::MIN_POSITIVE);
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    Rate {
        median: per_second(median(times).unwrap_or(f64::INFINITY)),
        best: per_second(best),
        own: own.filter(|own| *own > 0.0).map(per_second),
    }
}

/// Measures wall-clock time and this thread's CPU time.
struct Timer {
    start: Instant,
    own: Option<f64>,
}

impl Timer {
    fn start() -> Self {
        Self { own: computed(), start: Instant::now() }
    }

    fn wall(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn own(&self) -> Option<f64> {
        Some(computed()? - self.own?)
    }
}

/// CPU seconds of this thread; none where the system does not report them.
fn computed() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<u64>().ok()? as f64 / 1e9)
}

#[cfg(test)]
mod tests;
