//! Search over the texts of all sessions of a home.

use std::ops::ControlFlow;

use baton_proto::{
    record::{Message, Role},
    text::{composed, is_same_place, searchable},
};

use crate::{
    core::Core,
    error::{ClientError, log_failure},
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
    let words: Vec<String> =
        words.split_whitespace().map(searchable).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    if words.is_empty() {
        return Ok(found);
    }
    let mut look = |state: &State| {
        if project.is_some() && !is_same_place(state.header.project.as_deref(), project) {
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
        log_failure(session.load_all_blocking(), "a journal cannot be read");
        if session.read(&mut look).is_break() {
            return Ok(found);
        }
    }
    for (_, path) in journals_by_use(core)? {
        match open_session::peek(&path, &core.journals.secret) {
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
    let (title, mut missing) = (searchable(title), words.to_vec());
    missing.retain(|word| !title.contains(word.as_str()));
    let first = words.first()?;
    let mut with_first = None;
    for text in texts() {
        let plain = searchable(text);
        missing.retain(|word| !plain.contains(word.as_str()));
        if with_first.is_none() && plain.contains(first.as_str()) {
            with_first = Some(text);
        }
        if missing.is_empty() && with_first.is_some() {
            break;
        }
    }
    missing.is_empty().then(|| with_first.map(|text| around(text, first)).unwrap_or_default())
}

/// The text around a word of it, on one line. The word is searchable.
fn around(text: &str, word: &str) -> String {
    let line = composed(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let at = searchable(&line).find(word).unwrap_or(0);
    // The searchable form may have another length, so the characters before the word are counted by it.
    let plain = line.chars().scan(0, |bytes, c| {
        let before = *bytes;
        *bytes += if c.is_ascii() { 1 } else { searchable(c.encode_utf8(&mut [0; 4])).len() };
        Some(before)
    });
    let from = plain.take_while(|before| *before < at).count().saturating_sub(AROUND_CHARS);
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
        // Letters whose searchable form has another length.
        assert!(
            around(&format!("{} Straße {}", "ß".repeat(200), "x".repeat(200)), "strasse").contains("Straße")
        );
        assert!(around(&format!("{} Zoe\u{308}", "e\u{301}".repeat(200)), "zoe").ends_with("Zoë"));
        assert!(around(&format!("{} harbour", "İ".repeat(50)), "harbour").contains("harbour"));
    }
}
