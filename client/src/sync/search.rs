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
pub(crate) fn search(
    core: &Core,
    words: &str,
    project: Option<&str>,
) -> Result<Vec<SearchMatch>, ClientError> {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let mut found = Vec::new();
    if words.is_empty() {
        return Ok(found);
    }
    let mut look = |state: &State| {
        if project.is_some() && state.header.project.as_deref() != project {
            return ControlFlow::Continue(());
        }
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

/// The text around the first word, if the title and the messages have all words; empty if only the title has it.
fn snippet(state: &State, title: &str, words: &[String]) -> Option<String> {
    let records = || state.history.iter().filter_map(|turn| turn.record.as_ref());
    let said = |message: &&Message| message.role != Role::System;
    let texts = || records().flat_map(|record| &record.messages).filter(said).map(|message| &*message.text);
    let has = |text: &str, word: &String| text.to_lowercase().contains(word.as_str());
    if !words.iter().all(|word| has(title, word) || texts().any(|text| has(text, word))) {
        return None;
    }
    let first = words.first()?;
    Some(texts().find(|text| has(text, first)).map(|text| around(text, first)).unwrap_or_default())
}

/// The text around a word of it, on one line. The word is in lower case.
fn around(text: &str, word: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = line.to_lowercase().find(word).unwrap_or(0);
    // Lower case may have another length, so the characters before the word are counted by it.
    let lower = line.chars().scan(0, |bytes, c| {
        let before = *bytes;
        *bytes += c.to_lowercase().map(char::len_utf8).sum::<usize>();
        Some(before)
    });
    let from = lower.take_while(|before| *before < at).count().saturating_sub(AROUND_CHARS);
    let length = 2 * AROUND_CHARS + word.chars().count();
    let snippet: String = line.chars().skip(from).take(length).collect();
    let (start, end) =
        (if from > 0 { "…" } else { "" }, if line.chars().count() > from + length { "…" } else { "" });
    format!("{start}{snippet}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_is_around_the_word() {
        assert_eq!(around("The Harbour\n at night", "harbour"), "The Harbour at night");
        let text = format!("{} harbour {}", "before ".repeat(20), "after ".repeat(20));
        let snippet = around(&text, "harbour");
        assert!(
            snippet.starts_with('…') && snippet.ends_with('…') && snippet.contains("harbour"),
            "{snippet}"
        );
        assert!(snippet.chars().count() <= 2 * AROUND_CHARS + 9);
        // Letters whose lower case has more bytes.
        assert!(around(&format!("{} harbour", "İ".repeat(50)), "harbour").contains("harbour"));
    }
}
