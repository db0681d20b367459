//! A model that may be asked beside the rules. It never decides on author, trust or consent floors: what it says is parsed by
//! [`super::reply`] and points into the words of the exchange.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{Candidate, Exchange, Spoken, Verdict, prompts, reply};
use crate::model::Text;

/// Who speaks in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptRole {
    /// Instructions of this crate.
    System,
    /// Instructions of this crate with fenced data.
    User,
}

impl PromptRole {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
        }
    }
}

/// A message of a prompt; its text holds words of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptMessage {
    /// Who speaks.
    pub role: PromptRole,
    /// What.
    pub text: Text,
}

/// Why a model did not help. In every case the turn is kept already, and the rules go on without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It cannot be reached, or failed.
    #[error("the model is unavailable: {0}")]
    Unavailable(String),
    /// It asks for patience.
    #[error("the model is busy")]
    Busy {
        /// How long, if it said so.
        retry_after: Option<Duration>,
    },
    /// It refuses, whoever asks again: a wrong key, an unknown model, a request that it does not take.
    #[error("the model refuses with status {0}")]
    Refused(u16),
    /// It did not answer in time.
    #[error("the model did not answer in time")]
    TimedOut,
    /// It answered more than is read.
    #[error("the model's answer is too long")]
    TooLong,
    /// It answered something that is not what was asked for (F8).
    #[error("the model's answer is malformed: {0}")]
    Malformed(&'static str),
}

impl ModelError {
    /// Whether the same question may be answered later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// Something that completes a prompt: an HTTP endpoint, or a node that the owner opted in to.
pub trait Complete: Send + Sync {
    /// The text that follows the messages, at most `max_tokens` of it. Bounded in time and size by the implementation.
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        max_tokens: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>>;
}

/// What a model found in an exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extracted {
    /// What points into the words of the exchange.
    pub candidates: Vec<Candidate>,
    /// How many it named that do not, and were dropped.
    pub ungrounded: usize,
}

/// A remembered item that a question is answered from.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// Whose words and when, for example `user, 2026-03-01`.
    pub from: String,
    /// The words.
    pub text: Text,
}

/// Judges, extracts, summarises and answers. The rules do the first three without it.
pub trait Writer: Send + Sync {
    /// The judge's five fields (E4). To be put together with the rules' by [`combine`](super::combine).
    fn judge<'a>(&'a self, exchange: &'a Exchange<'a>) -> BoxFuture<'a, Result<Verdict, ModelError>>;
    /// What is worth keeping. To be put together with the rules' by [`merge`](super::merge).
    fn extract<'a>(&'a self, exchange: &'a Exchange<'a>) -> BoxFuture<'a, Result<Extracted, ModelError>>;
    /// The messages in short, at most `max_bytes`.
    fn summarise<'a>(
        &'a self,
        messages: &'a [Spoken<'a>],
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<String, ModelError>>;
    /// An answer to a question from what was recalled.
    fn answer<'a>(
        &'a self,
        question: &'a str,
        memories: &'a [Recalled],
    ) -> BoxFuture<'a, Result<Text, ModelError>>;
}

/// Tokens of a verdict: five short fields.
const VERDICT_TOKENS: u32 = 256;
/// Tokens of an extraction: [`MAX_CANDIDATES`](super::extract::MAX_CANDIDATES) quotes of a sentence each.
const EXTRACT_TOKENS: u32 = 1_024;
/// Tokens of a summary.
const SUMMARY_TOKENS: u32 = 768;
/// Tokens of an answer.
const ANSWER_TOKENS: u32 = 1_024;

/// A [`Writer`] over anything that completes prompts.
#[derive(Clone)]
pub struct ModelWriter {
    complete: Arc<dyn Complete>,
}

impl ModelWriter {
    /// Over a transport.
    #[must_use]
    pub fn new(complete: Arc<dyn Complete>) -> Self {
        Self { complete }
    }
}

impl Writer for ModelWriter {
    fn judge<'a>(&'a self, exchange: &'a Exchange<'a>) -> BoxFuture<'a, Result<Verdict, ModelError>> {
        Box::pin(async move {
            let said = self.complete.complete(&prompts::judge(exchange), VERDICT_TOKENS).await?;
            reply::verdict(&said)
        })
    }

    fn extract<'a>(&'a self, exchange: &'a Exchange<'a>) -> BoxFuture<'a, Result<Extracted, ModelError>> {
        Box::pin(async move {
            let said = self.complete.complete(&prompts::extract(exchange), EXTRACT_TOKENS).await?;
            reply::extracted(&said, exchange)
        })
    }

    fn summarise<'a>(
        &'a self,
        messages: &'a [Spoken<'a>],
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<String, ModelError>> {
        Box::pin(async move {
            let said = self.complete.complete(&prompts::summarise(messages), SUMMARY_TOKENS).await?;
            reply::summary(&said, messages, max_bytes)
        })
    }

    fn answer<'a>(
        &'a self,
        question: &'a str,
        memories: &'a [Recalled],
    ) -> BoxFuture<'a, Result<Text, ModelError>> {
        Box::pin(async move {
            let said = self.complete.complete(&prompts::answer(question, memories), ANSWER_TOKENS).await?;
            reply::answer(&said)
        })
    }
}
