//! Server-sent events of the chat-completions protocol: bytes in, chunks out, every length bounded. Pure.

use serde::Deserialize;
use zeroize::Zeroizing;

use super::fault::classify;
use crate::engine::{EngineError, FinishReason};

/// Maximum bytes of one line. A chunk has a few tokens in a few hundred bytes; some servers add usage and
/// their own fields.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;

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
    pub(super) usage: Option<(u32, u32)>,
}

/// A part of a tool call.
#[derive(PartialEq, Eq, Deserialize)]
#[serde(from = "WireCall")]
pub(super) struct CallPart {
    /// Index of the call in the answer, if the server sends one.
    pub(super) index: Option<usize>,
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
    usage: Option<WireUsage>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct WireChoice {
    delta: Option<WireDelta>,
    message: Option<WireDelta>,
    finish_reason: Option<String>,
}

/// A message, or a part of it.
#[derive(Default, PartialEq, Eq, Deserialize)]
pub(super) struct WireDelta {
    content: Option<String>,
    tool_calls: Option<Vec<CallPart>>,
    /// The only call in an older form.
    function_call: Option<WireFunction>,
}

impl WireDelta {
    /// Its text and its calls.
    pub(super) fn split(self) -> (String, Vec<CallPart>) {
        let older =
            self.function_call.map(|function| WireCall { function: Some(function), ..WireCall::default() });
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        (self.content.unwrap_or_default(), calls.chain(older.map(CallPart::from)).collect())
    }
}

#[derive(Default, Deserialize)]
struct WireCall {
    index: Option<usize>,
    id: Option<String>,
    function: Option<WireFunction>,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
struct WireFunction {
    name: Option<String>,
    /// JSON in a string, or the value itself.
    arguments: Option<serde_json::Value>,
}

impl From<WireCall> for CallPart {
    fn from(WireCall { index, id, function }: WireCall) -> Self {
        let WireFunction { name, arguments } = function.unwrap_or_default();
        let arguments = match arguments {
            None => String::new(),
            Some(serde_json::Value::String(text)) => text,
            Some(value) => value.to_string(),
        };
        Self { index, id: id.unwrap_or_default(), name: name.unwrap_or_default(), arguments }
    }
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

/// Cuts a byte stream into lines and lines into events.
#[derive(Default)]
pub(super) struct SseReader {
    line: Zeroizing<Vec<u8>>,
    /// Data of an event whose JSON goes on in the next line.
    begun: Zeroizing<Vec<u8>>,
}

impl SseReader {
    /// Takes bytes; appends the event of every completed line.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), EngineError> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + self.begun.len() + part.len() > MAX_LINE_BYTES {
                return Err(EngineError::BackendProtocol { reason: "a line is too long" });
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take_line(&line)?);
            }
        }
        Ok(())
    }

    /// Takes the end of the stream, which may end the last line.
    pub(super) fn end(&mut self, events: &mut Vec<SseEvent>) -> Result<(), EngineError> {
        self.push(b"\n\n", events)
    }

    /// The event of a complete line; comments and other fields have none.
    fn take_line(&mut self, line: &[u8]) -> Result<Option<SseEvent>, EngineError> {
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
            Ok(wire) => chunk(wire, &data).map(Some),
            Err(error) if error.is_eof() && !ends => {
                self.begun = data;
                Ok(None)
            }
            Err(_) => Err(EngineError::BackendProtocol { reason: "a chunk is not the JSON it should be" }),
        }
    }
}

fn chunk(wire: WireChunk, data: &[u8]) -> Result<SseEvent, EngineError> {
    if wire.error.is_some() {
        return Err(classify(STREAM_STATUS, None, data));
    }
    let usage = |usage: WireUsage| {
        (usage.prompt_tokens.unwrap_or_default(), usage.completion_tokens.unwrap_or_default())
    };
    let mut chunk = Chunk { usage: wire.usage.map(usage), ..Chunk::default() };
    if let Some(choice) = wire.choices.unwrap_or_default().into_iter().next() {
        (chunk.text, chunk.calls) = choice.delta.unwrap_or_default().split();
        chunk.message = choice.message.map(Box::new);
        let finish = choice.finish_reason.filter(|reason| !reason.is_empty());
        chunk.finish = finish.map(|reason| match reason.as_str() {
            "length" => FinishReason::Length,
            _ => FinishReason::Stop,
        });
    }
    Ok(SseEvent::Chunk(chunk))
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
                text("", None, None),
                text("hé", None, None),
                text("", Some(FinishReason::Length), None),
                text("", None, Some((3, 4))),
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

    #[test]
    fn refuses_garbage_errors_and_endless_lines() {
        for line in [&b"data: {\n\n"[..], b"data: [],\n", b"data: {\"choices\":7}\n", b"data: \xFF\n"] {
            assert!(matches!(read(&[line]), Err(EngineError::BackendProtocol { .. })));
        }
        let error = read(&[b"data: {\"error\":{\"message\":\"secret\"}}\n"]).unwrap_err();
        assert!(!error.to_string().contains("secret"));
        let endless = vec![b'x'; 1024];
        let mut reader = SseReader::default();
        let pushes = (0..MAX_LINE_BYTES / 1024 + 1).map(|_| reader.push(&endless, &mut Vec::new()));
        assert!(pushes.collect::<Result<Vec<_>, _>>().is_err());
    }
}
