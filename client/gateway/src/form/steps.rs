//! The steps of an answer, from the turn to the adapter of the program's API.

use baton_client::{TokenReport, TurnOutcome};
use baton_proto::{memory::MemoryItem, record::FinishReason};
use serde_json::{Value, json};

use crate::{clock::rfc3339, form::fields::without_nulls, http::api_error::ApiError};

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
    /// Data about the turn for which no API has a field. Without a value, a field is absent.
    pub(crate) fn about(&self) -> Value {
        let TurnOutcome { receipt, omitted, memory, .. } = &self.outcome;
        let omitted = (!omitted.is_nothing()).then(|| {
            json!({ "turns": omitted.turns, "memories": omitted.memories, "message": omitted.to_string() })
        });
        without_nulls(json!({
            "session": self.outcome.session.to_string(),
            "seq": self.outcome.seq,
            // For people, who count from 1.
            "turn": self.outcome.seq.saturating_add(1),
            "node": self.outcome.node.to_string(),
            // A turn that does not rebuild is never sent as an answer.
            "verified": true,
            "model": receipt.model.to_string(),
            "engine": receipt.engine.name(),
            "seed": receipt.seed,
            "receipt": receipt.receipt_hash().to_string(),
            "first_token_ms": receipt.timings.first_token_ms,
            // The relayer recalled them for this caller, in its project alone.
            "memories": (!memory.is_empty()).then(|| memories(memory)),
            "omitted": omitted,
            "devices": (!self.devices.is_empty()).then_some(&self.devices),
            "messages_left_out": (self.messages_left_out > 0).then_some(self.messages_left_out),
            "ignored": (!self.ignored.is_empty()).then_some(&self.ignored),
        }))
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
