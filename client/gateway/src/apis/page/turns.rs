//! A session's turns as the chat page shows them. Pure.

use std::collections::{HashMap, HashSet};

use baton_client::{BlobLifetime, TurnView};
use baton_proto::{
    SignedObject,
    receipt::Receipt,
    record::{FinishReason, Message, Record, RecordKind},
};
use serde_json::{Value, json};

use crate::{
    form::{
        fields::{role_name, with},
        steps::memories,
    },
    state::ModelNames,
};

/// The turns, oldest first: the present ones, and with `replaced` also those that a later turn replaced.
pub(crate) fn describe_turns(
    views: &[TurnView],
    lifetimes: &[BlobLifetime],
    names: &ModelNames,
    replaced: bool,
) -> Vec<Value> {
    let replacements = replacements(views);
    let is_present = |view: &TurnView| !replacements.contains_key(&view.turn.link.seq);
    let views = views.iter().filter(|view| view.turn.record.is_some());
    let present: Vec<u64> =
        views.clone().filter(|view| is_present(view)).map(|view| view.turn.link.seq).collect();
    views
        .filter(|view| replaced || is_present(view))
        .map(|view| {
            let by = json!({ "replaced_by": replacements.get(&view.turn.link.seq) });
            let omitted = is_present(view).then(|| json!({ "omitted_turns": omitted_turns(view, &present) }));
            with(with(describe(view, lifetimes, names), by), omitted.into())
        })
        .collect()
}

/// Number of earlier turns of the conversation that the prompt of a present turn did not have, by its receipt.
fn omitted_turns(view: &TurnView, present: &[u64]) -> usize {
    let Some(receipt) = &view.receipt else { return 0 };
    let record = view.turn.record.as_ref();
    // A summary reads the turns that it replaces.
    let replaced = record.filter(|record| record.kind != RecordKind::Summary);
    let replaced = replaced.and_then(|record| record.supersedes_from).unwrap_or(view.turn.link.seq);
    present.partition_point(|seq| *seq < receipt.window_from.min(replaced))
}

/// The number of turns that are not part of the conversation any more.
pub(crate) fn replaced_count(views: &[TurnView]) -> usize {
    replacements(views).len()
}

/// The seq of each replaced turn, with the seq of the turn in its place.
fn replacements(views: &[TurnView]) -> HashMap<u64, u64> {
    let turns = views.iter().map(|view| {
        let supersedes = view.turn.record.as_ref().and_then(|record| record.supersedes_from);
        (view.turn.link.seq, supersedes)
    });
    replaced_by(&turns.collect::<Vec<_>>())
}

/// As [`baton_proto::chain::effective`]: a replaced turn replaces nothing. The turns are oldest first.
fn replaced_by(turns: &[(u64, Option<u64>)]) -> HashMap<u64, u64> {
    let mut replaced = HashMap::new();
    let mut superseded: Option<(u64, u64)> = None;
    for (seq, supersedes) in turns.iter().rev() {
        match superseded {
            Some((from, by)) if *seq >= from => {
                replaced.insert(*seq, by);
            }
            _ => superseded = supersedes.map(|from| (from, *seq)).or(superseded),
        }
    }
    replaced
}

fn describe(view: &TurnView, lifetimes: &[BlobLifetime], names: &ModelNames) -> Value {
    let (link, record) = (&view.turn.link, view.turn.record.as_ref());
    let model = view.receipt.as_ref().and_then(|receipt| names.name(&receipt.model));
    json!({
        "seq": link.seq,
        "segment": link.segment,
        "node": link.author.to_string(),
        "time_ms": link.time_ms,
        "link": link.link_hash().to_string(),
        "messages": record.map(|record| messages(&record.messages)),
        "kind": record.map(kind),
        "finish": record.map(finish),
        "replaces_from": record.and_then(|record| record.supersedes_from),
        "model": model,
        "stored": view.stored,
        "kept_until_ms": kept_until_ms(link.seq, lifetimes),
        "acked": view.acked,
        "took_over": took_over(view),
        "memories": memories(&view.memory),
        "receipt": view.receipt.as_ref().map(describe_receipt),
    })
}

/// The nodes that began the answer and stopped, oldest first, with the tokens of the answer by then.
fn took_over(view: &TurnView) -> Vec<Value> {
    let author = view.turn.link.author;
    let notes = view.notes.iter().map(|note| (note.node, note.token_count));
    let resumed = view.resumed.iter().map(|prefix| (prefix.author, prefix.token_count));
    let mut seen = HashSet::from([author]);
    let begun: Vec<_> = resumed.chain(notes).filter(|(node, _)| seen.insert(*node)).collect();
    begun.iter().map(|(node, tokens)| json!({ "node": node.to_string(), "tokens": tokens })).collect()
}

/// Until when the store keeps a turn at least: the blob of its segment holds it. `None` while that blob is not
/// known to be stored.
fn kept_until_ms(seq: u64, lifetimes: &[BlobLifetime]) -> Option<u64> {
    let blob = lifetimes.iter().find(|blob| blob.seq >= seq)?;
    blob.stored.then_some(blob.kept_until_ms)
}

fn describe_receipt(receipt: &SignedObject<Receipt>) -> Value {
    json!({
        "hash": receipt.receipt_hash().to_string(),
        "model": receipt.model.to_string(),
        "engine": receipt.engine.name(),
        "input_tokens": receipt.tokens.input,
        "output_tokens": receipt.tokens.output,
        "memory_items": receipt.memory_items,
        // The first turn of the prompt's history.
        "window_from": receipt.window_from,
        // JavaScript's numbers cannot hold all of its 64 bits.
        "seed": receipt.seed.to_string(),
        "price": receipt.price,
        "first_token_ms": receipt.timings.first_token_ms,
        "decode_ms": receipt.timings.decode_ms,
    })
}

fn kind(record: &Record) -> &'static str {
    match record.kind {
        RecordKind::Turn => "turn",
        RecordKind::Edit => "edit",
        RecordKind::Summary => "summary",
        RecordKind::Tombstone => "withdrawal",
    }
}

fn finish(record: &Record) -> &'static str {
    match record.finish {
        FinishReason::Stop => "stop",
        FinishReason::StopString => "stop_string",
        FinishReason::Length => "length",
        FinishReason::ToolCall => "tool_calls",
        FinishReason::None => "none",
    }
}

/// Messages with their roles.
pub(crate) fn messages(messages: &[Message]) -> Value {
    messages
        .iter()
        .map(|message| json!({ "role": role_name(message.role), "content": message.text }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_turn_names_the_turn_in_its_place() {
        type Case = (&'static [(u64, Option<u64>)], &'static [(u64, u64)]);
        let cases: [Case; 4] = [
            (&[(0, None), (1, None)], &[]),
            (&[(0, None), (1, None), (2, Some(1))], &[(1, 2)]),
            // An edit of an edit names the first one's seq.
            (&[(0, None), (1, None), (2, Some(1)), (3, Some(1))], &[(1, 3), (2, 3)]),
            // A replaced edit replaces nothing.
            (&[(0, None), (1, Some(0)), (2, None), (3, Some(1))], &[(1, 3), (2, 3)]),
        ];
        for (turns, expected) in cases {
            assert_eq!(replaced_by(turns), expected.iter().copied().collect(), "{turns:?}");
        }
    }

    #[test]
    fn a_turn_is_kept_as_long_as_the_stored_blob_that_holds_it() {
        let blob = |seq, stored| BlobLifetime {
            seq,
            blob_id: None,
            length: 1,
            stored,
            end_epoch: None,
            kept_until_ms: seq * 10,
            gone_by_ms: 0,
            due: false,
        };
        let lifetimes = [blob(15, true), blob(18, false)];
        assert_eq!(kept_until_ms(3, &lifetimes), Some(150));
        assert_eq!(kept_until_ms(16, &lifetimes), None, "not stored");
        assert_eq!(kept_until_ms(19, &lifetimes), None, "no blob");
    }
}
