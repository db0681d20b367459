//! The chain of a session as a picture of lines: one mark a turn, by the node that served it. Pure.

use std::collections::HashSet;

use baton_client::{BlobLifetime, TurnView};
use baton_proto::{ids::NodeId, record::Role};

use crate::{
    clock,
    out::{count, short, turn_number},
};

/// Characters of a message that are shown.
const MESSAGE_CHARS: usize = 40;
/// Marks of nodes, in the order of their first turn; further nodes share the last.
const MARKS: [&str; 8] = ["●", "■", "▲", "◆", "★", "♥", "♣", "✚"];

/// The picture, with the nodes and their marks at its end.
pub(crate) fn lines(history: &[TurnView], effective: &HashSet<u64>, blobs: &[BlobLifetime]) -> Vec<String> {
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut lines = Vec::new();
    let mut segment = None;
    for view in history {
        let link = &view.turn.link;
        if segment != Some(link.segment) {
            segment = Some(link.segment);
            lines.push(format!("segment {}, {}", link.segment + 1, blob_line(view, blobs)));
        }
        let begun_by = view.resumed.as_ref().map(|prefix| prefix.author);
        for node in begun_by.iter().chain([&link.author]) {
            if !nodes.contains(node) {
                nodes.push(*node);
            }
        }
        let took_over = begun_by.map(|first| format!(" (took over from {})", short(&first)));
        let replaced = !effective.contains(&link.seq);
        let lane = if replaced { "├ ○" } else { mark(&nodes, &link.author) };
        let notes = match (replaced, view.stored) {
            (true, _) => "  replaced",
            (false, false) => "  not stored yet",
            (false, true) => "",
        };
        lines.push(format!(
            "{lane:<3} {:>3}  {}{}  {}{notes}",
            turn_number(link.seq),
            short(&link.author),
            took_over.unwrap_or_default(),
            message(view),
        ));
    }
    lines.push(String::new());
    lines.extend(nodes.iter().map(|node| {
        let served = history.iter().filter(|view| view.turn.link.author == *node).count();
        format!("{} node {}, {}", mark(&nodes, node), short(node), count(served as u64, "turn"))
    }));
    lines
}

fn mark(nodes: &[NodeId], node: &NodeId) -> &'static str {
    let position = nodes.iter().position(|known| known == node).unwrap_or(0);
    MARKS.get(position).or(MARKS.last()).copied().unwrap_or_default()
}

/// The blob of a turn's segment: until when it is stored, its length and its ID.
fn blob_line(view: &TurnView, blobs: &[BlobLifetime]) -> String {
    let blob = blobs.iter().find(|blob| blob.seq >= view.turn.link.seq);
    let Some(blob) = blob.filter(|blob| blob.stored) else { return "not stored yet".to_owned() };
    let until = format!("stored until {}, {} bytes", clock::day(blob.kept_until_ms), blob.length);
    blob.blob_id.map_or(until.clone(), |id| format!("{until}, blob {id}"))
}

/// The beginning of a turn's message.
fn message(view: &TurnView) -> String {
    let messages = view.turn.record.iter().flat_map(|record| &record.messages);
    let said = messages.filter(|message| message.role == Role::User).map(|message| message.text.as_str());
    let text = said.collect::<Vec<_>>().join(" ");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = words.chars().take(MESSAGE_CHARS).collect();
    if shown.len() < words.len() { format!("{shown}…") } else { shown }
}
