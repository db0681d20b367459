//! The steps of an answer, from the turn to the adapter of the program's API.

use baton_client::{TokenReport, TurnOutcome};
use baton_proto::{memory::MemoryItem, record::FinishReason};
use serde_json::{Value, json};

use crate::{clock::rfc3339, http::api_error::ApiError};

/// A step of an answer.
pub(crate) enum Step {
    /// The client asks a node, by this name of the model.
    Model(String),
    /// A remark about the nodes of the answer, such as a takeover; the APIs of programs have no place for it.
    Note(String),
    /// More of the text, which may be empty, and the reports of tokens since the last text.
    Text(String, Vec<TokenReport>),
    /// The client rebuilt, compared and accepted the answer.
    Done(Box<AcceptedAnswer>),
    /// The turn failed.
    Failed(ApiError),
}

/// An accepted answer.
pub(crate) struct AcceptedAnswer {
    pub(crate) outcome: TurnOutcome,
    /// Why it ended, given its calls.
    pub(crate) finish: FinishReason,
    /// The model's name.
    pub(crate) model: String,
    /// Events of the session's other devices.
    pub(crate) devices: Vec<String>,
    /// The oldest messages of the request that were left out: together they are larger than a turn.
    pub(crate) messages_left_out: usize,
    /// The names of the request's fields that were skipped.
    pub(crate) ignored: Vec<String>,
}

/// Memories that an answer used.
pub(crate) fn memories(items: &[MemoryItem]) -> Value {
    items
        .iter()
        .map(
            |item| json!({ "text": item.text, "kind": item.source, "created": rfc3339(item.time_ms / 1000) }),
        )
        .collect()
}

impl AcceptedAnswer {
    /// Data about the turn for which no API has a field.
    #[expect(clippy::indexing_slicing, reason = "a field of an object that is made here")]
    pub(crate) fn about(&self) -> Value {
        let outcome = &self.outcome;
        let mut about = json!({
            "session": outcome.session.to_string(),
            "seq": outcome.seq,
            // For people, who count from 1.
            "turn": outcome.seq.saturating_add(1),
            "node": outcome.node.to_string(),
            // A turn that does not rebuild is never sent as an answer.
            "verified": true,
            "model": outcome.receipt.model.to_string(),
            "engine": outcome.receipt.engine.name(),
            "seed": outcome.receipt.seed,
            "receipt": outcome.receipt.receipt_hash().to_string(),
            "first_token_ms": outcome.receipt.timings.first_token_ms,
        });
        // The relayer recalled them for this caller, in its project alone.
        if !outcome.memory.is_empty() {
            about["memories"] = memories(&outcome.memory);
        }
        if !outcome.omitted.is_nothing() {
            let omitted = &outcome.omitted;
            about["omitted"] = json!({
                "turns": omitted.turns,
                "memories": omitted.memories,
                "message": omitted.to_string(),
            });
        }
        if !self.devices.is_empty() {
            about["devices"] = json!(self.devices);
        }
        if self.messages_left_out > 0 {
            about["messages_left_out"] = json!(self.messages_left_out);
        }
        if !self.ignored.is_empty() {
            about["ignored"] = json!(self.ignored);
        }
        about
    }

    /// The model's file and the kind of engine: with the same seed, they answer the same.
    pub(crate) fn fingerprint(&self) -> String {
        let receipt = &self.outcome.receipt;
        let model: String = receipt.model.to_string().chars().take(12).collect();
        format!("fp_{model}_{}", receipt.engine.name())
    }
}

/// The items of an answer that its program has: bytes of the text, or ids of reported tokens. When the answer restarts,
/// equal items are not sent again. Once the two differ, no more items follow.
#[derive(Default)]
pub(crate) struct SentItems<T> {
    items: Vec<T>,
    /// Items of the present answer, which agree with the sent ones.
    agreed: usize,
    differs: bool,
}

impl<T: Copy + PartialEq> SentItems<T> {
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    pub(crate) fn restart(&mut self) {
        (self.agreed, self.differs) = (0, false);
    }

    /// Takes items. Returns the number of those at their beginning that are not sent.
    pub(crate) fn take(&mut self, new: &[T]) -> usize {
        let known = self.items.get(self.agreed..).unwrap_or_default();
        self.differs |= known.iter().zip(new).any(|(known, new)| known != new);
        if self.differs {
            return new.len();
        }
        let same = known.len().min(new.len());
        self.items.extend(new.iter().skip(same));
        self.agreed += new.len();
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_answer_is_not_sent_twice_and_nothing_follows_once_it_differs() {
        type Case = (&'static [Option<&'static str>], &'static [&'static str]);
        let cases: [Case; 3] = [
            (
                &[Some("one two"), None, Some("one"), Some(" two three"), Some(" four")],
                &["one two", " three", " four"],
            ),
            (&[Some("one two"), None, Some("one"), None, Some("one two"), Some(" 3")], &["one two", " 3"]),
            (&[Some("one two"), None, Some("one"), Some(" 2"), Some(" three")], &["one two"]),
        ];
        for (pieces, expected) in cases {
            let (mut sent, mut out) = (SentItems::default(), Vec::new());
            for piece in pieces {
                match piece {
                    Some(text) => out.push(&text[sent.take(text.as_bytes())..]),
                    None => sent.restart(),
                }
            }
            out.retain(|text| !text.is_empty());
            assert_eq!((&out[..], sent.items()), (expected, expected.concat().as_bytes()));
        }
    }
}
