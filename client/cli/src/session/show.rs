//! `baton session show`: a conversation, with the node of each turn and the end of storage of each blob.

use std::collections::HashSet;

use baton_client::{Client, TurnView};
use serde_json::{Value, json};

use super::{devices, storage};
use crate::{
    failure::Failure,
    home::find_session,
    out::{Out, count, replaces, short, turn_number},
};

/// Shows a conversation; with `all`, also the turns that an edit replaced.
pub(super) async fn show(client: &Client, named: &str, all: bool, out: &Out) -> Result<(), Failure> {
    let id = find_session(client, named).await?;
    let handle = client.session(id);
    let (history, branches) = (handle.history().await?, handle.branches().await?);
    let info = handle.info().await?;
    let effective: HashSet<u64> = handle.conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    let blobs = handle.lifetimes().await?;
    let pending = handle.pending_messages().await?;
    let is_replaced = |view: &TurnView| !effective.contains(&view.turn.link.seq);
    if out.json() {
        let turns = history.iter().filter_map(|view| describe_turn(view, is_replaced(view)));
        let branched = branches.iter().flat_map(devices::describe_branch);
        return Ok(out.value(&json!({
            "session": id.to_string(),
            "turns": turns.chain(branched).collect::<Vec<_>>(),
            "pending": pending.as_deref().map(devices::describe_messages),
            "torn_end_bytes": info.torn_end_bytes,
            "devices": devices::describe_devices(&info),
            "blobs": blobs.iter().map(storage::describe).collect::<Vec<_>>(),
        }))?);
    }
    for view in history.iter().filter(|view| all || !is_replaced(view)) {
        show_turn(view, is_replaced(view), out)?;
    }
    if let Some(messages) = &pending {
        out.note("not answered yet");
        devices::show_messages(messages, out)?;
    }
    storage::note_lifetimes(&blobs, out);
    let hidden = info.turns.saturating_sub(info.effective_turns);
    if hidden > 0 && !all {
        out.note(&format!("{} replaced by an edit; --all shows them too", count(hidden, "turn")));
    }
    devices::show_branches(&info, &branches, out)?;
    devices::show_devices(&info, out);
    if info.torn_end_bytes > 0 {
        out.warn(&format!(
            "the end of this session's journal was cut off ({}): turns that followed may be missing here",
            count(info.torn_end_bytes, "byte")
        ));
        out.note(&format!("  try: baton session sync {}", short(&id)));
    }
    Ok(())
}

fn show_turn(view: &TurnView, replaced: bool, out: &Out) -> Result<(), Failure> {
    let link = &view.turn.link;
    let Some(record) = &view.turn.record else { return Ok(()) };
    let mut notes = replaces(link.seq, record.supersedes_from);
    if let Some(begun) = &view.resumed {
        notes.push_str(&format!(" · took over from node {}", short(&begun.author)));
    }
    notes.push_str(match (replaced, view.stored) {
        (true, _) => " · replaced by a later turn",
        (false, false) => " · not stored yet",
        (false, true) => "",
    });
    out.note(&format!("turn {} · node {}{notes}", turn_number(link.seq), short(&link.author)));
    devices::show_messages(&record.messages, out)
}

fn describe_turn(view: &TurnView, replaced: bool) -> Option<Value> {
    let (link, record) = (&view.turn.link, view.turn.record.as_ref()?);
    Some(json!({
        "seq": link.seq,
        "turn": turn_number(link.seq),
        "kind": format!("{:?}", record.kind).to_lowercase(),
        "supersedes_from": record.supersedes_from,
        "node": link.author.to_string(),
        "link": link.link_hash().to_string(),
        "receipt": view.receipt.as_ref().map(|receipt| receipt.receipt_hash().to_string()),
        "stored": view.stored,
        "replaced": replaced,
        "branch": null,
        "messages": devices::describe_messages(&record.messages),
    }))
}
