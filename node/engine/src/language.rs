//! Text to tokens and back, from a model file's tokenizer and chat template, and the choice of tokens.
//!
//! [`Language::load`] reads only the metadata of a GGUF file. These modules work together:
//!
//! - [`template`] renders a conversation by the model's template.
//! - [`tokenizer`] cuts it into tokens.
//! - [`sampler`] chooses tokens from logits.
//! - [`grammar`] holds them to a grammar, if requested.
//! - [`logprobs`] reports their probabilities.
//! - [`text`] turns them into text again.
//!
//! All results depend on arguments alone: no clock, no random numbers, no library's elementary functions.
//!
//! Files, conversations and schemas are untrusted. Named limits apply before memory is allocated for them;
//! the refusal is a [`LanguageError`]. No error holds text of a conversation.

pub mod chat;
pub mod date;
pub mod grammar;
pub mod logprobs;
pub mod sampler;
pub mod template;
pub mod text;
pub mod tokenizer;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::OnceLock};

use zeroize::Zeroizing;

pub use chat::{Call, Conversation, Json, Message, Role, Tool};
pub use date::Date;
pub use grammar::{Grammar, Grammars};
pub use logprobs::{Logprob, LogprobReport, Softmax};
pub use sampler::{Sampler, Sampling};
pub use template::{ChatTemplate, Segment};
pub use text::{Piece, PushOutcome, StreamText};
pub use tokenizer::Tokenizer;

use crate::gguf::{Gguf, GgufError, GgufFile};

/// The template for a model without one, which was not trained to chat. Each turn is a line that begins with
/// its role; the last line begins the answer.
pub const PLAIN_TEMPLATE: &str = "{% for message in messages %}\
    {% if message.role == 'system' %}{{ message.content }}\n\
    {% elif message.role == 'user' %}User: {{ message.content }}\n\
    {% elif message.role == 'assistant' %}Assistant: {{ message.content }}\n\
    {% else %}Result: {{ message.content }}\n\
    {% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}";

/// Ends an answer to [`PLAIN_TEMPLATE`]: such a model would go on and speak for the user.
const PLAIN_STOPS: [&str; 1] = ["\nUser:"];

/// Why a file, a conversation, a schema or a step is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// The file's metadata are not sound.
    #[error("{0}")]
    File(String),
    /// An entry is missing.
    #[error("the file has no {0:?}")]
    Missing(&'static str),
    /// An unsupported tokenizer.
    #[error("tokenizer {model:?} with {pre:?} is not known")]
    Unknown {
        /// `tokenizer.ggml.model`.
        model: String,
        /// `tokenizer.ggml.pre`.
        pre: String,
    },
    /// The chat template is unusable, or refused the messages.
    #[error("the chat template cannot be used: {reason}")]
    Template {
        /// The template's own message, without conversation contents.
        reason: String,
    },
    /// The template does not support tools.
    #[error("the model's chat template does not know of tools")]
    ToolsUnsupported,
    /// A grammar needs a token that ends an answer, and the model has none.
    #[error("the model has no token that ends an answer")]
    NoEndToken,
    /// A schema or an expression that cannot constrain an answer.
    #[error("the schema cannot be used: {reason}")]
    Schema {
        /// Why. A refused keyword comes first, with its place: `` `not` at /properties/a/not: … ``.
        reason: Cow<'static, str>,
    },
    /// Tokens that are not the beginning of an answer in the grammar.
    #[error("the tokens are not the beginning of an answer")]
    NoPrefix,
    /// Logits without a finite number.
    #[error("the model produced no finite output")]
    Numerics,
    /// A library failed unexpectedly.
    #[error("the grammar's library failed")]
    Library,
}

impl From<GgufError> for LanguageError {
    fn from(error: GgufError) -> Self {
        Self::File(error.to_string())
    }
}

/// Converts conversations to tokens and tokens to text, for one model.
pub struct Language {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    plain: bool,
    grammars: OnceLock<Result<Grammars, LanguageError>>,
}

impl Language {
    /// Reads a file's metadata. `bytes` is the whole file of `header`, or its beginning up to the end of the
    /// metadata. `date` is the date that the template may show.
    ///
    /// # Errors
    /// [`LanguageError`] names a defect of the file or an unsupported feature.
    pub fn load(header: &Gguf, bytes: &[u8], date: Date) -> Result<Self, LanguageError> {
        let tokenizer = Tokenizer::load(header, bytes)?;
        let source = header.optional_str("tokenizer.chat_template")?;
        let template = source.unwrap_or(PLAIN_TEMPLATE);
        let template = ChatTemplate::new(template, tokenizer.begin_text(), tokenizer.end_text(), date)?;
        Ok(Self { tokenizer, template, plain: source.is_none(), grammars: OnceLock::new() })
    }

    /// As [`Self::load`], for a mapped file.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn of_file(file: &GgufFile, date: Date) -> Result<Self, LanguageError> {
        Self::load(file.header(), file.bytes(), date)
    }

    /// Uses another chat template than the file's.
    ///
    /// # Errors
    /// [`LanguageError::Template`].
    pub fn replace_template(&mut self, source: &str, date: Date) -> Result<(), LanguageError> {
        let (begin, end) = (self.tokenizer.begin_text(), self.tokenizer.end_text());
        self.template = ChatTemplate::new(source, begin, end, date)?;
        self.plain = false;
        Ok(())
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template: the file's, or [`PLAIN_TEMPLATE`].
    #[must_use]
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Texts that end an answer beside the end tokens: some for [`PLAIN_TEMPLATE`], otherwise none.
    #[must_use]
    pub fn stops(&self) -> &'static [&'static str] {
        if self.plain { &PLAIN_STOPS } else { &[] }
    }

    /// Encodes a conversation for the model, ready for its answer.
    ///
    /// # Errors
    /// [`LanguageError::Template`] and [`LanguageError::ToolsUnsupported`].
    pub fn encode(&self, conversation: &Conversation) -> Result<Zeroizing<Vec<u32>>, LanguageError> {
        Ok(self.tokenizer.encode(&self.template.render(conversation)?))
    }

    /// The compiler of schemas for this model. The first call sorts the vocabulary, which takes some hundred
    /// milliseconds.
    ///
    /// # Errors
    /// [`LanguageError::NoEndToken`].
    pub fn grammars(&self) -> Result<&Grammars, LanguageError> {
        self.grammars.get_or_init(|| Grammars::new(&self.tokenizer)).as_ref().map_err(Clone::clone)
    }

    /// The report on a token: its own probability and those of the `likeliest` likeliest tokens, from the
    /// model's unchanged logits.
    #[must_use]
    pub fn report(&self, softmax: &Softmax<'_>, id: u32, likeliest: usize) -> LogprobReport {
        let mut tokens = vec![softmax.of_token(id)];
        tokens.extend(softmax.likeliest(likeliest));
        let spelled = tokens.iter().map(|one| self.tokenizer.token_bytes(one.token).to_vec()).collect();
        LogprobReport { tokens, spelled }
    }
}
