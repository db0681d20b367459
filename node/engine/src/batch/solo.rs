//! Requests on a model that computes one sequence at a time: one after the other, in the order of their arrival.
//!
//! For models of other libraries. Nothing is shared between requests and nothing is kept for later ones; whether results are
//! the same elsewhere is for the model to say.

use std::{collections::VecDeque, time::Instant};

use zeroize::Zeroizing;

use super::{
    BatchOptions,
    answer::guarded,
    batcher::Steps,
    generation::Generation,
    request::{BatchError, Finish, Request, RequestId, SessionKey},
    scheduler::{Bounds, Load, Progress, StepRows},
    waiting::{Waiting, end_if, fail},
};

/// A model that computes one sequence at a time.
pub trait Solo: Send {
    /// Tokens of the vocabulary: so many logits there are.
    fn vocabulary(&self) -> usize;

    /// Tokens that a sequence may have.
    fn context(&self) -> usize;

    /// Bytes of the keys and values of one token.
    fn token_bytes(&self) -> usize;

    /// How many tokens of a prompt to append next, where `remaining` are left after `position`. A cancelled request is
    /// noticed between two such steps.
    fn chunk(&self, position: usize, remaining: usize) -> usize;

    /// Appends tokens to the sequence, which has `position` of them, and returns the logits after the last one. At position 0
    /// a new sequence begins.
    ///
    /// # Errors
    /// The library's message, which must have nothing of the tokens. The sequence is of no use any more then.
    fn append(&mut self, tokens: &[u32], position: usize) -> Result<Zeroizing<Vec<f32>>, String>;

    /// Lets go what is held of the sequence.
    fn forget(&mut self);
}

/// A request that is being computed.
struct Soloist {
    generation: Generation,
    /// How many of its tokens have been computed.
    computed: usize,
}

/// See the module.
pub(super) struct SoloScheduler {
    model: Box<dyn Solo>,
    options: BatchOptions,
    bounds: Bounds,
    waiting: VecDeque<Waiting>,
    running: Option<Soloist>,
    next_id: u64,
}

impl SoloScheduler {
    /// `options` are bounded already.
    pub fn new(model: Box<dyn Solo>, options: BatchOptions, kv_budget: usize) -> Self {
        let bounds = Bounds::of_solo(model.as_ref(), kv_budget);
        Self { model, options, bounds, waiting: VecDeque::new(), running: None, next_id: 0 }
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Ends what must end.
    fn reap(&mut self, now: Instant) {
        let stall = self.options.stall;
        if let Some(Soloist { generation: one, .. }) = &mut self.running
            && !end_if(one.look(stall, now), &mut one.answer, now)
        {
            self.rest();
        }
        self.waiting.retain_mut(|one| end_if(one.look(now), &mut one.answer, now));
    }

    /// Lets the request go that ran, and all that the model holds of it.
    fn rest(&mut self) {
        self.running = None;
        // What panics while it forgets is asked to begin anew by the next request.
        let _ = guarded(|| self.model.forget());
    }

    fn admit(&mut self, now: Instant) {
        while self.running.is_none()
            && let Some(first) = self.waiting.pop_front()
        {
            let Some(mut generation) = first.begin(0, now) else { continue };
            let finish = generation.look(self.options.stall, now);
            if end_if(finish, &mut generation.answer, now) {
                self.running = Some(Soloist { generation, computed: 0 });
            }
        }
    }

    /// Computes the next tokens of the one that runs, and lets it choose if they were its last ones.
    fn advance(&mut self, clock: &dyn Fn() -> Instant) -> Option<Progress> {
        let Self { model, running, .. } = self;
        let Soloist { generation, computed } = running.as_mut()?;
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
        if !end_if(finish, &mut generation.answer, clock()) {
            self.rest();
        }
        let rows = if prefills {
            StepRows { prefilled: count, ..StepRows::default() }
        } else {
            StepRows { decoded: count, ..StepRows::default() }
        };
        Some(Progress::Stepped(rows))
    }
}

impl Steps for SoloScheduler {
    fn accept(&mut self, request: Request, now: Instant) -> Result<RequestId, (Box<Request>, BatchError)> {
        if let Err(error) = self.bounds.check(&request) {
            return Err((Box::new(request), error));
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Waiting::new(id, request, now));
        Ok(id)
    }

    fn clear(&mut self, _session: &SessionKey) {}

    fn clear_all(&mut self) {}

    fn fail_all(&mut self, error: &BatchError, now: Instant) {
        if let Some(Soloist { mut generation, .. }) = self.running.take() {
            generation.answer.finish(Finish::Failed(error.clone()), now);
        }
        self.waiting.drain(..).for_each(|one| fail(one, error, now));
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

    fn step(&mut self, clock: &dyn Fn() -> Instant) -> Progress {
        let now = clock();
        self.reap(now);
        self.admit(now);
        let nothing = if self.running.is_none() { Progress::Idle } else { Progress::Paused };
        self.advance(clock).unwrap_or(nothing)
    }
}
