//! A session's conversation as its journal has it, cut to what a screen needs.

use std::collections::HashSet;

use baton_client::{Client, ClientError, TurnOutcome, TurnView};
use baton_proto::{
    ids::{LinkHash, SessionId},
    record::Role,
};

use crate::{out::short, talk};

/// Turns that are shown of a session, the newest of it: some hours of talk. `baton session show` has all.
pub const MAX_TURNS: usize = 200;
/// Bytes of text that are shown of a session, so that a few huge turns do not fill the memory with rows.
pub const MAX_BYTES: usize = 2 * 1024 * 1024;

/// A session, as far as it is shown.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The session.
    pub session: SessionId,
    /// The turns that count, oldest first; at most [`MAX_TURNS`].
    pub turns: Vec<Told>,
    /// How many more there are before them.
    pub earlier: usize,
    /// Turns of the chain, replaced ones too.
    pub total: u64,
    /// Whether a message was not answered.
    pub pending: bool,
    /// Blobs that the store is not known to have yet.
    pub unstored: u64,
    /// What was found wrong with the head index.
    pub trouble: Option<&'static str>,
}

/// A turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its link, by which it is known again.
    pub link: LinkHash,
    /// What the user said.
    pub said: String,
    /// What was answered.
    pub answer: String,
    /// What is to be said of it beside that.
    pub notes: Vec<String>,
    /// Who served it, and what that took.
    pub verified: String,
}

/// A turn that was just accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its link.
    pub link: LinkHash,
    /// The answer.
    pub text: String,
    /// Who served it.
    pub verified: String,
    /// Tokens of the answer.
    pub tokens: u32,
}

impl From<&TurnOutcome> for Finished {
    fn from(outcome: &TurnOutcome) -> Self {
        Self {
            link: outcome.link_hash,
            text: outcome.text.clone(),
            verified: talk::verified(outcome),
            tokens: outcome.receipt.tokens.output,
        }
    }
}

/// Reads a session's conversation.
pub async fn load(client: &Client, session: SessionId) -> Result<Loaded, ClientError> {
    let counting: HashSet<u64> =
        client.conversation(session).await?.turns.iter().map(|turn| turn.seq).collect();
    let views = client.history(session).await?;
    let info = client.session(session).await?;
    let mut bytes = 0;
    let counts = |view: &&TurnView| counting.contains(&view.turn.link.seq);
    let mut turns: Vec<Told> = views.iter().rev().filter(counts).take(MAX_TURNS).filter_map(tell).collect();
    turns.retain(|turn| {
        bytes += turn.said.len() + turn.answer.len();
        bytes <= MAX_BYTES
    });
    turns.reverse();
    Ok(Loaded {
        session,
        earlier: counting.len().saturating_sub(turns.len()),
        turns,
        total: info.turns,
        pending: info.pending,
        unstored: info.unstored,
        trouble: info.trouble.map(|code| code.name()),
    })
}

fn tell(view: &TurnView) -> Option<Told> {
    let link = &view.turn.link;
    let record = view.turn.record.as_ref()?;
    let said: Vec<_> =
        record.messages.iter().filter(|message| message.role != Role::Assistant).cloned().collect();
    let mut notes = Vec::new();
    if let Some(from) = view.moved_from {
        notes.push(format!("was turn {}, said again", from.seq));
    }
    if let Some(begun) = &view.resumed {
        let author = short(&begun.author);
        notes.push(format!("node {author} began the answer, the first {} tokens", begun.token_count));
    }
    if !view.memory.is_empty() {
        notes.push(format!("{} memories added; /memory shows those of the last turn", view.memory.len()));
    }
    let mut verified = format!("✓ verified · turn {} · node {}", link.seq, short(&link.author));
    if let Some(receipt) = &view.receipt {
        let (tokens, decode_ms) = (receipt.tokens, receipt.timings.decode_ms);
        verified.push_str(&format!(" · {} + {} tokens", tokens.input, tokens.output));
        let seconds = f64::from(decode_ms) / 1000.0;
        verified.push_str(&speed(tokens.output.saturating_sub(tokens.resumed), seconds));
    }
    Some(Told {
        link: link.link_hash(),
        said: talk::said(&said),
        answer: record.answer().unwrap_or_default().to_owned(),
        notes,
        verified,
    })
}

/// Tokens in a second, the first one left out, as a part of a line; nothing where that says nothing.
pub fn speed(tokens: u32, seconds: f64) -> String {
    if tokens < 2 || seconds < 0.001 {
        return String::new();
    }
    format!(" · {:.1} tokens/s", f64::from(tokens - 1) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_left_out_where_it_says_nothing() {
        assert_eq!(speed(21, 2.0), " · 10.0 tokens/s");
        assert_eq!(speed(1, 2.0), "");
        assert_eq!(speed(50, 0.0), "");
    }
}
