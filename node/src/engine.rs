//! Inference engines behind one object-safe trait. The turn service passes a finished [`Prompt`] and reads
//! events. The engine alone decides how jobs share the model.
//!
//! Called by the turn service (`turn.rs`) and by `daemon` (loading). An engine must never log or store
//! conversation text, nor put it into an error. It knows nothing of sessions, links or the network.

pub mod echo;
mod language;
pub(crate) mod library;
pub mod native;
pub mod proxied;
pub(crate) mod set;
mod tasks;

use std::{borrow::Cow, fmt, future};

pub use baton_engine::batch::{Load, SessionKey};
pub(crate) use baton_proto::node_record::ModelManifest;
use baton_proto::{
    ErrorCode, ids::ModelId, limits::MODEL_MANIFEST_VERSION, tools::Definitions, wire::TokenLogprob,
};
pub use baton_proto::{receipt::EngineKind, turn::Sampling};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::prompt::Prompt;
pub use language::Constraint;
pub(crate) use set::Hold;

/// Events buffered between an engine and its reader. When full, the engine waits. The small capacity makes a
/// slow reader slow the engine, yet a burst of a few tokens causes no wake-up for each token.
pub(crate) const EVENT_CAPACITY: usize = 16;

/// Fixed properties of an engine.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// Name in configuration and logs.
    pub name: String,
    /// The model's ID: [`ModelManifest::model_id`] of `manifest`.
    pub model_id: ModelId,
    /// Native, proxied or echo.
    pub kind: EngineKind,
    /// Maximum tokens of prompt and answer together on this node.
    pub context_tokens: u32,
    /// The manifest; `model_id` is its hash.
    pub manifest: ModelManifest,
    /// Whether prompts may have tools.
    pub takes_tools: bool,
    /// Whether it reports log probabilities.
    pub reports_logprobs: bool,
}

impl EngineInfo {
    /// An engine without tools and log probabilities.
    pub(crate) fn new(
        name: impl Into<String>,
        kind: EngineKind,
        context_tokens: u32,
        manifest: ModelManifest,
    ) -> Self {
        let (name, model_id) = (name.into(), manifest.model_id());
        Self { name, model_id, kind, context_tokens, manifest, takes_tools: false, reports_logprobs: false }
    }
}

/// The manifest of a model that is known only by name: all hashes are zero.
pub(crate) fn unseen(architecture: String) -> ModelManifest {
    ModelManifest {
        version: MODEL_MANIFEST_VERSION,
        architecture,
        weights_sha256: [0; 32],
        tokenizer_hash: [0; 32],
        template_hash: [0; 32],
        engine_revision: 0,
    }
}

/// One answer to generate.
pub struct GenerateJob {
    /// The window, already cut to fit (see [`crate::prompt::fit_window`]).
    pub prompt: Prompt,
    /// How tokens are chosen. The schema's hash counts for nothing: `constraint` has the schema itself.
    pub sampling: Sampling,
    /// Maximum tokens of the whole answer, including a resumed prefix. At least 1.
    pub max_tokens: u32,
    /// Existing tokens of the answer. Generation continues after them and repeats none. Their whole
    /// characters count as shown. A prefix that ends at the end of an [`EngineEvent::Token`] therefore
    /// resumes without a seam.
    pub resume_tokens: Vec<u32>,
    /// The session's key in the engine's cache; `None` caches nothing. The next turn of the session reuses
    /// this turn's computation. A session always has the same key, and no other session has it.
    pub cache_key: Option<SessionKey>,
    /// Constraint on the answer, from this engine's [`Engine::constrain`].
    pub constraint: Option<Constraint>,
    /// Stops the job within a token.
    pub cancel: CancellationToken,
}

impl GenerateJob {
    /// An answer from its beginning, without a constraint, of which nothing is cached.
    #[must_use]
    pub fn new(prompt: Prompt, sampling: Sampling, max_tokens: u32) -> Self {
        Self {
            prompt,
            sampling,
            max_tokens,
            resume_tokens: Vec::new(),
            cache_key: None,
            constraint: None,
            cancel: CancellationToken::new(),
        }
    }
}

impl fmt::Debug for GenerateJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateJob")
            .field("prompt", &self.prompt)
            .field("sampling", &self.sampling)
            .field("resume_tokens", &self.resume_tokens.len())
            .finish_non_exhaustive()
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// A stop string appeared.
    StopString,
    /// The answer reached `max_tokens` or filled the context.
    Length,
    /// The caller cancelled the job or dropped the receiver.
    Cancelled,
}

/// An answer to check.
pub struct GivenAnswer {
    /// Its tokens.
    pub tokens: Zeroizing<Vec<u32>>,
    /// Its text.
    pub text: Zeroizing<String>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Number of tokens at its beginning that another node made.
    pub resumed: usize,
    /// The first token that is checked, counted from 0; its logits are hashed.
    pub probe: usize,
    /// Number of tokens that are checked from it on.
    pub count: usize,
}

impl GivenAnswer {
    /// Its tokens up to the last one that is checked.
    pub(crate) fn covered(&self) -> &[u32] {
        let end = self.probe.saturating_add(self.count).min(self.tokens.len());
        self.tokens.get(..end).unwrap_or_default()
    }
}

impl fmt::Debug for GivenAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenAnswer").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

/// The result of the check of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerComparison {
    /// The first token that the model does not choose, counted from 0; the number of tokens if only the end differs;
    /// none if the model gives this answer.
    pub differs_at: Option<u32>,
    /// BLAKE3 of the logits before the first checked token; zeros if it or a token before is none of the model.
    pub logits: [u8; 32],
    /// Tokens that were read and not in the cache.
    pub computed: u32,
}

/// Counts and times of one job. Times are wall-clock milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GenerateStats {
    /// Tokens of the rendered prompt, without a resumed prefix.
    pub input_tokens: u32,
    /// Tokens of prompt and resumed prefix whose computation came from the cache.
    pub cached_tokens: u32,
    /// Tokens generated by this job: without the resumed prefix and without the end-of-turn token.
    pub output_tokens: u32,
    /// Rendering, tokenising and evaluating the prompt and the resumed prefix.
    pub(crate) prefill_ms: u64,
}

/// Events of a job, in this order: `Started`, any number of `Token`, then exactly one `Done` or `Failed`. A
/// job that is refused before its start reports only the last.
#[derive(Clone, PartialEq)]
pub enum EngineEvent {
    /// The prompt was rendered and counted.
    Started {
        /// Tokens of the rendered prompt.
        input_tokens: u32,
    },
    /// Text of the resumed prefix that was already shown: whole characters only. Follows `Started`, and only
    /// if there is such text.
    Resumed {
        /// The text.
        text: String,
    },
    /// More of the answer.
    Token {
        /// Position of the first of `ids` in the answer, including a resumed prefix.
        index: u32,
        /// Tokens whose text this event completes. Empty for a proxied backend. The last event before
        /// [`FinishReason::StopString`] also carries the tokens of the stop string.
        ids: Vec<u32>,
        /// Their text; whole characters only, possibly empty.
        text: String,
        /// For each of `ids`, the token itself and the requested number of most likely tokens, most likely first. They
        /// are conversation text.
        logprobs: Vec<TokenLogprob>,
    },
    /// The answer is complete.
    Done {
        /// Why it ended.
        finish: FinishReason,
        /// Counts and times.
        stats: GenerateStats,
    },
    /// The job failed. Earlier events stand but are not a complete answer.
    Failed(EngineError),
}

impl fmt::Debug for EngineEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { input_tokens } => write!(f, "Started({input_tokens})"),
            Self::Resumed { text } => write!(f, "Resumed({} bytes)", text.len()),
            Self::Token { index, ids, text, .. } => {
                write!(f, "Token({index}: {} ids, {} bytes)", ids.len(), text.len())
            }
            Self::Done { finish, stats } => write!(f, "Done({finish:?}, {stats:?})"),
            Self::Failed(error) => write!(f, "Failed({error:?})"),
        }
    }
}

/// The reading end of a job. Dropping it stops the job within a token.
#[derive(Debug)]
pub struct GenerateHandle {
    /// The events. At most [`EVENT_CAPACITY`] are buffered; then the engine waits.
    pub(crate) events: mpsc::Receiver<EngineEvent>,
}

impl GenerateHandle {
    /// The next event, or `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        self.events.recv().await
    }
}

/// The class of an error of the server behind an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackendFault {
    /// The prompt exceeds the model's context.
    #[error("finds the request longer than its model's context")]
    ContextOverflow,
    /// A rate limit or a quota of the node's account.
    #[error("takes no more requests for now")]
    RateLimited,
    /// It is overloaded, or loads its model.
    #[error("is busy")]
    Busy,
    /// The node's key or account is refused.
    #[error("refuses the node's key or account")]
    Denied,
    /// It does not have the model.
    #[error("does not have the model")]
    NoModel,
    /// Its policy refuses the content.
    #[error("refuses the content")]
    ContentRefused,
    /// It does not take the request as it is.
    #[error("refuses the request")]
    Rejected,
    /// It failed.
    #[error("failed")]
    Failed,
}

impl BackendFault {
    /// The wire code.
    pub(crate) fn code(self) -> ErrorCode {
        match self {
            Self::ContextOverflow => ErrorCode::ContextOverflow,
            Self::RateLimited => ErrorCode::RateLimited,
            Self::Busy => ErrorCode::Busy,
            Self::Denied => ErrorCode::BackendDenied,
            Self::NoModel => ErrorCode::ModelUnavailable,
            Self::ContentRefused => ErrorCode::ContentRefused,
            Self::Rejected => ErrorCode::PayloadRejected,
            Self::Failed => ErrorCode::Internal,
        }
    }
}

/// Why an engine refused or failed a job. Its text never carries conversation text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The queue is full; another node may have room.
    #[error("the engine's queue is full ({limit} jobs waiting)")]
    Busy {
        /// The queue's limit.
        limit: usize,
    },
    /// Prompt and prefix leave no room for a token.
    #[error("the prompt needs {needed} tokens, the context has {limit}")]
    ContextOverflow {
        /// Tokens needed, with one for the answer.
        needed: u32,
        /// The context's size in tokens.
        limit: u32,
    },
    /// A sampling setting is out of range.
    #[error("a sampling setting is out of range")]
    InvalidSampling,
    /// A resumed prefix holds tokens that cannot be part of an answer of this model.
    #[error("the resumed tokens are not a prefix of an answer of this model")]
    InvalidResume,
    /// This engine cannot continue after a prefix of tokens.
    #[error("this engine cannot continue after given tokens")]
    ResumeUnsupported,
    /// This engine does not support a feature that the job needs.
    #[error("this engine does not support {what}")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// The schema cannot constrain an answer.
    #[error("the schema cannot be used: {reason}")]
    Schema {
        /// The reason. A refused keyword comes first, with its place in the schema.
        reason: Cow<'static, str>,
    },
    /// The model's chat template refused the messages.
    #[error("the chat template refused the messages: {reason}")]
    Template {
        /// The template's own message; it contains no message contents.
        reason: String,
    },
    /// The model's chat template does not support tools.
    #[error("the model's chat template does not know of tools")]
    ToolsUnsupported,
    /// A computation inside the engine failed or panicked; the engine goes on with the next job.
    #[error("the engine failed: {reason}")]
    Compute {
        /// The message, with shapes and types only.
        reason: String,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShutDown,
    /// The model is not in memory, and no turn holds it.
    #[error("the model is not in memory")]
    NotLoaded,
    /// Turns of other models held the memory that this model needs, or its load took too long.
    #[error("there was no room in memory for the model, or it was not loaded, for {seconds} s")]
    NoRoom {
        /// The wait, in seconds.
        seconds: u64,
    },
    /// The model can no longer be loaded.
    #[error("the model cannot be loaded: {reason}")]
    LoadFailed {
        /// The reason.
        reason: String,
    },
    /// The backend could not be reached in time.
    #[error("the server behind this node cannot be reached")]
    BackendUnreachable,
    /// The server behind the engine refused the request, or failed.
    #[error("the server behind this node {fault} (status {status})")]
    Backend {
        /// The class of its error.
        fault: BackendFault,
        /// The HTTP status, or that of an error in a stream.
        status: u16,
        /// The pause that it asks for; 0 for none.
        retry_after_ms: u32,
        /// Its own words, for the client alone.
        words: Zeroizing<String>,
    },
    /// The backend's stream broke the protocol.
    #[error("the server behind this node broke the protocol: {reason}")]
    BackendProtocol {
        /// The violation.
        reason: &'static str,
    },
    /// The backend's stream ended before the answer did.
    #[error("the server behind this node cut the answer off")]
    BackendTruncated,
}

/// Refuses settings out of range, also those of a caller that did not check them.
fn check_sampling(job: &GenerateJob) -> Result<(), EngineError> {
    match job.sampling.check() {
        Ok(()) if job.max_tokens > 0 => Ok(()),
        _ => Err(EngineError::InvalidSampling),
    }
}

/// Refuses requests for log probabilities.
fn refuse_logprobs(job: &GenerateJob) -> Result<(), EngineError> {
    if job.sampling.logprobs > 0 {
        Err(EngineError::Unsupported { what: "log probabilities" })
    } else {
        Ok(())
    }
}

/// A model that answers prompts.
///
/// Jobs are independent. An engine may run them one by one, in batches, or on cached state of an earlier
/// prompt's prefix; the result is the same.
pub trait Engine: Send + Sync {
    /// The engine's fixed properties.
    fn info(&self) -> &EngineInfo;

    /// Loads the model if necessary, and keeps it in memory for as long as the returned value lives. A turn
    /// holds it before any call that needs the model. Waits, bounded; cancel safe.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`], [`EngineError::LoadFailed`], [`EngineError::ShutDown`].
    fn hold(&self) -> BoxFuture<'_, Result<Hold, EngineError>> {
        Box::pin(future::ready(Ok(Hold::none())))
    }

    /// Tokens of `prompt` as this engine renders it; a high estimate for a proxied engine. CPU-bound for a native
    /// engine (tens of milliseconds for a full window): call it off the reactor.
    ///
    /// # Errors
    /// [`EngineError::Template`] and [`EngineError::Compute`] when it cannot be rendered.
    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError>;

    /// Prepares a constraint from a JSON schema of an unknown peer. CPU-bound (some milliseconds, at worst a
    /// second): call it off the reactor.
    ///
    /// # Errors
    /// [`EngineError::Schema`]; [`EngineError::Unsupported`] if the engine has no constraints.
    fn constrain(&self, _schema: &str) -> Result<Constraint, EngineError> {
        Err(EngineError::Unsupported { what: "schemas" })
    }

    /// Prepares a constraint on the calls of a free answer: none if the engine has none for them. As CPU-bound as
    /// [`Engine::constrain`].
    ///
    /// # Errors
    /// The engine's own; [`EngineError::Schema`] if strict tools' calls cannot be held to their parameters. Other
    /// tools' calls then have any map as arguments.
    fn constrain_calls(&self, _tools: &Definitions) -> Result<Option<Constraint>, EngineError> {
        Ok(None)
    }

    /// The current load, all zero if the engine does not report it.
    fn load(&self) -> Load {
        Load::default()
    }

    /// Queues a job. Never blocks; rendering happens in the engine.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when the queue is full, [`EngineError::InvalidSampling`],
    /// [`EngineError::ResumeUnsupported`], [`EngineError::Unsupported`], [`EngineError::ShutDown`]. Later
    /// errors arrive as [`EngineEvent::Failed`].
    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError>;

    /// Computes the logits of some tokens of a given answer to a job's prompt, and compares each with the choice by the
    /// job's settings. Costs little more than to read the answer. What it computes is kept for the session's next
    /// prompt, as by [`Engine::generate`]. Dropping the future stops the check.
    ///
    /// # Errors
    /// As [`Engine::generate`], and the later errors of a job; [`EngineError::Unsupported`] unless the engine gives
    /// the same bits everywhere.
    fn check(
        &self,
        _job: GenerateJob,
        _answer: GivenAnswer,
    ) -> BoxFuture<'static, Result<AnswerComparison, EngineError>> {
        Box::pin(future::ready(Err(EngineError::Unsupported { what: "checks of answers" })))
    }

    /// Refuses new jobs, stops running ones within a token (they report [`EngineError::ShutDown`]) and joins
    /// the engine's threads. Blocks until then. Idempotent; dropping the engine does the same.
    fn shutdown(&self);
}
