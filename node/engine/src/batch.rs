//! Many requests on one model: who computes when, and out of which memory.
//!
//! A [`Scheduler`] owns a [`Model`] and is driven step by step by one thread; what it does depends on the requests and on
//! the time that it is given, on nothing else. A [`Batcher`] owns that thread and a bounded queue in front of it.
//!
//! Each step has the next row of every sequence that is generating, rows that check guessed tokens (`draft`), and at most
//! [`BatchOptions::chunk`] tokens of prompts: so a long prompt never delays another sequence's next token by more than a
//! chunk. A request is admitted only when all blocks it may need fit into the budget, so nothing that runs is ever put
//! aside for want of memory. Blocks of earlier requests of the same session are used again (`prefix`).
//!
//! None of it changes a bit of any logits: see [`Model::step`].
//!
//! A model of another library, which computes one sequence at a time, has the same door ([`Solo`]).
//!
//! [`Model`]: crate::Model
//! [`Model::step`]: crate::Model::step

mod answer;
mod batcher;
mod channel;
mod draft;
mod generation;
mod prefix;
mod request;
mod running;
mod scheduler;
mod solo;
mod waiting;

use std::time::Duration;

pub use batcher::Batcher;
pub use channel::{ChannelSink, Event, Events, channel};
pub use request::{
    BatchError, Cancel, Choice, Chooser, Finish, Greedy, Request, RequestId, SessionKey, Sink, Stats,
};
pub use scheduler::{Load, Progress, Scheduler, StepRows};
pub use solo::Solo;

/// Requests that run at once, at most: the decode rows of a step, and the logits that it holds.
pub const MAX_SLOTS: usize = 64;

/// Prompt tokens of a step, at most. More only delay others.
pub const MAX_CHUNK: usize = 1_024;

/// Requests that may wait, at most: each holds a prompt in memory.
pub const MAX_QUEUE: usize = 4_096;

/// How requests share a model. None of it changes the results.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// Requests that run at once; from 1 to [`MAX_SLOTS`]. From 8 on, a step's time grows in proportion to its rows.
    pub slots: usize,
    /// Requests that may wait besides those that could run; at most [`MAX_QUEUE`]. One more is refused as
    /// [`BatchError::Busy`].
    pub queue: usize,
    /// Prompt tokens of one step; from 1 to [`MAX_CHUNK`]. What another sequence's next token waits for at most.
    pub chunk: usize,
    /// Whether to guess tokens and check them together.
    pub speculate: bool,
    /// Bytes of blocks that are kept for a session's next request, out of the model's budget; 0 keeps none. They give
    /// way to requests that need the memory.
    pub cache_bytes: usize,
    /// How long blocks are kept that nobody used.
    pub cache_idle: Duration,
    /// How long a request waits for its reader before it ends with [`BatchError::Stalled`].
    pub stall: Duration,
    /// What the model is, such as the hash of its file: part of the key under which blocks are kept.
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
    /// The same, within the limits.
    fn bounded(self) -> Self {
        Self {
            slots: self.slots.clamp(1, MAX_SLOTS),
            queue: self.queue.min(MAX_QUEUE),
            chunk: self.chunk.clamp(1, MAX_CHUNK),
            ..self
        }
    }
}
