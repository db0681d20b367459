//! A session's conversation from its journal, cut to a screen's needs.

use std::collections::HashSet;

use baton_client::{Client, ClientError, TurnView};
use baton_proto::{ids::SessionId, record::Role};

use super::block::{MAX_BYTES, Turn, speed};
use crate::{
    out::{count, replaces, short, turn_number},
    turn_display,
};

/// Most turns shown of a session, the newest: some hours of chat. `baton session show` has all.
pub(super) const MAX_TURNS: usize = 200;

/// The shown part of a session.
#[derive(Debug, Clone)]
pub(super) struct ConversationSnapshot {
    /// Its state.
    pub status: Status,
    /// The turns that count, oldest first; at most [`MAX_TURNS`].
    pub turns: Vec<Turn>,
    /// The number of earlier turns.
    pub earlier: usize,
}

/// The state of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The session; none before the first is read.
    pub session: Option<SessionId>,
    /// Turns of its chain.
    pub turns: u64,
    /// Whether a message is unanswered.
    pub pending: bool,
    /// Blobs not yet confirmed in the store.
    pub unstored: u64,
    /// The problem with the head index.
    pub trouble: Option<&'static str>,
}

/// Reads a session's conversation.
pub(super) async fn load(client: &Client, session: SessionId) -> Result<ConversationSnapshot, ClientError> {
    let counting: HashSet<u64> =
        client.session(session).conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    let views = client.session(session).history().await?;
    let info = client.session(session).info().await?;
    let mut bytes = 0;
    let counts = |view: &&TurnView| counting.contains(&view.turn.link.seq);
    let mut turns: Vec<Turn> =
        views.iter().rev().filter(counts).take(MAX_TURNS).filter_map(journal_turn).collect();
    turns.retain(|turn| {
        bytes += turn.text_len();
        bytes <= MAX_BYTES
    });
    turns.reverse();
    let status = Status {
        session: Some(session),
        turns: info.effective_turns,
        pending: info.pending,
        unstored: info.unstored,
        trouble: info.trouble.map(|code| code.name()),
    };
    Ok(ConversationSnapshot { status, earlier: counting.len().saturating_sub(turns.len()), turns })
}

fn journal_turn(view: &TurnView) -> Option<Turn> {
    let link = &view.turn.link;
    let record = view.turn.record.as_ref()?;
    let messages: Vec<_> =
        record.messages.iter().filter(|message| message.role != Role::Assistant).cloned().collect();
    let mut notes = Vec::new();
    if let Some(begun) = &view.resumed {
        let author = short(&begun.author);
        notes.push(format!("node {author} began the answer, the first {} tokens", begun.token_count));
    }
    if !view.memory.is_empty() {
        let added = count(view.memory.len() as u64, "memory");
        notes.push(format!("{added} added; /memory shows those of the last turn"));
    }
    let replaces = replaces(link.seq, record.supersedes_from);
    let mut verified =
        format!("✓ verified · turn {}{replaces} · node {}", turn_number(link.seq), short(&link.author));
    if let Some(receipt) = &view.receipt {
        let (tokens, decode_ms) = (receipt.tokens, receipt.timings.decode_ms);
        verified.push_str(&format!(" · {}", count(tokens.output.into(), "token")));
        let seconds = f64::from(decode_ms) / 1000.0;
        verified.push_str(&speed(tokens.output.saturating_sub(tokens.resumed), seconds));
    }
    let (message, answer) = (turn_display::joined_text(&messages), record.answer().unwrap_or_default());
    Some(Turn::from_journal(link.link_hash(), &message, &notes, answer, &verified))
}
