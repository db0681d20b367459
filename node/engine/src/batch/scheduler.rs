//! The rows of each step, and the admission of requests.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use zeroize::Zeroize as _;

use super::{
    BatchOptions,
    active_request::{ActiveRequest, Work},
    answer::guarded,
    batcher::Steps,
    draft::Drafter,
    generation::{Generation, end_if},
    prefix::PrefixCache,
    request::{BatchError, Finish, Request},
    solo::Solo,
};
use crate::{Chunk, Model, Sequence, kv::KV_BLOCK, model::Logits};

/// Guesses fill a step up to this many decode rows. Up to this number, products read the weights' tiles
/// directly, which costs least per row. With this many generating sequences, guesses gain nothing.
const MOST_GUESSING_ROWS: usize = 8;

/// Maximum number of a step's prompt tokens with logits: those of 128 tokens and the largest vocabulary in use are
/// 128 megabytes.
const MOST_SCORED_ROWS: usize = 128;

/// Upper limit for the count of passed-over steps: no prompt has as many chunks.
const MAX_PASSED: usize = 1 << 24;

/// Limits that a request must respect, from the model and its budget.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    vocabulary: usize,
    context: usize,
    block_bytes: usize,
    budget: usize,
}

impl Bounds {
    pub(super) fn of(model: &Model) -> Self {
        Self {
            vocabulary: model.vocabulary(),
            context: model.config().context,
            block_bytes: model.kv().shape().block_bytes(),
            budget: model.kv().budget(),
        }
    }

    /// The limits for a model that computes one sequence at a time, without blocks.
    pub(super) fn of_solo(model: &dyn Solo, budget: usize) -> Self {
        Self {
            vocabulary: model.vocabulary(),
            context: model.context(),
            block_bytes: model.token_bytes().saturating_mul(KV_BLOCK),
            budget,
        }
    }

    /// Bytes that keys and values may take.
    pub(super) fn budget(&self) -> usize {
        self.budget
    }

    /// Blocks for this many tokens.
    fn blocks(tokens: usize) -> usize {
        tokens.div_ceil(KV_BLOCK)
    }

    /// Maximum number of blocks kept for later.
    fn cached_blocks(&self, options: &BatchOptions) -> usize {
        options.cache_bytes.min(self.budget) / self.block_bytes.max(1)
    }

    /// Refuses a request that can never be computed.
    pub(super) fn check(&self, request: &Request) -> Result<(), BatchError> {
        if request.prompt.len() <= request.scored || request.max_tokens == 0 {
            return Err(BatchError::Empty);
        }
        let tokens = request.prompt.len().saturating_add(request.max_tokens);
        if tokens > self.context {
            return Err(BatchError::TooLong { tokens, context: self.context });
        }
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= self.vocabulary) {
            return Err(BatchError::Token { token: *token, vocabulary: self.vocabulary });
        }
        let wanted = Self::blocks(tokens).saturating_mul(self.block_bytes);
        if wanted > self.budget {
            return Err(BatchError::NeverFits { wanted, budget: self.budget });
        }
        Ok(())
    }
}

/// Rows of a step, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRows {
    /// Sequences that generate.
    pub decoded: usize,
    /// Guesses that were checked.
    pub drafted: usize,
    /// Tokens of prompts.
    pub prefilled: usize,
}

/// The result of [`Scheduler::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// There are no requests.
    Idle,
    /// All requests wait: for their own readers, or for other requests that do.
    Paused,
    /// A step was made.
    Stepped(StepRows),
}

/// The number of requests, and the memory that they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Admitted requests.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Bytes of all blocks.
    pub kv_bytes: usize,
    /// Bytes of blocks kept for later, including those in use now.
    pub cached_bytes: usize,
    /// Maximum size in bytes of all blocks.
    pub kv_budget: usize,
}

/// Requests on a model, step by step. See [`super`].
pub struct Scheduler {
    model: Model,
    options: BatchOptions,
    bounds: Bounds,
    waiting: VecDeque<Generation>,
    running: Vec<ActiveRequest>,
    cache: PrefixCache,
    next_number: u64,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    #[must_use]
    pub fn new(model: Model, options: BatchOptions) -> Self {
        let options = options.bounded();
        let bounds = Bounds::of(&model);
        let cache = PrefixCache::new(options.model_id, bounds.cached_blocks(&options), options.cache_idle);
        Self { model, options, bounds, waiting: VecDeque::new(), running: Vec::new(), cache, next_number: 0 }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The model, without the requests and the kept blocks.
    #[must_use]
    pub fn into_model(self) -> Model {
        self.model
    }

    /// Ends requests that must end, and frees their memory.
    fn reap(&mut self, now: Instant) {
        let stall = self.options.stall;
        self.running.retain_mut(|ActiveRequest { generation: one, .. }| {
            end_if(one.look(stall, now), &mut one.answer)
        });
        self.waiting.retain_mut(|one| end_if(one.look(Duration::MAX, now), &mut one.answer));
    }

    /// Admits requests in order, as long as there are free slots and all blocks that each may need.
    fn admit(&mut self, now: Instant) {
        while self.running.len() < self.options.slots
            && let Some(first) = self.waiting.front()
        {
            let session = first.session.as_ref();
            // The logits of kept blocks are not kept, so scored tokens are computed again.
            let unscored = &first.tokens[..first.prompt - first.scored];
            let found = session.map(|session| self.cache.find(session, unscored, now));
            let (found, computed) = found.unwrap_or_default();
            let blocks = Bounds::blocks(first.limit);
            if !self.make_room(blocks - found.len()) {
                return;
            }
            let Some(mut generation) = self.waiting.pop_front() else { return };
            let sequence = Sequence::from_blocks(self.model.kv(), found, computed);
            let finish = generation.begin(sequence.len(), self.options.stall, now);
            if end_if(finish, &mut generation.answer) {
                let draft = Drafter::default();
                self.running.push(ActiveRequest { generation, sequence, blocks, draft, passed_over: 0 });
            }
        }
    }

    /// Whether this many more blocks fit; evicts kept blocks if necessary.
    fn make_room(&mut self, blocks: usize) -> bool {
        let outstanding: usize = self.running.iter().map(ActiveRequest::outstanding).sum();
        let all = self.bounds.budget / self.bounds.block_bytes.max(1);
        let used = self.model.kv().used() / self.bounds.block_bytes.max(1);
        let wanted = (used + outstanding + blocks).saturating_sub(all);
        if wanted > self.cache.evictable() {
            return false;
        }
        (0..wanted).all(|_| self.cache.evict())
    }

    /// Plans each running request's part in the next step.
    fn plan(&mut self) -> (Vec<Work>, StepRows) {
        let mut works: Vec<Work> = self.running.iter().map(|_| Work::Idle).collect();
        let decoded = self.running.iter().filter(|one| one.decodes()).count();
        let mut rows = StepRows { decoded, ..StepRows::default() };
        let mut spare =
            if self.options.speculate { MOST_GUESSING_ROWS.saturating_sub(rows.decoded) } else { 0 };
        for (work, one) in works.iter_mut().zip(&mut self.running).filter(|(_, one)| one.decodes()) {
            *work = one.decode(spare);
            if let Work::Decode(tokens) = work {
                spare -= tokens.len() - 1;
                rows.drafted += tokens.len() - 1;
            }
        }

        // The shortest prompt goes first. A passed-over request moves forward with each step, so that each
        // gets its turn.
        let chunk = self.options.chunk;
        let mut prefilling: Vec<usize> =
            (0..self.running.len()).filter(|at| self.running[*at].prefills()).collect();
        prefilling.sort_by_key(|at| {
            let one = &self.running[*at];
            let after = one.remaining().div_ceil(chunk).saturating_add(MAX_PASSED);
            (after.saturating_sub(one.passed_over.min(MAX_PASSED)), one.generation.number)
        });
        let mut scorable = MOST_SCORED_ROWS;
        for at in prefilling {
            let one = &mut self.running[at];
            let count = one.remaining().min(chunk - rows.prefilled).min(one.prefillable(scorable));
            if count > 0 {
                scorable -= count.saturating_sub(one.prefillable(0));
                works[at] = Work::Prefill(count);
                rows.prefilled += count;
            } else {
                one.passed_over += 1;
            }
        }
        (works, rows)
    }

    fn compute(&mut self, works: &[Work]) -> Result<Logits, BatchError> {
        let Self { model, running, .. } = self;
        let mut chunks: Vec<Chunk<'_>> =
            running.iter_mut().zip(works).filter_map(|(one, work)| one.chunk(work)).collect();
        guarded(|| model.step(&mut chunks).map_err(BatchError::from))?
    }

    /// Lets each request choose from its rows, and ends those that are over.
    fn deliver(&mut self, works: &[Work], mut logits: Logits, clock: &dyn Fn() -> Instant) {
        let Self { running, cache, .. } = self;
        let mut rows = logits.rows();
        let mut works = works.iter();
        running.retain_mut(|one| {
            let Some(work) = works.next() else { return true };
            let finish = one.take(work, &mut rows, clock);
            let is_read = matches!(work, Work::Prefill(_)) && one.remaining() == 0;
            let is_whole = matches!(finish, Some(Finish::End | Finish::Length));
            if let Some(session) = one.generation.session.as_ref()
                && (is_read && finish.is_none() || is_whole)
            {
                let seen = &one.generation.tokens[..one.sequence.len()];
                let blocks = if is_whole { one.sequence.blocks() } else { one.sequence.full_blocks() };
                cache.keep(session, seen, blocks, clock());
            }
            end_if(finish, &mut one.generation.answer)
        });
        drop(rows);
        logits.zeroize();
    }
}

impl Steps for Scheduler {
    fn accept(&mut self, request: Request) -> Result<(), (Box<Request>, BatchError)> {
        if let Err(error) = self.bounds.check(&request) {
            return Err((Box::new(request), error));
        }
        if self.waiting.len() + self.running.len() >= self.options.queue + self.options.slots {
            return Err((Box::new(request), BatchError::Busy { limit: self.options.queue }));
        }
        self.waiting.push_back(Generation::new(self.next_number, request));
        self.next_number += 1;
        Ok(())
    }

    fn fail_all(&mut self, error: &BatchError) {
        for mut one in self.running.drain(..) {
            one.generation.answer.finish(Finish::Failed(error.clone()));
        }
        self.waiting.drain(..).for_each(|mut one| one.answer.finish(Finish::Failed(error.clone())));
    }

    fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_bytes: self.model.kv().used(),
            cached_bytes: self.cache.len() * self.bounds.block_bytes,
            kv_budget: self.bounds.budget,
        }
    }

    fn step(&mut self, clock: &dyn Fn() -> Instant) -> StepOutcome {
        let now = clock();
        self.reap(now);
        self.cache.expire(now);
        self.admit(now);
        let (works, rows) = self.plan();
        if rows == StepRows::default() {
            let is_idle = self.running.is_empty() && self.waiting.is_empty();
            return if is_idle { StepOutcome::Idle } else { StepOutcome::Paused };
        }
        match self.compute(&works) {
            Ok(logits) => self.deliver(&works, logits, clock),
            // The state of the sequences in the failed step is unknown.
            Err(error) => {
                for (mut one, work) in std::mem::take(&mut self.running).into_iter().zip(works) {
                    if matches!(work, Work::Idle) {
                        self.running.push(one);
                    } else {
                        one.generation.answer.finish(Finish::Failed(error.clone()));
                    }
                }
            }
        }
        StepOutcome::Stepped(rows)
    }
}

impl Logits {
    fn zeroize(&mut self) {
        self.numbers.zeroize();
    }
}
