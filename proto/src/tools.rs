//! Tools in a conversation: the form of definitions, calls and results in the fields of messages. Pure.
//!
//! - Definitions are a pinned System message named [`TOOLS_NAME`]; its text is OpenAI's JSON list.
//! - A call is part of its answer's text, in the model's own syntax. This module reads it out of the text.
//! - A result is a Tool message.
//!
//! The node renders them with the model's template; the client hands them to programs. Neither changes the
//! stored bytes.

mod call_schema;
mod json;
mod reader;
#[cfg(test)]
mod tests;

use zeroize::Zeroizing;

pub use call_schema::{CallArguments, CallSchemaError, call_or_answer_schema, call_schema};
pub use json::{Json, escape};
pub use reader::{AnswerReader, Piece};

use crate::record::{Message, Role};

/// The name of the System message with the definitions.
pub const TOOLS_NAME: &str = "tools";
/// Most tools of a session, as in OpenAI's API.
pub const MAX_TOOLS: usize = 128;
/// Longest name of a tool, as in OpenAI's API.
pub const MAX_TOOL_NAME_BYTES: usize = 64;
/// Most calls of one answer: one character of a call id numbers them.
pub const MAX_CALLS: usize = DIGITS.len();
/// Characters of a call id: eight for the answer, one for the call's position. Mistral's templates accept no
/// other length.
const CALL_ID_CHARACTERS: usize = 9;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A call of a tool.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// The tool's name; it passes [`is_tool_name`].
    pub name: String,
    /// The arguments: a map.
    pub arguments: Json,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call({:?})", self.arguments)
    }
}

/// An answer, read into text and calls.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// Its text without the calls.
    pub content: Zeroizing<String>,
    /// Its calls, in order.
    pub calls: Vec<Call>,
}

impl std::fmt::Debug for ParsedAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ParsedAnswer({} bytes, {} calls)", self.content.len(), self.calls.len())
    }
}

/// Whether a text can be a tool's name.
#[must_use]
pub fn is_tool_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=MAX_TOOL_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

/// The definitions of a session's tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definitions(Vec<Json>);

impl Definitions {
    /// Reads the text of a [`TOOLS_NAME`] message; `None` unless it is a list of 1 to [`MAX_TOOLS`]
    /// functions.
    ///
    /// Each is `{"type":"function","function":{"name":…}}`; the names are distinct and pass [`is_tool_name`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match Json::parse(text)? {
            Json::List(tools) => Self::of(tools),
            _ => None,
        }
    }

    /// As [`Definitions::parse`], for parsed values.
    #[must_use]
    pub fn of(tools: Vec<Json>) -> Option<Self> {
        let definitions = Self(tools);
        let mut names: Vec<&str> = definitions.names().collect();
        names.sort_unstable();
        names.dedup();
        let sound = (1..=MAX_TOOLS).contains(&definitions.0.len())
            && names.len() == definitions.0.len()
            && names.into_iter().all(is_tool_name)
            && definitions.0.iter().all(|tool| tool.get("type").and_then(Json::as_text) == Some("function"));
        sound.then_some(definitions)
    }

    /// Reads the definitions, if any, in pinned system text; outer `None` when they are malformed or occur
    /// twice.
    #[must_use]
    pub fn pinned(system: &[Message]) -> Option<Option<Self>> {
        let mut found = system.iter().filter(|message| is_definitions(message));
        match (found.next(), found.next()) {
            (None, _) => Some(None),
            (Some(message), None) => Self::parse(&message.text).map(Some),
            (Some(_), Some(_)) => None,
        }
    }

    /// As a pinned message.
    #[must_use]
    pub fn message(&self) -> Message {
        let text = Json::List(self.0.clone()).write();
        let mut message = Message::new(Role::System, text.as_str());
        message.name = Some(TOOLS_NAME.to_owned());
        message
    }

    /// The tools, each in the form of OpenAI's API.
    #[must_use]
    pub fn tools(&self) -> &[Json] {
        &self.0
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|tool| tool.get("function")?.get("name")?.as_text())
    }

    /// Whether a call of any of them must satisfy its parameters.
    #[must_use]
    pub fn are_strict(&self) -> bool {
        let strict = |tool: &Json| tool.get("function")?.get("strict").cloned();
        self.0.iter().any(|tool| strict(tool) == Some(Json::Bool(true)))
    }

    /// Whether a tool has this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

/// Whether a pinned message holds definitions.
#[must_use]
pub fn is_definitions(message: &Message) -> bool {
    message.role == Role::System && message.name.as_deref() == Some(TOOLS_NAME)
}

/// Reads the calls out of a whole answer. `known` accepts the tool names of calls without a marker: the name
/// alone distinguishes such a call from an answer in JSON.
#[must_use]
pub fn read_answer(text: &str, known: impl Fn(&str) -> bool) -> ParsedAnswer {
    let mut reader = AnswerReader::new(known);
    let mut answer = ParsedAnswer::default();
    let pieces = reader.push(text).into_iter().chain(reader.finish());
    for piece in pieces {
        match piece {
            Piece::Content(text) => answer.content.push_str(&text),
            Piece::Call(call) => answer.calls.push(call),
        }
    }
    answer
}

/// An answer with these calls, in the syntax of Hermes and Qwen. It is the stored form when another program
/// made the message, or when a server returns calls without their text.
#[must_use]
pub fn write_answer(content: &str, calls: &[Call]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(content.to_owned());
    for call in calls {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&write_call(&call.name, &call.arguments.write()));
    }
    text
}

/// One call in that syntax. `arguments` is JSON, or a model's malformed arguments, which then read as text
/// again.
#[must_use]
pub fn write_call(name: &str, arguments: &str) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::from("<tool_call>\n{\"name\": \""));
    escape(name, &mut text);
    text.push_str("\", \"arguments\": ");
    text.push_str(arguments);
    text.push_str("}\n</tool_call>");
    text
}

/// The canonical form of an answer: independent of the syntax of its calls, and trimmed, since chat programs
/// trim.
#[must_use]
pub fn canonical_answer(text: &str) -> Zeroizing<String> {
    let answer = read_answer(text.trim(), |_| true);
    let mut canonical = Zeroizing::new(answer.content.trim().to_owned());
    for call in &answer.calls {
        canonical.push('\n');
        canonical.push_str(&write_call(&call.name, &call.arguments.write_canonical()));
    }
    canonical
}

/// The id of an answer's call: `seed` identifies the answer, `position` the call, below [`MAX_CALLS`].
#[must_use]
pub fn call_id(seed: [u8; 8], position: usize) -> String {
    let digit = |number: usize| char::from(DIGITS.get(number % DIGITS.len()).copied().unwrap_or(b'0'));
    let mut id: String = seed.into_iter().map(|byte| digit(byte.into())).collect();
    id.push(digit(position));
    id
}

/// The id of a call in an answer that only its text identifies.
#[must_use]
pub fn call_id_of(answer: &str, position: usize) -> String {
    let hash = *blake3::hash(answer.as_bytes()).as_bytes();
    call_id(std::array::from_fn(|index| hash.get(index).copied().unwrap_or(0)), position)
}

/// The position of a call in its answer, from its id; `None` for an id without the form of [`call_id`].
#[must_use]
pub fn call_position(id: &str) -> Option<usize> {
    if id.len() != CALL_ID_CHARACTERS || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let last = id.bytes().last()?;
    DIGITS.iter().position(|digit| *digit == last)
}
