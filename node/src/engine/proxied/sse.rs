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
    pub(super) finish: Option<FinishReason>,
    pub(super) usage: Option<(u32, u32)>,
}

/// A part of a tool call.
#[derive(PartialEq, Eq, Deserialize)]
#[serde(from = "WireCall")]
pub(super) struct CallPart {
    /// Index of the call in the answer. If the server omits it, a part with a name begins a call.
    pub(super) index: Option<usize>,
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
    #[serde(default)]
    choices: Vec<WireChoice>,
    usage: Option<WireUsage>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct WireChoice {
    #[serde(default)]
    delta: WireDelta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct WireDelta {
    content: Option<String>,
    tool_calls: Option<Vec<CallPart>>,
}

#[derive(Deserialize)]
struct WireCall {
    index: Option<usize>,
    #[serde(default)]
    function: WireFunction,
}

#[derive(Default, Deserialize)]
struct WireFunction {
    name: Option<String>,
    arguments: Option<String>,
}

impl From<WireCall> for CallPart {
    fn from(WireCall { index, function }: WireCall) -> Self {
        let (name, arguments) = (function.name.unwrap_or_default(), function.arguments.unwrap_or_default());
        Self { index, name, arguments }
    }
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
}

/// Cuts a byte stream into lines and lines into events.
#[derive(Default)]
pub(super) struct SseReader {
    line: Zeroizing<Vec<u8>>,
}

impl SseReader {
    /// Takes bytes; appends the event of every completed line.
    pub(super) fn push(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), EngineError> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + part.len() > MAX_LINE_BYTES {
                return Err(EngineError::BackendProtocol { reason: "a line is too long" });
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let event = parse_line(&self.line);
                self.line = Zeroizing::new(Vec::new());
                events.extend(event?);
            }
        }
        Ok(())
    }
}

/// The event of a complete line; comments, empty lines and other fields have none.
fn parse_line(line: &[u8]) -> Result<Option<SseEvent>, EngineError> {
    // Some servers name an error in the field, not in the event.
    if let Some(error) = line.strip_prefix(b"error:") {
        return Err(classify(STREAM_STATUS, None, error.trim_ascii()));
    }
    let Some(data) = line.strip_prefix(b"data:") else { return Ok(None) };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(Some(SseEvent::End));
    }
    let wire: WireChunk = serde_json::from_slice(data)
        .map_err(|_| EngineError::BackendProtocol { reason: "a chunk is not the JSON it should be" })?;
    if wire.error.is_some() {
        return Err(classify(STREAM_STATUS, None, data));
    }
    let mut chunk = Chunk {
        usage: wire.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)),
        ..Chunk::default()
    };
    if let Some(choice) = wire.choices.into_iter().next() {
        chunk.text = choice.delta.content.unwrap_or_default();
        chunk.calls = choice.delta.tool_calls.unwrap_or_default();
        chunk.finish = choice.finish_reason.map(|reason| match reason.as_str() {
            "length" => FinishReason::Length,
            _ => FinishReason::Stop,
        });
    }
    Ok(Some(SseEvent::Chunk(chunk)))
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
    fn refuses_garbage_errors_and_endless_lines() {
        for line in
            [&b"data: {\n"[..], b"data: \n", b"data: []\n", b"data: {\"choices\":7}\n", b"data: \xFF\n"]
        {
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
