//! Inference engines behind one object-safe trait: the turn service hands in a finished [`Prompt`] and
//! reads events; which model answers, and how jobs share it, stays in here.
//!
//! Called by the turn service (`turn.rs`) and by `main` (loading). An engine must never log, keep or
//! put into an error any text of a conversation; it knows nothing of sessions, links or the network.

pub mod echo;
mod language;
pub mod manifest;
pub mod native;
pub mod proxied;
pub mod set;
mod worker;

use std::{fmt, future, iter};

pub use baton_engine::batch::SessionKey;
use baton_proto::{
    ids::ModelId,
    limits::{MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOP_STRINGS},
};
pub use baton_proto::{node_record::ModelManifest, receipt::EngineKind};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::prompt::Prompt;
pub use language::{Constraint, Reported};
pub use manifest::LoadedManifest;
pub use set::Hold;

/// Events buffered between an engine and its reader. Small on purpose: a slow reader must slow the
/// engine, yet a burst of a few tokens should not wake it each time. When full, the engine waits.
pub const EVENT_CAPACITY: usize = 16;

/// What an engine is, fixed for its lifetime.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// The name that configuration and logs use.
    pub name: String,
    /// The model's identity, [`ModelManifest::model_id`] of `manifest`.
    pub model_id: ModelId,
    /// Native, proxied or echo.
    pub kind: EngineKind,
    /// Tokens that prompt and answer may have together on this node.
    pub context_tokens: u32,
    /// What `model_id` is the hash of.
    pub manifest: LoadedManifest,
}

/// A number of tokens, and whether it was counted or estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// Tokens.
    pub tokens: u32,
    /// `true` when the engine rendered and tokenised; `false` for a proxied backend's estimate.
    pub exact: bool,
}

/// How tokens are chosen.
#[derive(Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise logits are divided by it. Range 0 to 5.
    pub temperature: f32,
    /// Nucleus: the smallest set of likeliest tokens with at least this probability. Range (0, 1]; 1 is off.
    pub top_p: f32,
    /// Only the so many likeliest tokens; 0 is off.
    pub top_k: u32,
    /// Divides positive and multiplies negative logits of recent tokens. Range (0, 10]; 1 is off.
    pub repetition_penalty: f32,
    /// Seed of the randomness, which is a pure function of it and the token's position in the answer.
    pub seed: u64,
    /// Texts that end the answer; they are never emitted, not even in part.
    pub stop: Vec<String>,
    /// Length of the whole answer in tokens, a resumed prefix included. At least 1.
    pub max_tokens: u32,
    /// With each token, its own probability and those of so many of the likeliest; 0 reports none. At most
    /// [`MAX_LOGPROBS`].
    pub logprobs: u8,
}

impl Default for Sampling {
    /// Greedy, 512 tokens at the most.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
            max_tokens: 512,
            logprobs: 0,
        }
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling")
            .field("temperature", &self.temperature)
            .field("top_p", &self.top_p)
            .field("top_k", &self.top_k)
            .field("repetition_penalty", &self.repetition_penalty)
            .field("seed", &self.seed)
            .field("stop", &format_args!("{} strings", self.stop.len()))
            .field("max_tokens", &self.max_tokens)
            .field("logprobs", &self.logprobs)
            .finish()
    }
}

impl Sampling {
    /// Checks every field against its range, which is that of [`baton_proto::turn::Sampling::check`].
    ///
    /// # Errors
    /// [`EngineError::InvalidSampling`] names the first field out of range.
    pub fn validate(&self) -> Result<(), EngineError> {
        let refuse = |field| Err(EngineError::InvalidSampling { field });
        if !(0.0..=5.0).contains(&self.temperature) {
            return refuse("temperature");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 10.0) {
            return refuse("repetition_penalty");
        }
        if self.max_tokens == 0 {
            return refuse("max_tokens");
        }
        let too_long = |stop: &String| stop.is_empty() || stop.len() > MAX_STOP_BYTES;
        if self.stop.len() > MAX_STOP_STRINGS || self.stop.iter().any(too_long) {
            return refuse("stop");
        }
        if self.logprobs > MAX_LOGPROBS {
            return refuse("logprobs");
        }
        Ok(())
    }
}

/// One answer to generate.
pub struct GenerateJob {
    /// The window, already cut to fit (see [`crate::prompt::fit_window`]).
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens of the answer that exist already; generation continues after them and repeats none, and
    /// their whole characters count as shown. A prefix that ends where an [`EngineEvent::Token`] ended
    /// therefore resumes without a seam.
    pub resume_tokens: Vec<u32>,
    /// What the session is called in the engine's cache, so that its next turn need not compute this one's tokens again;
    /// `None` keeps nothing. Same session, same key; no other has it.
    pub cache_key: Option<SessionKey>,
    /// What the answer must satisfy, as this engine's [`Engine::constrain`] made it.
    pub constraint: Option<Constraint>,
    /// Stops the job within a token.
    pub cancel: CancellationToken,
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
    /// A stop string came.
    StopString,
    /// `max_tokens` or the context is used up.
    Length,
    /// The caller cancelled it or dropped the receiver.
    Cancelled,
}

/// Counts and times of one job. Times are wall-clock milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GenerateStats {
    /// Tokens of the rendered prompt, without a resumed prefix.
    pub input_tokens: u32,
    /// Tokens of prompt and resumed prefix whose computation was kept from an earlier job.
    pub cached_tokens: u32,
    /// Tokens generated by this job: without the resumed prefix and without the end-of-turn token.
    pub output_tokens: u32,
    /// From submission until the engine took the job up.
    pub queue_ms: u64,
    /// Rendering, tokenising and evaluating the prompt and the resumed prefix.
    pub prefill_ms: u64,
    /// From the end of prefill to the end of the answer, a slow reader's waits included.
    pub decode_ms: u64,
    /// From submission to the first emitted text; 0 when there was none.
    pub first_token_ms: u64,
}

/// How much an engine has to do, and what it holds for it. All zero for one that does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Jobs that are being answered.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
    /// Bytes of keys and values.
    pub kv_bytes: usize,
    /// Those of them that are kept for a session's next turn.
    pub kept_bytes: usize,
    /// Bytes that keys and values may take.
    pub kv_budget: usize,
}

impl iter::Sum for EngineLoad {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |sum, load| Self {
            running: sum.running + load.running,
            waiting: sum.waiting + load.waiting,
            kv_bytes: sum.kv_bytes + load.kv_bytes,
            kept_bytes: sum.kept_bytes + load.kept_bytes,
            kv_budget: sum.kv_budget + load.kv_budget,
        })
    }
}

/// What an engine reports, in this order: `Started`, any number of `Token`, then exactly one `Done` or
/// `Failed`. A job refused before it starts reports only the last.
#[derive(Clone, PartialEq)]
pub enum EngineEvent {
    /// The prompt was rendered and counted.
    Started {
        /// Tokens of the rendered prompt.
        input_tokens: u32,
    },
    /// The text of the resumed prefix, as far as it was shown: whole characters only. Comes after `Started`,
    /// and only if there is any.
    Resumed {
        /// The text.
        text: String,
    },
    /// More of the answer.
    Token {
        /// Position of the first of `ids` in the answer, a resumed prefix included.
        index: u32,
        /// Tokens whose text is complete with this event. Empty for a proxied backend. The last event
        /// before [`FinishReason::StopString`] also carries the tokens that spell the stop string.
        ids: Vec<u32>,
        /// Their text; whole characters only, possibly empty.
        text: String,
        /// How likely each of `ids` was; empty where that was not asked for.
        logprobs: Vec<Reported>,
    },
    /// The answer is complete.
    Done {
        /// Why it ended.
        finish: FinishReason,
        /// Counts and times.
        stats: GenerateStats,
    },
    /// The job failed; what was emitted so far stands but is not a complete answer.
    Failed(EngineError),
}

impl fmt::Debug for EngineEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { input_tokens } => {
                f.debug_struct("Started").field("input_tokens", input_tokens).finish()
            }
            Self::Resumed { text } => f.debug_struct("Resumed").field("text_bytes", &text.len()).finish(),
            Self::Token { index, ids, text, .. } => f
                .debug_struct("Token")
                .field("index", index)
                .field("ids", &ids.len())
                .field("text_bytes", &text.len())
                .finish(),
            Self::Done { finish, stats } => {
                f.debug_struct("Done").field("finish", finish).field("stats", stats).finish()
            }
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

/// The reading end of a job. Dropping it stops the job within a token.
#[derive(Debug)]
pub struct GenerateHandle {
    /// The events; at most [`EVENT_CAPACITY`] wait in it, then the engine waits.
    pub events: mpsc::Receiver<EngineEvent>,
}

impl GenerateHandle {
    /// The next event, or `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        self.events.recv().await
    }
}

/// Why an engine refused or failed a job. Never carries conversation text.
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
        /// The context's size.
        limit: u32,
    },
    /// A sampling setting is out of range.
    #[error("sampling setting {field} is out of range")]
    InvalidSampling {
        /// Which.
        field: &'static str,
    },
    /// A resumed prefix holds tokens that cannot be part of an answer of this model.
    #[error("the resumed tokens are not a prefix of an answer of this model")]
    InvalidResume,
    /// This engine cannot continue after a prefix of tokens.
    #[error("this engine cannot continue after given tokens")]
    ResumeUnsupported,
    /// This engine cannot do what the job asks for.
    #[error("this engine does not support {what}")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// No answer can be held to the schema.
    #[error("the schema cannot be used: {reason}")]
    Schema {
        /// Why, without the schema's words.
        reason: &'static str,
    },
    /// The model's chat template refused the messages.
    #[error("the chat template refused the messages: {reason}")]
    Template {
        /// The template's own message; contents are not part of it.
        reason: String,
    },
    /// The model's chat template does not know of tools.
    #[error("the model's chat template does not know of tools")]
    ToolsUnsupported,
    /// The tokenizer failed.
    #[error("the tokenizer failed on the rendered prompt")]
    Tokenizer,
    /// The model's output was not a number.
    #[error("the model produced no finite output")]
    Numerics,
    /// A computation inside the engine failed.
    #[error("the engine failed: {reason}")]
    Compute {
        /// The library's message (shapes and types only).
        reason: String,
    },
    /// The job panicked; the engine goes on with the next.
    #[error("the engine panicked on this job")]
    Panicked,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShutDown,
    /// The model is not in memory, and nobody holds it.
    #[error("the model is not in memory")]
    NotLoaded,
    /// Turns of other models kept the memory that this one needs.
    #[error("there was no room in memory for the model for {seconds} s")]
    NoRoom {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The model was still being loaded.
    #[error("the model was not loaded after {seconds} s")]
    LoadSlow {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The model cannot be loaded any more.
    #[error("the model cannot be loaded: {reason}")]
    LoadFailed {
        /// Why.
        reason: String,
    },
    /// The backend could not be reached in time.
    #[error("the backend cannot be reached")]
    BackendUnreachable,
    /// The backend answered with an error status.
    #[error("the backend answered with status {status}")]
    BackendStatus {
        /// The HTTP status.
        status: u16,
    },
    /// The backend's stream broke the protocol.
    #[error("the backend broke the protocol: {reason}")]
    BackendProtocol {
        /// What was wrong.
        reason: &'static str,
    },
    /// The backend's stream ended before the answer did.
    #[error("the backend's answer was cut off")]
    BackendTruncated,
}

/// Refuses what an engine that only repeats or asks another for words cannot do: grammar and probabilities.
fn refuse_extras(job: &GenerateJob) -> Result<(), EngineError> {
    if job.constraint.is_some() {
        return Err(EngineError::Unsupported { what: "schemas" });
    }
    refuse_logprobs(job)
}

/// Refuses the question how likely tokens were.
fn refuse_logprobs(job: &GenerateJob) -> Result<(), EngineError> {
    if job.sampling.logprobs > 0 {
        Err(EngineError::Unsupported { what: "log probabilities" })
    } else {
        Ok(())
    }
}

/// A model that answers prompts.
///
/// Jobs are independent of each other: whether an engine runs them one by one, in batches, or with the
/// state of an earlier prompt's prefix is its own affair and changes no result.
pub trait Engine: Send + Sync {
    /// What this engine is.
    fn info(&self) -> &EngineInfo;

    /// Whether prompts may have tools.
    fn takes_tools(&self) -> bool {
        false
    }

    /// Makes sure that the model is in memory, and keeps it there for as long as the returned value lives: a turn holds it
    /// before it asks anything that takes the model. Waits, bounded; cancel safe.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`], [`EngineError::LoadSlow`], [`EngineError::LoadFailed`], [`EngineError::ShutDown`].
    fn hold(&self) -> BoxFuture<'_, Result<Hold, EngineError>> {
        Box::pin(future::ready(Ok(Hold::none())))
    }

    /// Tokens that `prompt` takes as this engine renders it. CPU-bound for a native engine (up to some
    /// tens of milliseconds for a full window): call it off the reactor.
    ///
    /// # Errors
    /// [`EngineError::Template`] and [`EngineError::Tokenizer`] when it cannot be rendered.
    fn count(&self, prompt: &Prompt) -> Result<TokenCount, EngineError>;

    /// Prepares to hold an answer to a JSON schema, from a stranger. CPU-bound (some milliseconds, at the worst a second):
    /// call it off the reactor.
    ///
    /// # Errors
    /// [`EngineError::Schema`], and [`EngineError::Unsupported`] by an engine that cannot.
    fn constrain(&self, _schema: &str) -> Result<Constraint, EngineError> {
        Err(EngineError::Unsupported { what: "schemas" })
    }

    /// Whether this engine can say how likely tokens were.
    fn reports_logprobs(&self) -> bool {
        false
    }

    /// How much there is to do.
    fn load(&self) -> EngineLoad {
        EngineLoad::default()
    }

    /// Queues a job. Never blocks; rendering happens in the engine.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when the queue is full, [`EngineError::InvalidSampling`],
    /// [`EngineError::ResumeUnsupported`], [`EngineError::Unsupported`], [`EngineError::ShutDown`]. Everything later comes as
    /// [`EngineEvent::Failed`].
    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError>;

    /// Refuses new jobs, stops running ones within a token (they report [`EngineError::ShutDown`]) and
    /// joins the engine's threads. Blocks meanwhile; idempotent; also done on drop.
    fn shutdown(&self);
}

#[cfg(test)]
mod tests {
    use baton_proto::turn::Sampling as Asked;

    use super::*;

    /// What the engine and the protocol say of the same settings.
    fn verdicts(change: impl FnOnce(&mut Asked)) -> [bool; 2] {
        let mut asked = Asked::default();
        change(&mut asked);
        let Asked { temperature, top_p, top_k, repetition_penalty, seed, ref stop, logprobs, .. } = asked;
        let ours = Sampling {
            temperature,
            top_p,
            top_k,
            repetition_penalty,
            seed,
            stop: stop.clone(),
            max_tokens: 1,
            logprobs,
        };
        [ours.validate().is_ok(), asked.check().is_ok()]
    }

    #[test]
    fn accepts_exactly_the_numbers_that_the_protocol_accepts() {
        let edges = [-1.0, -0.0, 0.0, f32::MIN_POSITIVE, 1.0, 1.0f32.next_up(), 5.0, 5.0f32.next_up(), 10.0];
        let edges = edges.into_iter().chain([10.0f32.next_up(), f32::INFINITY, f32::NAN]);
        let mut accepted = 0;
        for value in edges {
            for [ours, protocol] in [
                verdicts(|asked| asked.temperature = value),
                verdicts(|asked| asked.top_p = value),
                verdicts(|asked| asked.repetition_penalty = value),
            ] {
                assert_eq!(ours, protocol, "{value}");
                accepted += u32::from(ours);
            }
        }
        assert_eq!(accepted, 6 + 2 + 6);
    }

    #[test]
    fn reports_as_many_alternatives_as_the_protocol_allows() {
        for (count, expected) in [(0, true), (MAX_LOGPROBS, true), (MAX_LOGPROBS + 1, false)] {
            assert_eq!(verdicts(|asked| asked.logprobs = count), [expected; 2]);
        }
    }

    #[test]
    fn accepts_exactly_the_stop_strings_that_the_protocol_accepts() {
        let many = |count| vec!["x".to_owned(); count];
        for (stop, expected) in [
            (many(MAX_STOP_STRINGS), true),
            (many(MAX_STOP_STRINGS + 1), false),
            (vec!["x".repeat(MAX_STOP_BYTES)], true),
            (vec!["x".repeat(MAX_STOP_BYTES + 1)], false),
            (vec![String::new()], false),
        ] {
            assert_eq!(verdicts(|asked| asked.stop = stop), [expected; 2]);
        }
    }
}
