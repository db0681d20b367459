//! The types of a request and of its answer.

use std::{fmt, time::Duration};

use zeroize::{Zeroize, Zeroizing};

use crate::StepError;

/// The owner of blocks: opaque, and the same for all requests of a session. No other session uses its blocks.
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

/// The chooser's decision about the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The answer goes on with this token.
    Token(u32),
    /// The answer ends with this token.
    Last(u32),
    /// The answer ends without another token.
    End,
    /// No token can be chosen: the request fails with [`BatchError::NoChoice`].
    Nothing,
}

/// Chooses an answer's tokens. Called once for each token, in order, on the scheduler's thread.
///
/// A choice must depend on the arguments and the chooser's state alone, not on time or chance. Only then does
/// the same request get the same answer. A panic ends this request and no other.
pub trait Chooser: Send {
    /// The token after `tokens` (the prompt and the answer so far), given the model's logits for it.
    fn choose(&mut self, tokens: &[u32], logits: &[f32]) -> Choice;

    /// Sees a scored token of the prompt, `next`, given the model's logits for it after `tokens`.
    fn score(&mut self, tokens: &[u32], next: u32, logits: &[f32]) {
        let _ = (tokens, next, logits);
    }
}

/// Receives an answer. Called on the scheduler's thread, so it must never wait. A panic ends this request and
/// no other.
pub trait Sink: Send {
    /// How many tokens the sink accepts now, without waiting. `None` if the reader has gone, which ends the
    /// request with [`Finish::Cancelled`]. A request whose sink accepts nothing pauses until it does; other
    /// requests go on.
    fn room(&mut self) -> Option<usize>;

    /// The request has been admitted. `cached` tokens of its prompt need not be computed.
    fn started(&mut self, prompt: usize, cached: usize) {
        let _ = (prompt, cached);
    }

    /// A token of the answer, and the logits from which it was chosen. Never more tokens than [`Self::room`]
    /// allowed.
    fn token(&mut self, token: u32, logits: &[f32]) {
        let _ = (token, logits);
    }

    /// The end. Called exactly once for every accepted request, whatever [`Self::room`] returns.
    fn finished(self: Box<Self>, finish: Finish, stats: Stats);
}

/// An answer to compute.
pub struct Request {
    /// The session; `None` neither uses nor keeps blocks.
    pub session: Option<SessionKey>,
    /// The prompt, followed by the part of the answer that exists already.
    pub prompt: Zeroizing<Vec<u32>>,
    /// Tokens at the prompt's end that [`Chooser::score`] sees, fewer than the prompt has. The first token of the
    /// answer is chosen after all of them.
    pub scored: usize,
    /// Maximum number of tokens of the answer.
    pub max_tokens: usize,
    /// Chooses the answer's tokens.
    pub chooser: Box<dyn Chooser>,
    /// Receives them.
    pub sink: Box<dyn Sink>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt", &self.prompt.len())
            .field("scored", &self.scored)
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// Why a request was refused, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The queue is full.
    #[error("{limit} requests are waiting already")]
    Busy {
        /// The queue's limit.
        limit: usize,
    },
    /// An empty prompt, an answer of no tokens, or no token before the scored ones.
    #[error("a request needs a prompt, a token before the scored ones, and at least one token to generate")]
    Empty,
    /// Prompt and answer are longer than the model's context.
    #[error("prompt and answer of {tokens} tokens are above the model's context of {context}")]
    TooLong {
        /// Maximum number of tokens of both together.
        tokens: usize,
        /// The model's context.
        context: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not below {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// Keys and values would exceed the whole budget.
    #[error("keys and values of {wanted} bytes are above the budget of {budget}")]
    NeverFits {
        /// Bytes for prompt and answer.
        wanted: usize,
        /// The budget.
        budget: usize,
    },
    /// The reader took nothing for too long.
    #[error("the reader took nothing for too long")]
    Stalled,
    /// The chooser had nothing to choose, or chose a token that the model does not have.
    #[error("no token could be chosen")]
    NoChoice,
    /// The chooser, the sink or the model panicked.
    #[error("the request panicked")]
    Panicked,
    /// The model refused the step. This is a defect of the scheduler.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A model of another library failed.
    #[error("the model failed: {reason}")]
    Model {
        /// The library's message.
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
    /// The answer has the request's maximum number of tokens.
    Length,
    /// Its reader has gone.
    Cancelled,
    /// The request failed. Tokens that the sink has received stay valid.
    Failed(BatchError),
}

/// Facts about the computation of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Prompt tokens that had been computed before.
    pub cached_tokens: usize,
    /// Time from admission to the first token; zero if there was none.
    pub prefill: Duration,
}
