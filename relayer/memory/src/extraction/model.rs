//! An optional model beside the rules. It never decides on author, trust or consent floors: [`super::reply`]
//! parses its answer, which must quote the exchange.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{Candidate, MessagePair, SummaryMessage, Verdict, prompts, reply};
use crate::{ids::OwnerId, model::Text};

/// The role of a prompt message.
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
    /// Its role.
    pub role: PromptRole,
    /// Its text.
    pub text: Text,
}

/// Why a model gave no result. The turn is always kept already, and the rules continue without the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// It is unreachable or failed.
    #[error("the model is unavailable: {0}")]
    Unavailable(String),
    /// It asks to wait.
    #[error("the model is busy")]
    Busy {
        /// The waiting time, if stated.
        retry_after: Option<Duration>,
    },
    /// It refuses every such request: a wrong key, an unknown model, an unsupported request.
    #[error("the model refuses with status {0}")]
    Refused(u16),
    /// It did not answer in time.
    #[error("the model did not answer in time")]
    TimedOut,
    /// Its answer exceeds the limit.
    #[error("the model's answer is too long")]
    TooLong,
    /// Its answer does not have the requested form (F8).
    #[error("the model's answer is malformed: {0}")]
    Malformed(&'static str),
}

/// A transport that completes a prompt: an HTTP endpoint, or a node that the owner opted in to.
pub trait Complete: Send + Sync {
    /// The text after the messages, at most `max_tokens` of it. The implementation bounds time and size.
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        max_tokens: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>>;

    /// The same transport, for the exchanges of one owner; `None` if it does not distinguish owners.
    fn for_owner(&self, _owner: OwnerId) -> Option<Arc<dyn Complete>> {
        None
    }
}

/// A model's findings in an exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelExtraction {
    /// Candidates that quote the exchange.
    pub candidates: Vec<Candidate>,
    /// Dropped candidates, whose words are not in the exchange.
    pub ungrounded: usize,
}

/// A recalled item for an answer.
#[derive(Clone, Debug)]
pub struct RecalledItem {
    /// Its author and date, for example `user, 2026-03-01`.
    pub from: String,
    /// The words.
    pub text: Text,
}

/// Tokens of a verdict: five short fields.
const VERDICT_TOKENS: u32 = 256;
/// Tokens of an extraction: [`MAX_CANDIDATES`](super::extract::MAX_CANDIDATES) quotes of a sentence each.
const EXTRACT_TOKENS: u32 = 1_024;
/// Tokens of a summary.
const SUMMARY_TOKENS: u32 = 768;
/// Tokens of an answer.
const ANSWER_TOKENS: u32 = 1_024;

/// Judges, extracts, summarises and answers, over any transport that completes prompts. The rules do the first three
/// without a model.
#[derive(Clone)]
pub struct ModelWriter {
    complete: Arc<dyn Complete>,
}

impl ModelWriter {
    /// A writer over a transport.
    #[must_use]
    pub fn new(complete: Arc<dyn Complete>) -> Self {
        Self { complete }
    }

    /// The same writer, for the exchanges of one owner.
    #[must_use]
    pub fn for_owner(&self, owner: OwnerId) -> Self {
        Self { complete: self.complete.for_owner(owner).unwrap_or_else(|| self.complete.clone()) }
    }

    /// The judge's five fields (E4); [`combine`](super::combine) adds the rules'.
    ///
    /// # Errors
    /// [`ModelError`], by cause.
    pub async fn judge(&self, pair: &MessagePair<'_>) -> Result<Verdict, ModelError> {
        reply::verdict(&self.complete.complete(&prompts::judge(pair), VERDICT_TOKENS).await?)
    }

    /// The candidates worth keeping; [`merge`](super::merge) adds the rules'.
    ///
    /// # Errors
    /// [`ModelError`], by cause.
    pub async fn extract(&self, pair: &MessagePair<'_>) -> Result<ModelExtraction, ModelError> {
        reply::extraction(&self.complete.complete(&prompts::extract(pair), EXTRACT_TOKENS).await?, pair)
    }

    /// A summary of the messages, at most `max_bytes`.
    ///
    /// # Errors
    /// [`ModelError`], by cause.
    pub async fn summarise(
        &self,
        messages: &[SummaryMessage<'_>],
        max_bytes: usize,
    ) -> Result<String, ModelError> {
        let said = self.complete.complete(&prompts::summarise(messages), SUMMARY_TOKENS).await?;
        reply::summary(&said, messages, max_bytes)
    }

    /// An answer to a question from recalled items.
    ///
    /// # Errors
    /// [`ModelError`], by cause.
    pub async fn answer(&self, question: &str, memories: &[RecalledItem]) -> Result<Text, ModelError> {
        reply::answer(&self.complete.complete(&prompts::answer(question, memories), ANSWER_TOKENS).await?)
    }
}
