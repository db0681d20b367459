//! Searches the titles and texts of this device's sessions. Reads every journal, so one search runs at a time.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Json,
    extract::{Query, State},
};
use baton_client::Conversation;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiError, Gateway, session_index::MAX_SESSIONS};

/// Most sessions in an answer: more than a person reads.
const MAX_FOUND: usize = 50;
/// Most characters of the words to search for.
const MAX_QUERY_CHARS: usize = 200;
/// Characters of a text shown before its match and after it.
const SNIPPET_CHARS: usize = 60;

#[derive(Deserialize)]
pub(super) struct SearchInput {
    #[serde(default)]
    q: String,
}

/// The sessions that have all words, in any of their messages or in their title; last used first.
pub(super) async fn search(
    State(gateway): State<Gateway>,
    Query(input): Query<SearchInput>,
) -> Result<Json<Value>, ApiError> {
    if input.q.chars().count() > MAX_QUERY_CHARS {
        return Err(ApiError::value("q", format!("q has at most {MAX_QUERY_CHARS} characters")));
    }
    let words: Vec<String> = input.q.split_whitespace().map(str::to_lowercase).collect();
    if words.is_empty() {
        return Ok(Json(json!({ "sessions": [] })));
    }
    let _slot = gateway.inner.search_slot.lock().await;
    gateway.refresh().await?;
    let listed = gateway.index().list();
    let found = Arc::new(Mutex::new(Vec::new()));
    let sink = found.clone();
    let look = move |conversation: Conversation| {
        let title = listed.iter().find(|one| one.session == conversation.session);
        let title = title.map(|one| one.title.clone()).unwrap_or_default();
        let Some(snippet) = match_words(&conversation, &title, &words) else { return };
        let mut found = sink.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < MAX_FOUND {
            found.push(json!({
                "id": conversation.session.to_string(),
                "title": title,
                "turns": conversation.turns.len(),
                "used_ms": conversation.used_ms,
                "snippet": snippet,
            }));
        }
    };
    gateway.client().each_conversation(0, MAX_SESSIONS, look).await?;
    let sessions = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Json(json!({ "sessions": sessions })))
}

/// The text around the first word, if the conversation has all words; empty if only the title has them.
fn match_words(conversation: &Conversation, title: &str, words: &[String]) -> Option<String> {
    let texts = || conversation.turns.iter().flat_map(|turn| &turn.messages).map(|message| &*message.text);
    let has = |text: &str, word: &String| text.to_lowercase().contains(word.as_str());
    if !words.iter().all(|word| has(title, word) || texts().any(|text| has(text, word))) {
        return None;
    }
    let first = words.first()?;
    Some(texts().find_map(|text| snippet(text, first)).unwrap_or_default())
}

/// The text around a word, which is in lower case.
fn snippet(text: &str, word: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let before = lower.get(..lower.find(word)?)?.chars().count();
    // Lower case may have another number of characters; then the snippet is a little off.
    let from = before.saturating_sub(SNIPPET_CHARS);
    let length = before - from + word.chars().count() + SNIPPET_CHARS;
    let shown: String = text.chars().skip(from).take(length).collect();
    let cut = if from > 0 { "…" } else { "" };
    let more = if text.chars().count() > from + length { "…" } else { "" };
    Some(format!("{cut}{}{more}", shown.split_whitespace().collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use baton_client::ConversationTurn;
    use baton_proto::{
        ids::{LinkHash, NodeId, SessionId},
        record::{Message, Role},
    };

    use super::*;

    #[test]
    fn all_words_are_needed_and_the_text_around_the_first_is_shown() {
        let turn = ConversationTurn {
            seq: 0,
            replaced_from: 0,
            link_hash: LinkHash([0; 32]),
            node: NodeId([0; 32]),
            messages: vec![
                Message::new(Role::User, "Where is the Sea?"),
                Message::new(Role::Assistant, "West."),
            ],
        };
        let conversation =
            Conversation { session: SessionId([1; 32]), used_ms: 0, branch: None, turns: vec![turn] };
        let search = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            match_words(&conversation, "A trip", &words)
        };
        assert_eq!(search("sea west").as_deref(), Some("Where is the Sea?"));
        assert_eq!(search("trip").as_deref(), Some(""), "the title alone");
        assert_eq!(search("sea mountain"), None);
    }

    #[test]
    fn a_snippet_is_cut_at_both_ends_of_a_long_text() {
        let text = format!("{}needle{}", "ä ".repeat(100), " ö".repeat(100));
        let shown = snippet(&text, "needle").unwrap();
        assert!(shown.starts_with('…') && shown.ends_with('…') && shown.contains("needle"));
        assert!(shown.chars().count() <= 2 * SNIPPET_CHARS + 8);
    }
}
