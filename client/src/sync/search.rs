//! Search over the texts of all sessions of a home.

use std::ops::ControlFlow;

use baton_proto::record::{Message, Role};

use crate::{
    core::Core,
    error::ClientError,
    session::{
        info::{SessionInfo, state_info},
        open_session,
        state::State,
    },
    sync::sessions::journals_by_use,
};

/// Most sessions that a search returns.
pub const MAX_MATCHES: usize = 100;
/// Characters of a text shown before and after the first word that was found.
const AROUND_CHARS: usize = 40;

/// A session that has all words of a search.
#[derive(Debug, Clone)]
pub struct SearchMatch {
    /// The session.
    pub session: SessionInfo,
    /// The text around the first word, on one line.
    pub snippet: String,
}

/// As [`Client::search`](crate::Client::search). Blocking.
pub(crate) fn search(core: &Core, words: &str) -> Result<Vec<SearchMatch>, ClientError> {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let mut found = Vec::new();
    if words.is_empty() {
        return Ok(found);
    }
    let mut look = |state: &State| {
        let info = state_info(state, core.terms(), None);
        if let Some(snippet) = snippet(state, &info.title, &words) {
            found.push(SearchMatch { session: info, snippet });
        }
        if found.len() < MAX_MATCHES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let open: Vec<_> = core.lock().values().cloned().collect();
    for session in &open {
        if session.read(&mut look).is_break() {
            return Ok(found);
        }
    }
    for (_, path) in journals_by_use(core)? {
        match open_session::peek(&path, &core.secret) {
            Ok(state) if open.iter().any(|session| session.id == state.session_id) => {}
            Ok(state) => {
                if look(&state).is_break() {
                    break;
                }
            }
            Err(error) => tracing::warn!(%error, "a journal cannot be read"),
        }
    }
    found.sort_by_key(|one| std::cmp::Reverse(one.session.last_ms.unwrap_or(one.session.created_ms)));
    Ok(found)
}

/// The text around the first word, if the title or one message has all words.
fn snippet(state: &State, title: &str, words: &[String]) -> Option<String> {
    let records = state.history.iter().filter_map(|turn| turn.record.as_ref());
    let said = |message: &&Message| message.role != Role::System;
    let texts = records.flat_map(|record| &record.messages).filter(said).map(|message| message.text.as_str());
    texts.chain(std::iter::once(title)).find_map(|text| around(text, words))
}

/// The text around the first word, if the text has all words.
fn around(text: &str, words: &[String]) -> Option<String> {
    let lower = text.to_lowercase();
    if !words.iter().all(|word| lower.contains(word)) {
        return None;
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let before = line.to_lowercase().find(words.first()?.as_str()).unwrap_or(0);
    let from = line.to_lowercase().get(..before).map_or(0, |start| start.chars().count());
    let first = from.saturating_sub(AROUND_CHARS);
    let snippet: String = line.chars().skip(first).take(2 * AROUND_CHARS).collect();
    let more = line.chars().count() > first + 2 * AROUND_CHARS;
    let (start, end) = (if first > 0 { "…" } else { "" }, if more { "…" } else { "" });
    Some(format!("{start}{snippet}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, words: &[&str]) -> Option<String> {
        around(text, &words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_text_matches_if_it_has_all_words() {
        assert_eq!(of("The Harbour\n at night", &["harbour", "night"]).unwrap(), "The Harbour at night");
        assert_eq!(of("The harbour", &["harbour", "day"]), None);
    }

    #[test]
    fn a_snippet_is_around_the_first_word() {
        let text = format!("{} harbour {}", "before ".repeat(20), "after ".repeat(20));
        let snippet = of(&text, &["harbour"]).unwrap();
        assert!(snippet.starts_with('…') && snippet.ends_with('…') && snippet.contains("harbour"));
        assert!(snippet.chars().count() <= 2 * AROUND_CHARS + 2);
        // Letters whose lower case has more bytes.
        assert!(of(&format!("{}harbour", "İ".repeat(50)), &["harbour"]).is_some());
    }
}
