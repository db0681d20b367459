//! Words to tokens and back, by what a model's file says: its tokenizer, its chat template, and how tokens are chosen.
//!
//! [`Language::load`] reads the metadata of a GGUF file and nothing else of it. A conversation is rendered by the model's
//! template ([`template`]) and cut into tokens ([`tokenizer`]); tokens are chosen from logits ([`sampler`]), held to a
//! grammar where one is asked for ([`grammar`]), reported with their probabilities ([`logprobs`]) and become text again
//! ([`text`]). All of it is a function of its arguments: no clock, no random numbers, no library's elementary functions.
//!
//! What comes from a file, a conversation or a schema may be anybody's: it is held against named limits before memory is
//! taken for it, and refused with [`LanguageError`]. No error holds text of a conversation.

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

use std::sync::OnceLock;

use zeroize::Zeroizing;

pub use chat::{Call, Conversation, Json, Message, Role};
pub use date::Date;
pub use grammar::{Grammar, Grammars};
pub use logprobs::{Logprob, Reported, Softmax};
pub use sampler::{Sampler, Sampling};
pub use template::{ChatTemplate, Segment};
pub use text::{Piece, Pushed, StreamText};
pub use tokenizer::Tokenizer;

use crate::gguf::{Gguf, GgufError, GgufFile, Value};

/// The template of a model without one of its own, which is one that was not taught to chat: each turn on a line that
/// begins with who speaks, and the answer's line begun.
pub const PLAIN_TEMPLATE: &str = "{% for message in messages %}\
    {% if message.role == 'system' %}{{ message.content }}\n\
    {% elif message.role == 'user' %}User: {{ message.content }}\n\
    {% elif message.role == 'assistant' %}Assistant: {{ message.content }}\n\
    {% else %}Result: {{ message.content }}\n\
    {% endif %}{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}";

/// Where an answer ends that [`PLAIN_TEMPLATE`] asked for: such a model goes on and speaks for the user.
const PLAIN_STOPS: [&str; 1] = ["\nUser:"];

/// Why a file, a conversation, a schema or a step is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// The file cannot be read.
    #[error("{0}")]
    File(String),
    /// An entry is missing.
    #[error("the file has no {0:?}")]
    Missing(&'static str),
    /// An entry is of another type than it must be.
    #[error("{key:?} is not {wanted}")]
    Kind {
        /// The entry.
        key: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// More of something than is accepted.
    #[error("{found} {what} are more than {limit}")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A list that does not go with the vocabulary.
    #[error("{key:?} has {found} elements, the vocabulary {wanted}")]
    Lengths {
        /// The list.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The vocabulary's.
        wanted: usize,
    },
    /// A token that is not sound.
    #[error("token {index} {why}")]
    Token {
        /// Its place in the vocabulary.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A merge that is not sound.
    #[error("merge {index} {why}")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry that names a token which is not there.
    #[error("{key:?} is {id}, which is no token")]
    NoSuchToken {
        /// The entry.
        key: &'static str,
        /// What it says.
        id: u64,
    },
    /// A tokenizer that is not known here.
    #[error("tokenizer {model:?} with {pre:?} is not known")]
    Unknown {
        /// `tokenizer.ggml.model`.
        model: String,
        /// `tokenizer.ggml.pre`.
        pre: String,
    },
    /// The chat template cannot be used, or refused the messages.
    #[error("the chat template cannot be used: {reason}")]
    Template {
        /// The template's own message; contents are not part of it.
        reason: String,
    },
    /// The template does not know of tools.
    #[error("the model's chat template does not know of tools")]
    ToolsUnsupported,
    /// A grammar needs a token that ends an answer, and the model has none.
    #[error("the model has no token that ends an answer")]
    NoEndToken,
    /// A schema or an expression that no answer can be held to.
    #[error("the schema cannot be used: {reason}")]
    Schema {
        /// Why, without the schema's words.
        reason: &'static str,
    },
    /// Tokens that are not the beginning of what a grammar allows.
    #[error("the tokens are not the beginning of an answer")]
    NoPrefix,
    /// Logits of which none is a number.
    #[error("the model produced no finite output")]
    Numerics,
    /// A library failed in a way that it should not.
    #[error("the grammar's library failed")]
    Library,
}

impl From<GgufError> for LanguageError {
    fn from(error: GgufError) -> Self {
        Self::File(error.to_string())
    }
}

/// What turns conversations into tokens and tokens into text, for one model.
pub struct Language {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    plain: bool,
    grammars: OnceLock<Result<Grammars, LanguageError>>,
}

impl Language {
    /// Reads what a file's metadata say. `bytes` is the whole file that `header` was read from, or its beginning as far
    /// as the metadata go; `date` is the date that the template may show.
    ///
    /// # Errors
    /// [`LanguageError`] names what is wrong with the file or not known here.
    pub fn load(header: &Gguf, bytes: &[u8], date: Date) -> Result<Self, LanguageError> {
        let tokenizer = Tokenizer::load(header, bytes)?;
        const KEY: &str = "tokenizer.chat_template";
        let source = match header.get(KEY) {
            None => None,
            Some(Value::String(source)) => Some(source.as_str()),
            Some(_) => return Err(LanguageError::Kind { key: KEY, wanted: "a string" }),
        };
        let template = source.unwrap_or(PLAIN_TEMPLATE);
        let template = ChatTemplate::new(template, tokenizer.begin_text(), tokenizer.end_text(), date)?;
        Ok(Self { tokenizer, template, plain: source.is_none(), grammars: OnceLock::new() })
    }

    /// The same of a file that is mapped.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn of_file(file: &GgufFile, date: Date) -> Result<Self, LanguageError> {
        Self::load(file.header(), file.bytes(), date)
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

    /// Texts that end an answer beside the tokens that do: some for [`PLAIN_TEMPLATE`], else none.
    #[must_use]
    pub fn stops(&self) -> &'static [&'static str] {
        if self.plain { &PLAIN_STOPS } else { &[] }
    }

    /// A conversation as the model is to see it, ready for its answer.
    ///
    /// # Errors
    /// [`LanguageError::Template`] and [`LanguageError::ToolsUnsupported`].
    pub fn encode(&self, conversation: &Conversation) -> Result<Zeroizing<Vec<u32>>, LanguageError> {
        Ok(self.tokenizer.encode(&self.template.render(conversation)?))
    }

    /// What compiles schemas for this model. The first call sorts the vocabulary, which takes some hundred milliseconds.
    ///
    /// # Errors
    /// [`LanguageError::NoEndToken`].
    pub fn grammars(&self) -> Result<&Grammars, LanguageError> {
        self.grammars.get_or_init(|| Grammars::new(&self.tokenizer)).as_ref().map_err(Clone::clone)
    }

    /// What is reported of a token: its own probability and those of `likeliest` of the likeliest, by logits as the model
    /// gave them.
    #[must_use]
    pub fn report(&self, softmax: &Softmax<'_>, id: u32, likeliest: usize) -> Reported {
        let mut tokens = vec![softmax.of_token(id)];
        tokens.extend(softmax.likeliest(likeliest));
        let spelled = tokens.iter().map(|one| self.tokenizer.token_bytes(one.token).to_vec()).collect();
        Reported { tokens, spelled }
    }
}
