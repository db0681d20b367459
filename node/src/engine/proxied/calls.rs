//! Tool calls from a server: joins their parts and writes them as an answer's text. Pure.

use baton_proto::{
    limits::MAX_MESSAGE_BYTES,
    tools::{MAX_CALLS, write_call},
};
use zeroize::Zeroizing;

use super::sse::CallPart;
use crate::engine::EngineError;

/// The tool calls of one answer.
#[derive(Default)]
pub(super) struct Calls {
    /// The call whose parts are arriving.
    open: Option<Open>,
    /// Number of calls begun.
    begun: usize,
    /// Whether any part of the answer precedes the next call.
    follows: bool,
}

struct Open {
    index: Option<usize>,
    name: String,
    arguments: Zeroizing<String>,
}

impl Calls {
    /// Takes a part. Returns the text of the previous call if this part completes it.
    pub(super) fn take(&mut self, part: CallPart) -> Result<String, EngineError> {
        let mut ended = String::new();
        let goes_on = self.open.as_ref().is_some_and(|open| match part.index {
            Some(index) => open.index == Some(index),
            None => part.name.is_empty(),
        });
        if !goes_on {
            ended = self.finish();
            self.begun += 1;
            if self.begun > MAX_CALLS {
                return Err(EngineError::BackendProtocol { reason: "an answer has too many calls" });
            }
        }
        let open = self.open.get_or_insert_with(|| Open {
            index: part.index,
            name: String::new(),
            arguments: Zeroizing::default(),
        });
        open.name.push_str(&part.name);
        open.arguments.push_str(&Zeroizing::new(part.arguments));
        if open.name.len() + open.arguments.len() > MAX_MESSAGE_BYTES {
            return Err(EngineError::BackendProtocol { reason: "a call is too long" });
        }
        Ok(ended)
    }

    /// Notes text, which a call may follow.
    pub(super) fn follow_text(&mut self) {
        self.follows = true;
    }

    /// The text of the open call, if there is one. Invalid arguments remain as text for the reader.
    pub(super) fn finish(&mut self) -> String {
        let Some(open) = self.open.take() else { return String::new() };
        let arguments = if open.arguments.trim().is_empty() { "{}" } else { open.arguments.as_str() };
        let mut text = String::from(if std::mem::replace(&mut self.follows, true) { "\n" } else { "" });
        text.push_str(&write_call(&open.name, arguments));
        text
    }
}
