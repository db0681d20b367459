//! The relation of a new statement to a known one: the same, its successor, or none (F3).

use super::{
    Candidate, Slot,
    extract::strong_rule,
    text::{sentences, words},
    wording,
    words::{DAYS, STOP, is_number},
};
use crate::model::{Author, Text};

/// A kept fact, as far as a comparison needs it.
#[derive(Clone, Copy)]
pub struct ExistingFact<'a> {
    /// Its text.
    pub text: &'a str,
    /// The author.
    pub author: Author,
    /// When it was said, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// The relation of a candidate to a kept fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// None.
    Unrelated,
    /// The same words: the kept fact gains an access, and nothing is added.
    Same,
    /// A later value of the same subject, or the same value with more words: the kept fact's validity ends.
    Supersedes,
}

/// The subject of a kept fact, by the rules that extracted it. An index by its key lets a candidate be
/// compared with few facts.
#[must_use]
pub fn slot_of(text: &str) -> Option<Slot> {
    sentences(text).iter().find_map(|sentence| {
        let all = 0..sentence.words.len();
        strong_rule(text, &sentence.words, all).and_then(|found| found.slot)
    })
}

/// The relation of a candidate of `time_ms` to a kept fact.
///
/// The assistant's words never end a fact of the user or the owner, and an older statement never ends a newer
/// one. A user's statement ends the assistant's about the same subject (F4).
#[must_use]
pub fn relation(candidate: &Candidate, time_ms: u64, existing: &ExistingFact<'_>) -> Relation {
    if wording(&candidate.text) == wording(existing.text) {
        return Relation::Same;
    }
    let trusted = |author: Author| author != Author::Assistant;
    if time_ms < existing.time_ms || (!trusted(candidate.author) && trusted(existing.author)) {
        return Relation::Unrelated;
    }
    match (&candidate.slot, slot_of(existing.text)) {
        // The rules read a part of a sentence. An equal part ends a fact only where the later words have all
        // of the earlier words: otherwise "Paris, Texas" would be lost to "Paris".
        (Some(new), Some(old))
            if new.key == old.key
                && (new.value != old.value || has_all_words(&candidate.text, existing.text)) =>
        {
            Relation::Supersedes
        }
        (Some(new), Some(old)) if contradicts(new, &old) => Relation::Supersedes,
        (None, None) if another_value(&candidate.text, existing.text) => Relation::Supersedes,
        _ => Relation::Unrelated,
    }
}

/// Whether a text has all words of another text, in their order.
fn has_all_words(text: &str, other: &str) -> bool {
    let (text, other) = (Text(wording(text)), Text(wording(other)));
    let mut words = text.split(' ');
    other.split(' ').all(|word| words.any(|one| one == word))
}

/// Slots with different keys that contradict each other: a diet of "vegan" ends "I eat meat".
fn contradicts(new: &Slot, old: &Slot) -> bool {
    let forbids = |diet: &Slot, eats: &Slot| {
        diet.key == "user.diet"
            && matches!(diet.value.as_str(), "vegan" | "vegetarian")
            && eats.value == "yes"
            && matches!(
                eats.key.as_str(),
                "user.eats:meat"
                    | "user.eats:beef"
                    | "user.eats:chicken"
                    | "user.eats:steak"
                    | "user.likes:steak"
                    | "user.eats:pork"
            )
    };
    forbids(new, old) || forbids(old, new)
}

/// Whether two statements differ in one value only: a number, a day, or a name after a verb of being. Enough
/// words must precede it to name the subject ("the deadline for the report is 3 March" and "… is 10 March").
fn another_value(new: &str, old: &str) -> bool {
    const IS: &[&str] =
        &["is", "are", "was", "'s", "costs", "starts", "ends", "at", "on", "in", "now", "to", "by"];
    let (a, b) = (words(new, 0), words(old, 0));
    let lower = |words: &[super::text::Word]| words.iter().map(|word| word.lower.clone()).collect::<Vec<_>>();
    let (la, lb) = (lower(&a), lower(&b));
    let before = la.iter().zip(&lb).take_while(|(x, y)| x == y).count();
    let after = la.iter().rev().zip(lb.iter().rev()).take_while(|(x, y)| x == y).count();
    let after = after.min(la.len().min(lb.len()).saturating_sub(before));
    let (Some(va), Some(vb)) = (a.get(before..a.len() - after), b.get(before..b.len() - after)) else {
        return false;
    };
    let Some(prefix) = la.get(..before) else { return false };
    let is_value = |words: &[super::text::Word]| {
        (1..=3).contains(&words.len())
            && words.iter().any(|word| {
                is_number(&word.lower) || DAYS.contains(&word.lower) || (word.capital && word.lower != "i")
            })
    };
    let content = prefix.iter().filter(|word| !STOP.contains(word) && !IS.contains(&word.as_str())).count();
    let states = prefix.iter().any(|word| {
        matches!(word.as_str(), "is" | "are" | "was" | "'s" | "costs" | "starts" | "ends" | "due")
    });
    let placed = prefix.last().is_some_and(|word| IS.contains(&word.as_str()));
    states && placed && content >= 1 && prefix.len() >= 3 && is_value(va) && is_value(vb)
}
