//! A conversation as input of a chat template. Text is zeroized on drop and hidden from `Debug`.

use std::fmt::{self, Write as _};

use serde_json::Value;
use zeroize::Zeroizing;

/// A message's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The role's name in chat templates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// Messages and tools of a conversation.
#[derive(Clone, Default)]
pub struct Conversation {
    /// The messages, the oldest first.
    pub messages: Vec<Message>,
    /// The tools that may be called; may be empty.
    pub tools: Vec<Tool>,
}

/// A tool that may be called.
#[derive(Clone)]
pub struct Tool {
    /// Its definition, in the format of OpenAI's API.
    pub definition: Json,
    /// The definition as JSON on one line, with a space after commas and colons, as models saw it most.
    pub text: Zeroizing<String>,
}

/// A message.
#[derive(Clone)]
pub struct Message {
    /// The author's role.
    pub role: Role,
    /// The whole text, including calls in the model's own syntax.
    pub text: Zeroizing<String>,
    /// The text without `calls`, for templates that show calls separately.
    pub content: Zeroizing<String>,
    /// The calls in an assistant's message.
    pub calls: Vec<Call>,
    /// The name of the author, or of the tool with this result.
    pub name: Option<String>,
    /// In a result, the id of the call that it answers.
    pub call_id: Option<String>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        let text = Zeroizing::new(text.into());
        Self { role, content: text.clone(), text, calls: Vec::new(), name: None, call_id: None }
    }
}

/// A call of a tool.
#[derive(Clone)]
pub struct Call {
    /// The id by which its result names it. The template sees letters and digits unchanged, because some
    /// templates check the length; any other id is ordinary text.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments: a map.
    pub arguments: Json,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conversation({} messages, {} tools)", self.messages.len(), self.tools.len())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({:?}, {} bytes, {} calls)", self.role, self.text.len(), self.calls.len())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?})", self.arguments)
    }
}

/// A JSON value whose maps keep the order of their keys, because models were trained on definitions in their
/// authors' order.
#[derive(Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(Zeroizing<String>),
    /// A text.
    Text(Zeroizing<String>),
    /// A list.
    List(Vec<Json>),
    /// A map, in order.
    Map(Vec<(Zeroizing<String>, Json)>),
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => Self::Number(Zeroizing::new(number.to_string())),
            Value::String(text) => Self::Text(text.into()),
            Value::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            Value::Object(entries) => {
                Self::Map(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
        }
    }
}

impl fmt::Debug for Json {
    /// Without the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(_) => f.write_str("bool"),
            Self::Number(_) => f.write_str("number"),
            Self::Text(text) => write!(f, "text of {} bytes", text.len()),
            Self::List(values) => write!(f, "list of {}", values.len()),
            Self::Map(entries) => write!(f, "map of {}", entries.len()),
        }
    }
}

/// Appends a text, escaped for the inside of a JSON string.
pub(super) fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => drop(write!(out, "\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
}
