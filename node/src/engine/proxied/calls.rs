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

#[derive(Default)]
struct Open {
    index: Option<usize>,
    id: String,
    name: String,
    arguments: Zeroizing<String>,
}

impl Open {
    /// Whether a part belongs to this call. Servers omit ids and indices, give all calls one id or one index, and
    /// repeat ids and names with each part.
    fn goes_on(&self, part: &CallPart) -> bool {
        let has_ids = !part.id.is_empty() && !self.id.is_empty();
        if part.index.is_some() && self.index.is_some() && part.index != self.index {
            return false;
        }
        if has_ids && (part.id != self.id || part.index.is_some()) {
            return part.id == self.id;
        }
        if part.name.is_empty() || self.name.is_empty() {
            return true;
        }
        // After complete arguments, a name begins another call.
        (has_ids || part.index.is_some()) && !is_json(&self.arguments)
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

impl Calls {
    /// Whether no call has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.begun == 0
    }

    /// Takes a part. Returns the text of the previous call if this part completes it.
    pub(super) fn take(&mut self, part: CallPart) -> Result<String, EngineError> {
        let mut ended = String::new();
        if !self.open.as_ref().is_some_and(|open| open.goes_on(&part)) {
            ended = self.finish();
            self.begun += 1;
            if self.begun > MAX_CALLS {
                return Err(EngineError::BackendProtocol { reason: "an answer has too many calls" });
            }
        }
        let open = self.open.get_or_insert_default();
        open.index = open.index.or(part.index);
        if open.id.is_empty() {
            open.id = part.id;
        }
        if open.name != part.name {
            open.name.push_str(&part.name);
        }
        open.arguments.push_str(&Zeroizing::new(part.arguments));
        if open.id.len() + open.name.len() + open.arguments.len() > MAX_MESSAGE_BYTES {
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
