//! A session's conversation from its journal, cut to a screen's needs.

use std::collections::HashSet;

use baton_client::{Client, ClientError, TurnView};
use baton_proto::{
    ids::{LinkHash, SessionId},
    record::Role,
};

use crate::{
    out::{count, memories, replaces, short, turn_number},
    turn_display,
};

/// Most turns shown of a session, the newest: some hours of chat. `baton session show` has all.
pub(super) const MAX_TURNS: usize = 200;
/// Most bytes of text shown of a session, so that a few huge turns do not fill the memory with rows.
pub(super) const MAX_BYTES: usize = 2 * 1024 * 1024;

/// The shown part of a session.
#[derive(Debug, Clone)]
pub(super) struct ConversationSnapshot {
    /// The session.
    pub session: SessionId,
    /// The turns that count, oldest first; at most [`MAX_TURNS`].
    pub turns: Vec<JournalTurn>,
    /// The number of earlier turns.
    pub earlier: usize,
    /// Turns of the chain, replaced ones too.
    pub total: u64,
    /// Whether a message is unanswered.
    pub pending: bool,
    /// Blobs not yet confirmed in the store.
    pub unstored: u64,
    /// The problem found with the head index.
    pub trouble: Option<&'static str>,
}

/// A turn of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalTurn {
    /// Its link, which identifies it.
    pub link: LinkHash,
    /// The user's text.
    pub message: String,
    /// The answer.
    pub answer: String,
    /// Remarks beside the text.
    pub notes: Vec<String>,
    /// Its node, tokens and verification.
    pub verified: String,
}

/// Reads a session's conversation.
pub(super) async fn load(client: &Client, session: SessionId) -> Result<ConversationSnapshot, ClientError> {
    let counting: HashSet<u64> =
        client.session(session).conversation().await?.turns.iter().map(|turn| turn.seq).collect();
    let views = client.session(session).history().await?;
    let info = client.session(session).info().await?;
    let mut bytes = 0;
    let counts = |view: &&TurnView| counting.contains(&view.turn.link.seq);
    let mut turns: Vec<JournalTurn> =
        views.iter().rev().filter(counts).take(MAX_TURNS).filter_map(journal_turn).collect();
    turns.retain(|turn| {
        bytes += turn.message.len() + turn.answer.len();
        bytes <= MAX_BYTES
    });
    turns.reverse();
    Ok(ConversationSnapshot {
        session,
        earlier: counting.len().saturating_sub(turns.len()),
        turns,
        total: info.effective_turns,
        pending: info.pending,
        unstored: info.unstored,
        trouble: info.trouble.map(|code| code.name()),
    })
}

fn journal_turn(view: &TurnView) -> Option<JournalTurn> {
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
        let added = memories(view.memory.len() as u64);
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
    Some(JournalTurn {
        link: link.link_hash(),
        message: turn_display::joined_text(&messages),
        answer: record.answer().unwrap_or_default().to_owned(),
        notes,
        verified,
    })
}

/// Tokens a second without the first one, as a part of a line; empty if not meaningful.
pub(super) fn speed(tokens: u32, seconds: f64) -> String {
    if tokens < 2 || seconds < 0.001 {
        return String::new();
    }
    format!(" · {:.0}/s", f64::from(tokens - 1) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_empty_where_it_is_not_meaningful() {
        assert_eq!(speed(21, 2.0), " · 10/s");
        assert_eq!(speed(1, 2.0), "");
        assert_eq!(speed(50, 0.0), "");
    }
}
