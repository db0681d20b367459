//! Many requests on one model: the order of computation and the use of memory.
//!
//! A [`Scheduler`] owns a [`Model`], and one thread drives it step by step. Its behaviour depends only on the
//! requests and on the time passed in. A [`Batcher`] owns that thread and a bounded queue in front of it.
//!
//! Each step computes:
//!
//! - the next row of every generating sequence;
//! - rows that check guessed tokens (`draft`);
//! - at most [`BatchOptions::chunk`] tokens of prompts.
//!
//! So a long prompt never delays another sequence's next token by more than a chunk. A request is admitted
//! only when all blocks that it may need fit into the budget. So no running request is ever suspended for
//! lack of memory. Requests reuse blocks of earlier requests of the same session (`prefix`).
//!
//! Batching does not change a bit of any logits: see [`Model::step`].
//!
//! A model of another library, which computes one sequence at a time, has the same interface ([`Solo`]).
//!
//! [`Model`]: crate::Model
//! [`Model::step`]: crate::Model::step

mod active_request;
mod answer;
mod batcher;
mod draft;
mod generation;
mod prefix;
mod request;
mod scheduler;
mod solo;

use std::time::Duration;

pub use batcher::{Batcher, Steps};
pub use request::{BatchError, Choice, Chooser, Finish, Request, SessionKey, Sink, Stats};
pub use scheduler::{Load, Scheduler, StepOutcome, StepRows};
pub use solo::Solo;

/// Maximum number of requests that run at once: the decode rows of a step, and the logits that it holds.
pub const MAX_SLOTS: usize = 64;

/// Maximum number of prompt tokens of a step. More only delay others.
pub const MAX_CHUNK: usize = 1_024;

/// Maximum number of requests that may wait: each holds a prompt in memory.
pub const MAX_QUEUE: usize = 4_096;

/// How requests share a model. No option changes the results.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// Requests that run at once, from 1 to [`MAX_SLOTS`]. From 8 on, a step's time grows in proportion to
    /// its rows.
    pub slots: usize,
    /// Requests that may wait, beyond the slots; at most [`MAX_QUEUE`]. A further request is refused with
    /// [`BatchError::Busy`].
    pub queue: usize,
    /// Prompt tokens of one step, from 1 to [`MAX_CHUNK`]: the longest delay of another sequence's next
    /// token.
    pub chunk: usize,
    /// Whether to guess tokens and check several in one step.
    pub speculate: bool,
    /// Bytes of the model's budget that keep blocks for a session's next request; 0 keeps none. Requests that
    /// need the memory evict these blocks.
    pub cache_bytes: usize,
    /// How long unused blocks are kept.
    pub cache_idle: Duration,
    /// How long a request waits for its reader before it ends with [`BatchError::Stalled`].
    pub stall: Duration,
    /// Identifies the model, for example by its file's hash: part of the key under which blocks are kept.
    pub model_id: [u8; 32],
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            slots: 8,
            queue: 64,
            chunk: 192,
            speculate: true,
            cache_bytes: usize::MAX,
            cache_idle: Duration::from_secs(600),
            stall: Duration::from_secs(60),
            model_id: [0; 32],
        }
    }
}

impl BatchOptions {
    /// The same options, clamped to the limits.
    fn bounded(self) -> Self {
        Self {
            slots: self.slots.clamp(1, MAX_SLOTS),
            queue: self.queue.min(MAX_QUEUE),
            chunk: self.chunk.clamp(1, MAX_CHUNK),
            ..self
        }
    }
}
