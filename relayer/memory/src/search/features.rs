//! The stored search features of a text.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::dates::{Day, meant};

use super::{
    QuantisedVector,
    terms::{TermHasher, TermKind, content_words, normalised, words},
};

/// Most different terms of one text. A text with more is a document that should have been split.
const MAX_TERMS: usize = 8_192;

/// The stored search features of a text. Wiped on drop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Features {
    /// Keyed hashes of the stemmed terms with their counts, ascending by hash. Some stand for the text as a
    /// whole (its speaker, whether it asks), so that a database needs no other data for ranking.
    pub terms: Vec<(u64, u16)>,
    /// Searchable words in the text, repetitions included.
    pub length: u32,
    /// The embedding, once computed.
    pub vector: Option<QuantisedVector>,
}

/// A property of a text as a whole that makes it a better or worse answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    /// It only asks.
    OnlyAsks,
    /// It ends with a question.
    EndsAsking,
    /// The speaker talks about themselves.
    Own,
    /// It states a time.
    When,
}

impl Cue {
    pub(super) const ALL: [Self; 4] = [Self::OnlyAsks, Self::EndsAsking, Self::Own, Self::When];

    /// Its term.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OnlyAsks => "only asks",
            Self::EndsAsking => "ends asking",
            Self::Own => "own",
            Self::When => "when",
        }
    }

    /// Its bit in a set of cues.
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A text in the form for the embedder and the reader: with speaker and day, as in "Caroline, 7 May 2023: I
/// …".
#[must_use]
pub fn indexed_text(text: &str, speaker: &str, time_ms: u64) -> String {
    let day = Day::of(time_ms);
    if speaker.is_empty() { format!("{day}: {text}") } else { format!("{speaker}, {day}: {text}") }
}

/// Features of a plain text, without speaker, date and vector.
#[must_use]
pub fn features(text: &str, hasher: &TermHasher) -> Features {
    let mut counts = TermCounts::default();
    counts.add_words(&normalised(text), hasher);
    counts.finish(hasher)
}

/// Features of a speaker's text at a time, without a vector: its words, the speaker's name, the day, and
/// cues.
#[must_use]
pub fn document_features(text: &str, speaker: &str, time_ms: u64, hasher: &TermHasher) -> Features {
    let mut counts = TermCounts::default();
    let normal = normalised(text);
    counts.add_words(&normal, hasher);
    let name = normalised(speaker);
    for word in words(&name) {
        counts.add(TermKind::Speaker, hasher.stem(word));
    }
    counts.add_words(&name, hasher);
    counts.add_words(&normalised(&Day::of(time_ms).to_string()), hasher);
    // Days that are implied, such as "yesterday": the text is found by their names, but does not count as
    // longer.
    for word in meant(words(&normal), time_ms).iter().flat_map(|day| day.split(' ')) {
        counts.add_once(TermKind::Word, hasher.stem(&normalised(word)));
    }
    for cue in Cue::ALL {
        let there = match cue {
            Cue::OnlyAsks => only_asks(&normal),
            Cue::EndsAsking => normal.trim_end().ends_with('?'),
            Cue::Own => words(&normal).any(|word| OWN_WORDS.contains(&word)),
            Cue::When => words(&normal).any(|word| WHEN_WORDS.contains(word)),
        };
        if there {
            counts.add(TermKind::Cue, cue.name().to_owned());
        }
    }
    counts.finish(hasher)
}

/// The speaker name of the owner, so that "I" in a question finds the owner's messages.
pub const USER_SPEAKER: &str = "user";
/// The speaker name of the model, so that "you" in a question finds the model's messages.
pub const ASSISTANT_SPEAKER: &str = "assistant";

/// Words by which speakers talk about themselves.
pub(super) const OWN_WORDS: &[&str] =
    &["i", "my", "me", "mine", "we", "our", "us", "ours", "myself", "ourselves"];

/// Words that state a time.
static WHEN_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "yesterday today tomorrow tonight ago last next recently since week weeks weekend month months year \
     years monday tuesday wednesday thursday friday saturday sunday january february march april june july \
     august september october november december"
        .split(' ')
        .collect()
});

/// Whether every sentence with at least three content words is a question.
fn only_asks(normal: &str) -> bool {
    let mut asks = false;
    for sentence in normal.split_inclusive(['.', '!', '?', '\n']) {
        if sentence.ends_with('?') {
            asks = true;
        } else if content_words(sentence).nth(2).is_some() {
            return false;
        }
    }
    asks
}

/// Terms while they are counted.
#[derive(Default)]
struct TermCounts {
    counts: HashMap<(u8, String), u16>,
    length: u32,
}

impl TermCounts {
    fn add_words(&mut self, normal: &str, hasher: &TermHasher) {
        for word in content_words(normal) {
            self.length = self.length.saturating_add(1);
            self.add(TermKind::Word, hasher.stem(word));
        }
    }

    /// Adds a term unless it is present.
    fn add_once(&mut self, kind: TermKind, term: String) {
        if !self.counts.contains_key(&(kind as u8, term.clone())) {
            self.add(kind, term);
        }
    }

    fn add(&mut self, kind: TermKind, term: String) {
        let room = self.counts.len() < MAX_TERMS;
        let count = match self.counts.entry((kind as u8, term)) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) if room => new.insert(0),
            std::collections::hash_map::Entry::Vacant(_) => return,
        };
        *count = count.saturating_add(1);
    }

    fn finish(mut self, hasher: &TermHasher) -> Features {
        let kinds = [TermKind::Word, TermKind::Speaker, TermKind::Cue];
        let kind =
            |number: u8| kinds.into_iter().find(|kind| *kind as u8 == number).unwrap_or(TermKind::Word);
        let mut terms = Vec::with_capacity(self.counts.len());
        for ((number, mut term), count) in self.counts.drain() {
            terms.push((hasher.hash(kind(number), &term), count));
            term.zeroize();
        }
        terms.sort_unstable();
        // Terms with the same hash are merged.
        terms.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(later.1);
            }
            same
        });
        Features { terms, length: self.length, vector: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAY_8: u64 = 1_683_504_000_000;

    fn hasher() -> TermHasher {
        TermHasher::new([7; 32])
    }

    fn has(features: &Features, kind: TermKind, term: &str) -> bool {
        features.terms.binary_search_by_key(&hasher().hash(kind, term), |term| term.0).is_ok()
    }

    #[test]
    fn a_text_is_found_by_its_words_its_speaker_and_its_day() {
        let found = document_features("I painted a sunrise. Painting calms me!", "Melanie", MAY_8, &hasher());
        for word in ["paint", "sunris", "calm", "melani", "8", "may", "2023"] {
            assert!(has(&found, TermKind::Word, word), "{word}");
        }
        assert!(has(&found, TermKind::Speaker, "melani") && has(&found, TermKind::Cue, "own"));
        assert!(!has(&found, TermKind::Word, "i") && !has(&found, TermKind::Cue, "only asks"));
        assert_eq!(found.length, 8);
        assert!(found.terms.is_sorted_by_key(|term| term.0));
        assert_eq!(indexed_text("Hi.", "Melanie", MAY_8), "Melanie, 8 May 2023: Hi.");
        assert_eq!(indexed_text("Hi.", "", MAY_8), "8 May 2023: Hi.");
    }

    #[test]
    fn a_text_is_found_by_the_day_that_it_means() {
        let found =
            document_features("I saw a heron last year, and a fox yesterday.", "Melanie", MAY_8, &hasher());
        for word in ["7", "8", "may", "2022", "2023"] {
            assert!(has(&found, TermKind::Word, word), "{word}");
        }
        assert_eq!(found.length, 10);
    }

    #[test]
    fn cues_say_what_a_text_is_good_for() {
        for (text, cue, expected) in [
            ("How have you been?", "only asks", true),
            ("Wow! What did you paint there?", "only asks", true),
            ("I painted the lake at dawn yesterday. You?", "only asks", false),
            ("I painted the lake.", "only asks", false),
            ("That was last Friday", "when", true),
            ("That was nice", "when", false),
            ("I painted the lake at dawn yesterday. You?", "ends asking", true),
            ("They painted the lake at dawn", "own", false),
        ] {
            let found = document_features(text, "Melanie", MAY_8, &hasher());
            assert_eq!(has(&found, TermKind::Cue, cue), expected, "{text}: {cue}");
        }
    }

    #[test]
    fn a_text_of_any_size_has_bounded_features() {
        let many: String = (0..20_000).map(|number| format!("word{number} ")).collect();
        assert_eq!(features(&many, &hasher()).terms.len(), MAX_TERMS);
        let same = "fox ".repeat(70_000);
        assert_eq!(features(&same, &hasher()).terms, [(hasher().hash(TermKind::Word, "fox"), u16::MAX)]);
        assert_eq!(features("", &hasher()), Features::default());
    }
}
