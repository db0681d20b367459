//! Finds the entities of a text: people, animals, places, organisations, days. By rule, with few false ones
//! rather than all.

use baton_proto::text::is_same_name;

use super::{
    EntityKind, EntityMention,
    rules::ENTITY_RULES,
    text::{Word, name_end, sentences, span},
    words::DAYS,
};
use crate::dates::MONTHS;

/// Most entities of one text: a text with more is a list.
pub(super) const MAX_ENTITIES: usize = 16;

/// The entities of a text, in the order of the rules that found them; each once.
#[must_use]
pub fn entities(text: &str) -> Vec<EntityMention> {
    let mut found: Vec<EntityMention> = Vec::new();
    for sentence in sentences(text) {
        by_pattern(text, &sentence.words, &mut found);
        by_capital(text, &sentence.words, &mut found);
        by_day(text, &sentence.words, &mut found);
    }
    found.truncate(MAX_ENTITIES);
    found
}

fn add(found: &mut Vec<EntityMention>, name: &str, kind: EntityKind) {
    let name = name.trim_end_matches("'s").trim_end_matches("’s").trim();
    let name = name.strip_prefix("the ").unwrap_or(name);
    let long_enough = name.chars().count() >= 2 || kind == EntityKind::Date;
    let known = found.iter().any(|one| is_same_name(&one.name, name));
    if long_enough && !known && name.len() <= 80 {
        found.push(EntityMention::new(name, kind));
    }
}

fn by_pattern(text: &str, words: &[Word], found: &mut Vec<EntityMention>) {
    for (kind, pattern) in ENTITY_RULES.iter() {
        let mut from = 0;
        while let Some(hit) = pattern.find(words, from..words.len()) {
            for (begin, end) in &hit.captures {
                // A day or a language is not a place, whatever precedes it.
                let day = words.get(*begin).is_some_and(|word| DAYS.contains(&word.lower));
                if !day {
                    add(found, span(text, words, *begin, *end), *kind);
                }
            }
            from = hit.from + 1;
        }
    }
}

/// Names by their capitals alone: two or more capitals in a row away from the beginning of the sentence.
fn by_capital(text: &str, words: &[Word], found: &mut Vec<EntityMention>) {
    let mut at = 1;
    while at < words.len() {
        let Some(end) = name_end(words, at) else {
            at += 1;
            continue;
        };
        let several = end > at + 1;
        let day = words.get(at).is_some_and(|word| DAYS.contains(&word.lower));
        let inside = found.iter().any(|one| one.name.contains(span(text, words, at, end)));
        if several && !day && !inside {
            add(found, span(text, words, at, end), EntityKind::Thing);
        }
        at = end;
    }
}

/// Days by name and dates in digits: "March 3rd", "3 March", "2024-05-01", "on Tuesday".
fn by_day(text: &str, words: &[Word], found: &mut Vec<EntityMention>) {
    let digits = |word: &Word| word.lower.starts_with(|c: char| c.is_ascii_digit()) && word.lower.len() <= 4;
    for (at, word) in words.iter().enumerate() {
        let lower = word.lower.as_str();
        if MONTHS.contains(&lower) && word.capital {
            let before = at.checked_sub(1).filter(|prior| words.get(*prior).is_some_and(digits));
            let after = words.get(at + 1).is_some_and(digits);
            let year = words.get(at + 2).is_some_and(|word| digits(word) && word.lower.len() == 4);
            let end = at + 1 + usize::from(after) + usize::from(after && year);
            let alone = before.is_none() && !after;
            if !alone || lower != "may" {
                add(found, span(text, words, before.unwrap_or(at), end), EntityKind::Date);
            }
        } else if DAYS.contains(lower) && word.capital && at > 0 {
            let known = found.iter().any(|one| one.name.contains(span(text, words, at, at + 1)));
            if !known {
                add(found, span(text, words, at, at + 1), EntityKind::Date);
            }
        }
    }
    for piece in text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')')) {
        let piece = piece.trim_matches(['.', ';', ':', '!', '?']);
        let parts: Vec<&str> = piece.split(['-', '/', '.']).collect();
        let numeric = parts
            .iter()
            .all(|part| !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit()));
        if parts.len() == 3 && numeric && parts.iter().any(|part| part.len() == 4) {
            add(found, piece, EntityKind::Date);
        }
    }
}
