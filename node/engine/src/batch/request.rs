//! What is asked for, and how it is answered.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use zeroize::{Zeroize, Zeroizing};

use crate::StepError;

/// Whose blocks they are: opaque, and the same for all requests of a session. Blocks are never used for another one.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(pub [u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

impl Drop for SessionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A request's number, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Ends a request within one token.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends it. What it held is freed before the next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What becomes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// It goes on with this token.
    Token(u32),
    /// It ends with this token.
    Last(u32),
    /// It is over, without another token.
    End,
    /// There is nothing to choose: the request fails with [`BatchError::NoChoice`].
    Nothing,
}

/// Chooses an answer's tokens. Called once for each token, in order, on the scheduler's thread.
///
/// It must depend on what it is given and on its own state alone, not on time or chance: that the same request has the
/// same answer rests on it. A panic ends the request, no other.
pub trait Chooser: Send {
    /// The token after `tokens` (the prompt and the answer so far), given the model's logits for it.
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice;
}

/// Always the token with the largest logit, the first one of equals.
#[derive(Debug, Clone, Default)]
pub struct Greedy {
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
}

impl Chooser for Greedy {
    fn choose(&mut self, _tokens: &[u32], logits: &[f32]) -> Choice {
        let mut best: Option<(u32, f32)> = None;
        for (token, logit) in (0..).zip(logits) {
            if best.is_none_or(|(_, largest)| *logit > largest) && !logit.is_nan() {
                best = Some((token, *logit));
            }
        }
        match best {
            Some((token, _)) if self.ends.contains(&token) => Choice::End,
            Some((token, _)) => Choice::Token(token),
            None => Choice::Nothing,
        }
    }
}

/// Where an answer goes. Called on the scheduler's thread, so it must never wait. A panic ends the request, no other.
pub trait Sink: Send {
    /// How many tokens it takes now, without waiting; `None` if nobody reads any more, which ends the request as
    /// [`Finish::Cancelled`]. A request whose sink takes nothing is put aside until it does, and no other is.
    fn room(&mut self) -> Option<usize>;

    /// The request has been admitted. `cached` of its prompt's tokens need not be computed.
    fn started(&mut self, prompt: usize, cached: usize) {
        let _ = (prompt, cached);
    }

    /// A token of the answer, and the logits that it was chosen by. Never more of them than there was room for.
    fn token(&mut self, token: u32, logits: &[f32]);

    /// The end. Comes exactly once for every request that was accepted, whatever [`Self::room`] says.
    fn finished(self: Box<Self>, finish: Finish, stats: Stats);
}

/// An answer to compute.
pub struct Request {
    /// Whose it is; `None` finds nothing that is kept, and keeps nothing.
    pub session: Option<SessionKey>,
    /// The prompt, with what there is of the answer already.
    pub prompt: Zeroizing<Vec<u32>>,
    /// Tokens of the answer, at most.
    pub max_tokens: usize,
    /// When it must have been admitted, or it ends with [`BatchError::Waited`].
    pub start_by: Option<Instant>,
    /// When it must be over, or it ends with [`BatchError::Deadline`].
    pub end_by: Option<Instant>,
    /// Ends it.
    pub cancel: Cancel,
    /// Chooses its tokens.
    pub chooser: Box<dyn Chooser>,
    /// Takes them.
    pub sink: Box<dyn Sink>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt", &self.prompt.len())
            .field("max_tokens", &self.max_tokens)
            .field("start_by", &self.start_by)
            .field("end_by", &self.end_by)
            .finish_non_exhaustive()
    }
}

/// Why a request was refused, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The queue is full.
    #[error("{limit} requests are waiting already")]
    Busy {
        /// How many may.
        limit: usize,
    },
    /// A prompt of nothing, or an answer of nothing.
    #[error("a request needs a prompt and at least one token to generate")]
    Empty,
    /// Prompt and answer are longer than the model's context.
    #[error("prompt and answer of {tokens} tokens are above the model's context of {context}")]
    TooLong {
        /// Tokens of both, at most.
        tokens: usize,
        /// The model's context.
        context: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not below {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens that there are.
        vocabulary: usize,
    },
    /// Its keys and values would be more than all that there is room for.
    #[error("keys and values of {wanted} bytes are above the budget of {budget}")]
    NeverFits {
        /// Bytes of prompt and answer.
        wanted: usize,
        /// The budget.
        budget: usize,
    },
    /// It was not admitted in time.
    #[error("the request waited too long")]
    Waited,
    /// It was not over in time.
    #[error("the request was not over in time")]
    Deadline,
    /// Its reader took nothing for too long.
    #[error("the reader took nothing for too long")]
    Stalled,
    /// The chooser had nothing to choose, or chose a token that the model does not have.
    #[error("no token could be chosen")]
    NoChoice,
    /// The chooser, the sink or the model panicked.
    #[error("the request panicked")]
    Panicked,
    /// The step was refused. It is a mistake of the scheduler's.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A model of another library failed.
    #[error("the model failed: {reason}")]
    Model {
        /// Its message.
        reason: String,
    },
    /// The batcher is shut down.
    #[error("the batcher is shut down")]
    ShutDown,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The chooser ended it.
    End,
    /// The answer has all the tokens that it may have.
    Length,
    /// It was cancelled, or nobody read it any more.
    Cancelled,
    /// It failed. What was given to the sink stands.
    Failed(BatchError),
}

/// Counts and times of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that had been computed before.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub output_tokens: usize,
    /// Tokens that were guessed.
    pub drafted_tokens: usize,
    /// Those that were right.
    pub accepted_tokens: usize,
    /// From submission to admission.
    pub queued: Duration,
    /// From submission to the first token; zero if there was none.
    pub first_token: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

impl Stats {
    /// Tokens per second after the first one; 0 if there was no other.
    #[must_use]
    pub fn decode_tokens_per_second(&self) -> f64 {
        let tokens = u32::try_from(self.output_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        if tokens == 0 || self.decode.is_zero() {
            return 0.0;
        }
        f64::from(tokens) / self.decode.as_secs_f64()
    }
}
