//! Requests on a model that computes one sequence at a time, in order of arrival.
//!
//! For models of other libraries. Requests share nothing, and nothing is kept for later requests. The model
//! defines whether results are the same elsewhere.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use zeroize::Zeroizing;

use super::{
    BatchOptions,
    answer::guarded,
    batcher::Steps,
    generation::{Generation, end_if},
    request::{BatchError, Finish, Request},
    scheduler::{Bounds, Load, StepOutcome, StepRows},
};

/// A model that computes one sequence at a time.
pub trait Solo: Send {
    /// Tokens of the vocabulary, and the number of logits.
    fn vocabulary(&self) -> usize;

    /// Maximum number of tokens of a sequence.
    fn context(&self) -> usize;

    /// Bytes of the keys and values of one token.
    fn token_bytes(&self) -> usize;

    /// How many prompt tokens to append next, with `remaining` left after `position`. The scheduler notices a
    /// cancelled request between two such steps.
    fn chunk(&self, position: usize, remaining: usize) -> usize;

    /// Appends tokens to the sequence of `position` tokens, and returns the logits after the last one.
    /// Position 0 begins a new sequence.
    ///
    /// # Errors
    /// The library's message, which must not quote the tokens. The sequence is then unusable.
    fn append(&mut self, tokens: &[u32], position: usize) -> Result<Zeroizing<Vec<f32>>, String>;

    /// Frees the memory of the sequence.
    fn forget(&mut self);
}

/// The running request.
struct SoloRequest {
    generation: Generation,
    /// How many of its tokens have been computed.
    computed: usize,
}

/// Runs one request at a time: see the module.
pub(super) struct SoloScheduler {
    model: Box<dyn Solo>,
    options: BatchOptions,
    bounds: Bounds,
    waiting: VecDeque<Generation>,
    running: Option<SoloRequest>,
}

impl SoloScheduler {
    /// `options` must be bounded already.
    pub(super) fn new(model: Box<dyn Solo>, options: BatchOptions, kv_budget: usize) -> Self {
        let bounds = Bounds::of_solo(model.as_ref(), kv_budget);
        Self { model, options, bounds, waiting: VecDeque::new(), running: None }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Ends requests that must end.
    fn reap(&mut self, now: Instant) {
        let stall = self.options.stall;
        if let Some(SoloRequest { generation: one, .. }) = &mut self.running
            && !end_if(one.look(stall, now), &mut one.answer)
        {
            self.drop_running();
        }
        self.waiting.retain_mut(|one| end_if(one.look(Duration::MAX, now), &mut one.answer));
    }

    /// Drops the running request, and the model's state of it.
    fn drop_running(&mut self) {
        self.running = None;
        // If the model panics here, the next request still begins at position 0.
        let _ = guarded(|| self.model.forget());
    }

    fn admit(&mut self, now: Instant) {
        while self.running.is_none()
            && let Some(mut generation) = self.waiting.pop_front()
        {
            let finish = generation.begin(0, self.options.stall, now);
            if end_if(finish, &mut generation.answer) {
                self.running = Some(SoloRequest { generation, computed: 0 });
            }
        }
    }

    /// Computes the running request's next tokens. After its last prompt token, lets it choose.
    fn advance(&mut self, clock: &dyn Fn() -> Instant) -> Option<StepOutcome> {
        let Self { model, running, .. } = self;
        let SoloRequest { generation, computed } = running.as_mut()?;
        if generation.room == 0 {
            return None;
        }
        let (position, prefills) = (*computed, generation.is_prefilling());
        let remaining = generation.tokens.len() - position;
        let count = if prefills { model.chunk(position, remaining).clamp(1, remaining) } else { remaining };
        let tokens = &generation.tokens[position..position + count];
        let logits = guarded(|| model.append(tokens, position)).and_then(|logits| {
            let logits = logits.map_err(|reason| BatchError::Model { reason })?;
            let (found, wanted) = (logits.len(), model.vocabulary());
            if found != wanted {
                let reason = format!("{found} logits for a vocabulary of {wanted}");
                return Err(BatchError::Model { reason });
            }
            Ok(logits)
        });
        *computed += count;
        let finish = match logits {
            Err(error) => Some(Finish::Failed(error)),
            Ok(logits) if *computed == generation.tokens.len() => generation.choose(&logits, clock),
            Ok(_) => None,
        };
        if !end_if(finish, &mut generation.answer) {
            self.drop_running();
        }
        let rows = if prefills {
            StepRows { prefilled: count, ..StepRows::default() }
        } else {
            StepRows { decoded: count, ..StepRows::default() }
        };
        Some(StepOutcome::Stepped(rows))
    }
}

impl Steps for SoloScheduler {
    fn accept(&mut self, request: Request) -> Result<(), (Box<Request>, BatchError)> {
        if let Err(error) = self.bounds.check(&request) {
            return Err((Box::new(request), error));
        }
        // The queue has their order.
        self.waiting.push_back(Generation::new(0, request));
        Ok(())
    }

    fn fail_all(&mut self, error: &BatchError) {
        let finish = || Finish::Failed(error.clone());
        if let Some(SoloRequest { mut generation, .. }) = self.running.take() {
            generation.answer.finish(finish());
        }
        self.waiting.drain(..).for_each(|mut one| one.answer.finish(finish()));
    }

    fn load(&self) -> Load {
        let computed = self.running.as_ref().map_or(0, |one| one.computed);
        Load {
            running: usize::from(self.running.is_some()),
            waiting: self.waiting.len(),
            kv_bytes: computed * self.model.token_bytes(),
            cached_bytes: 0,
            kv_budget: self.bounds.budget(),
        }
    }

    fn step(&mut self, clock: &dyn Fn() -> Instant) -> StepOutcome {
        let now = clock();
        self.reap(now);
        self.admit(now);
        let nothing = if self.running.is_none() { StepOutcome::Idle } else { StepOutcome::Paused };
        self.advance(clock).unwrap_or(nothing)
    }
}
