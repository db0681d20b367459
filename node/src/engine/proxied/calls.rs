//! Tool calls from a server: joins their parts and writes them as an answer's text. Pure.

use baton_proto::{
    limits::MAX_MESSAGE_BYTES,
    tools::{MAX_CALLS, write_call},
};
use serde::de::IgnoredAny;
use zeroize::Zeroizing;

use super::sse::CallPart;
use crate::engine::EngineError;

/// The tool calls of one answer, in the order of their beginnings. Servers may send their parts in turns, so a call
/// without whole arguments stays open until the answer ends.
#[derive(Default)]
pub(super) struct Calls {
    begun: Vec<Open>,
    /// Number of calls whose text was returned.
    written: usize,
}

#[derive(Default)]
struct Open {
    index: Option<u32>,
    id: String,
    name: String,
    arguments: Zeroizing<String>,
}

impl Open {
    /// Whether a part belongs to this call. Servers omit ids and indices, give all calls one id or one index, give each
    /// part an id of its own, and repeat ids and names with each part.
    fn goes_on(&self, part: &CallPart) -> bool {
        let has_ids = !part.id.is_empty() && !self.id.is_empty();
        if part.index.is_some() && self.index.is_some() && part.index != self.index {
            return false;
        }
        let is_whole = || is_json(&self.arguments);
        if has_ids && part.id != self.id {
            return part.index.is_some() && part.name.is_empty() && !is_whole();
        }
        if part.name.is_empty() || self.name.is_empty() {
            return true;
        }
        // After whole arguments, a name with more of them begins another call.
        let is_open = || part.arguments.trim().is_empty() || !is_whole();
        match (has_ids, part.index.is_some()) {
            (true, true) => is_open() || repeats(&part.arguments, &self.arguments),
            (false, false) => part.name == self.name && !self.arguments.is_empty() && !is_whole(),
            _ => is_open(),
        }
    }

    /// Adds a part. Some servers send a name or arguments again from the beginning, instead of the rest.
    fn take(&mut self, CallPart { index, id, name, arguments }: CallPart) {
        self.index = self.index.or(index);
        if self.id.is_empty() {
            self.id = id;
        }
        if name.starts_with(&self.name) {
            self.name.clear();
        }
        self.name.push_str(&name);
        let arguments = Zeroizing::new(arguments);
        if repeats(&arguments, &self.arguments) {
            self.arguments.clear();
        }
        self.arguments.push_str(&arguments);
    }
}

/// Whether `part` is the beginning of a value, and begins with what is there. A value in a value only looks so: it
/// brings the brackets that end the outer one, or is no longer than the outer one's beginning. `{}` stands for arguments
/// to come.
fn repeats(part: &str, there: &str) -> bool {
    let adds = part.len() > there.len() || is_json(there);
    let begins =
        |text| serde_json::from_str::<IgnoredAny>(text).map_or_else(|error| error.is_eof(), |_| true);
    part.starts_with('{') && (there == "{}" || part.starts_with(there) && adds && begins(part))
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

impl Calls {
    /// Whether no call has begun.
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Takes a part. If it begins a call, returns the text of the calls before that have their arguments. `follows`
    /// says whether other text precedes.
    pub(super) fn take(&mut self, part: CallPart, follows: bool) -> Result<String, EngineError> {
        let mut ended = String::new();
        let place = self.begun.iter().rposition(|open| open.goes_on(&part)).unwrap_or(self.begun.len());
        if place == MAX_CALLS {
            return Err(EngineError::BackendProtocol { reason: "an answer has too many calls" });
        }
        if place == self.begun.len() {
            ended = self.write(follows, |open| *open.arguments != "{}" && is_json(&open.arguments));
            self.begun.push(Open::default());
        }
        if let Some(open) = self.begun.get_mut(place) {
            open.take(part);
        }
        let size = |open: &Open| open.id.len() + open.name.len() + open.arguments.len();
        if self.begun.iter().map(size).sum::<usize>() > MAX_MESSAGE_BYTES {
            return Err(EngineError::BackendProtocol { reason: "the calls of an answer are too long" });
        }
        Ok(ended)
    }

    /// The text of the other calls at the end. Invalid arguments remain as text for the reader.
    pub(super) fn finish(mut self, follows: bool) -> String {
        self.write(follows, |_| true)
    }

    fn write(&mut self, follows: bool, ends: impl Fn(&Open) -> bool) -> String {
        let mut text = String::new();
        while let Some(open) = self.begun.get(self.written).filter(|open| ends(open)) {
            text.push_str(if follows || self.written > 0 { "\n" } else { "" });
            let arguments = if open.arguments.trim().is_empty() { "{}" } else { open.arguments.as_str() };
            text.push_str(&write_call(&open.name, arguments));
            self.written += 1;
        }
        text
    }
}
