//! Server-sent events of the chat-completions protocol: bytes in, chunks out, every length bounded. Pure.

use baton_proto::{limits::MAX_MESSAGE_BYTES, tools::Json};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use zeroize::Zeroizing;

use super::fault::classify;
use crate::engine::{BackendFault, EngineError, FinishReason};

/// Maximum bytes of one line. Most have a few tokens, but one may have the whole answer with its JSON.
const MAX_LINE_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// Maximum bytes of an event in several lines: each line has all of them read again.
const MAX_LINES_BYTES: usize = 64 * 1024;

/// Status of an answer whose error comes in its stream.
const STREAM_STATUS: u16 = 200;

/// The event of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SseEvent {
    /// A piece of the answer and its metadata.
    Chunk(Chunk),
    /// The stream's end marker.
    End,
}

/// The relevant fields of a chunk.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) text: String,
    pub(super) calls: Vec<CallPart>,
    /// The whole message, which some servers send at the end in place of its parts, or after them.
    pub(super) message: Option<Box<WireDelta>>,
    pub(super) finish: Option<FinishReason>,
    /// Tokens of the prompt and of the answer.
    pub(super) usage: [Option<u32>; 2],
}

/// A part of a tool call.
#[derive(PartialEq, Eq, Deserialize)]
#[serde(from = "WireCall")]
pub(super) struct CallPart {
    /// Index of the call in the answer, if the server sends one.
    pub(super) index: Option<u32>,
    /// The server's id of the call; empty if this part has none.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk")
            .field("finish", &self.finish)
            .field("calls", &self.calls.len())
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct WireChunk {
    choices: Option<Vec<WireChoice>>,
    usage: Option<Json>,
    error: Option<IgnoredAny>,
    /// Fields of errors without `error`.
    message: Option<IgnoredAny>,
    detail: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct WireChoice {
    delta: Option<WireDelta>,
    message: Option<WireDelta>,
    finish_reason: Option<String>,
    error: Option<IgnoredAny>,
}

impl WireChunk {
    fn is_error(&self) -> bool {
        let Some(choices) = &self.choices else {
            return self.error.is_some() || self.message.is_some() || self.detail.is_some();
        };
        self.error.is_some() || choices.iter().any(|choice| choice.error.is_some())
    }
}

/// A message, or a part of it.
#[derive(Default, PartialEq, Eq, Deserialize)]
pub(super) struct WireDelta {
    #[serde(default, deserialize_with = "content")]
    content: String,
    /// The content of an answer that refuses.
    #[serde(default, deserialize_with = "content")]
    refusal: String,
    tool_calls: Option<Vec<CallPart>>,
    /// The only call in an older form.
    function_call: Option<WireFunction>,
}

impl WireDelta {
    /// Its text and its calls.
    pub(super) fn split(mut self) -> (String, Vec<CallPart>) {
        self.content.push_str(&self.refusal);
        let older =
            self.function_call.map(|function| WireCall { function: Some(function), ..WireCall::default() });
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        (self.content, calls.chain(older.map(CallPart::from)).collect())
    }
}

#[derive(Default, Deserialize)]
struct WireCall {
    index: Option<Json>,
    id: Option<Json>,
    function: Option<WireFunction>,
    /// The function's fields, where a server omits the function.
    name: Option<String>,
    arguments: Option<Json>,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
struct WireFunction {
    name: Option<String>,
    /// JSON in a string, or the value itself.
    arguments: Option<Json>,
}

impl From<WireCall> for CallPart {
    fn from(WireCall { index, id, function, name, arguments }: WireCall) -> Self {
        let WireFunction { name, arguments } = function.unwrap_or(WireFunction { name, arguments });
        let text = |value: Option<Json>| value.map(written).unwrap_or_default();
        Self {
            index: index.and_then(number),
            id: text(id),
            name: name.unwrap_or_default(),
            arguments: text(arguments),
        }
    }
}

/// A string, or another value's JSON.
fn written(value: Json) -> String {
    match value {
        Json::Text(mut text) => std::mem::take(&mut *text),
        value => std::mem::take(&mut *value.write()),
    }
}

/// A count, however it is written; `None` for another value.
fn number(value: Json) -> Option<u32> {
    written(value).trim_end_matches(".0").parse().ok()
}

fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Json::deserialize(deserializer).map(joined)
}

/// A text, or a list of its parts; without parts of other kinds, such as thoughts.
fn joined(content: Json) -> String {
    match content {
        Json::Text(mut text) => std::mem::take(&mut *text),
        Json::List(parts) => parts.into_iter().map(joined).collect(),
        part if part.get("type").is_none_or(|kind| kind.as_text() == Some("text")) => {
            part.get("text").cloned().map(joined).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// Cuts a byte stream into lines and lines into events.
#[derive(Default)]
pub(super) struct SseReader {
    line: Zeroizing<Vec<u8>>,
    /// Data of an event whose JSON goes on in the next line.
    begun: Zeroizing<Vec<u8>>,
}

impl SseReader {
    /// Takes bytes; appends the event of every completed line. A line that begins with JSON ends with the stream.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), EngineError> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let limit = if self.begun.is_empty() { MAX_LINE_BYTES } else { MAX_LINES_BYTES };
            if self.line.len() + self.begun.len() + part.len() > limit {
                return Err(EngineError::BackendProtocol { reason: "a line is too long" });
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") && !unmarked(&self.line).starts_with(b"{") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take_line(&line)?);
            }
        }
        Ok(())
    }

    /// Takes the end of the stream, which may end the last line, or the whole answer of a server that does not
    /// stream.
    pub(super) fn end(&mut self, events: &mut Vec<SseEvent>) -> Result<(), EngineError> {
        self.push(b"\n\n", events)?;
        if self.line.is_empty() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        let whole = unmarked(&line);
        let wire = WireChunk::deserialize(&mut serde_json::Deserializer::from_slice(whole));
        let mut chunk = chunk(wire.map_err(|error| malformed(&error))?, whole)?;
        if chunk.message.is_none() {
            // It may be an error in a form of its own.
            return Err(match classify(STREAM_STATUS, None, whole) {
                EngineError::Backend { fault: BackendFault::Failed, .. } => MALFORMED,
                error => error,
            });
        }
        chunk.finish.get_or_insert(FinishReason::Stop);
        events.push(SseEvent::Chunk(chunk));
        Ok(())
    }

    /// The event of a complete line; comments and other fields have none.
    fn take_line(&mut self, line: &[u8]) -> Result<Option<SseEvent>, EngineError> {
        let line = unmarked(line);
        // Some servers name an error in the field, not in the event.
        if let Some(error) = line.strip_prefix(b"error:") {
            return Err(classify(STREAM_STATUS, None, error.trim_ascii()));
        }
        let ends = line.trim_ascii().is_empty();
        let Some(data) = line.strip_prefix(b"data:").or(ends.then_some(b"")) else { return Ok(None) };
        self.begun.extend_from_slice(data.trim_ascii());
        if self.begun.is_empty() {
            return Ok(None);
        }
        let data = std::mem::take(&mut self.begun);
        if *data == b"[DONE]" {
            return Ok(Some(SseEvent::End));
        }
        match serde_json::from_slice(&data) {
            Ok(wire) => chunk(wire, &data).map(|chunk| Some(SseEvent::Chunk(chunk))),
            Err(error) if error.is_eof() && !ends => {
                self.begun = data;
                Ok(None)
            }
            Err(error) => Err(malformed(&error)),
        }
    }
}

/// Without the byte order mark that some servers send first.
fn unmarked(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line)
}

const MALFORMED: EngineError =
    EngineError::BackendProtocol { reason: "a chunk is not the JSON it should be" };

fn malformed(error: &serde_json::Error) -> EngineError {
    if error.is_eof() { EngineError::BackendTruncated } else { MALFORMED }
}

fn chunk(wire: WireChunk, data: &[u8]) -> Result<Chunk, EngineError> {
    if wire.is_error() {
        return Err(classify(STREAM_STATUS, None, data));
    }
    let count = |name: &str| wire.usage.as_ref().and_then(|usage| number(usage.get(name)?.clone()));
    let usage = ["prompt_tokens", "completion_tokens"].map(count);
    let mut chunk = Chunk { usage, ..Chunk::default() };
    if let Some(choice) = wire.choices.unwrap_or_default().into_iter().next() {
        (chunk.text, chunk.calls) = choice.delta.unwrap_or_default().split();
        chunk.message = choice.message.map(Box::new);
        let finish = choice.finish_reason.filter(|reason| !reason.is_empty());
        chunk.finish = finish.map(|reason| finish_of(&reason, data)).transpose()?;
    }
    Ok(chunk)
}

/// Why the answer ended, in the words of several servers.
fn finish_of(reason: &str, data: &[u8]) -> Result<FinishReason, EngineError> {
    match reason.to_ascii_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" | "model_length" => Ok(FinishReason::Length),
        "content_filter" | "safety" => Err(classify(STREAM_STATUS, None, b"content_filter")),
        "error" => Err(classify(STREAM_STATUS, None, data)),
        _ => Ok(FinishReason::Stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<SseEvent>, EngineError> {
        let mut reader = SseReader::default();
        let mut events = Vec::new();
        for piece in pieces {
            reader.push(piece, &mut events)?;
        }
        Ok(events)
    }

    const STREAM: &[u8] = b": hello\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"h\xC3\xA9\"},\"finish_reason\":null}]}\n\n\
        event: x\ndata:{\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_cut_of_the_bytes_does_not_matter() {
        let whole = read(&[STREAM]).unwrap();
        let text = |chunk: &str, finish, usage| {
            SseEvent::Chunk(Chunk { text: chunk.into(), finish, usage, ..Chunk::default() })
        };
        assert_eq!(
            whole,
            [
                text("", None, [None; 2]),
                text("hé", None, [None; 2]),
                text("", Some(FinishReason::Length), [None; 2]),
                text("", None, [Some(3), Some(4)]),
                SseEvent::End,
            ]
        );
        for size in 1..20 {
            assert_eq!(read(&STREAM.chunks(size).collect::<Vec<_>>()).unwrap(), whole);
        }
    }

    #[test]
    fn an_event_may_have_several_lines_and_none_and_the_stream_may_end_in_one() {
        let mut events = Vec::new();
        let mut reader = SseReader::default();
        let bytes = b"data:\n\ndata: {\"choices\":\r\ndata:null}\r\n\r\ndata: {\"choices\":[{\"delta\":null,\"finish_reason\":\"stop\"}]}";
        reader.push(bytes, &mut events).unwrap();
        reader.end(&mut events).unwrap();
        let finish = Some(FinishReason::Stop);
        let expected = [Chunk::default(), Chunk { finish, ..Chunk::default() }].map(SseEvent::Chunk);
        assert_eq!(events, expected);
    }
}
