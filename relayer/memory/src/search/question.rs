//! What somebody wants to know.

use super::{
    Background, Quantised,
    dates::{DAY_MS, Day},
    features::{ASSISTANT_SPEAKER, Cue, OWN_WORDS, USER_SPEAKER},
    terms::{TermHasher, TermKind, content_words, normalised, words},
};

/// Most terms of a question that are looked for, one bit each: what is longer is found by its first words.
const MAX_QUESTION_TERMS: usize = 64;

/// A question as the search sees it. Holds hashes, no words.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Hashes to look for: words, then the same words as names of speakers and those whom "I" and "you" mean, then cues.
    hashes: Vec<u64>,
    words: usize,
    cues: usize,
    pub(super) asks_when: bool,
    pub(super) asks_latest: bool,
    pub(super) now_ms: u64,
    pub(super) vector: Option<Quantised>,
    pub(super) background: Background,
}

/// Words that ask for the newest.
const LATEST_WORDS: &[&str] =
    &["latest", "newest", "recent", "recently", "currently", "current", "nowadays", "lately"];

/// Words by which a question means the one who is asked.
const YOUR_WORDS: &[&str] = &["you", "your", "yours", "yourself"];

/// Words of courtesy, which say nothing of what a question is about.
const COURTESY: &[&str] =
    &["hello", "hi", "hey", "please", "thanks", "thank", "thx", "ok", "okay", "bye", "goodbye", "lot"];

impl Question {
    /// Reads a question. `now_ms` is what "yesterday" is counted from.
    #[must_use]
    pub fn parse(text: &str, hasher: &TermHasher, now_ms: u64) -> Self {
        let normal = normalised(text);
        let mut terms: Vec<String> = Vec::new();
        let mut add = |term: String| {
            if terms.len() < MAX_QUESTION_TERMS && !terms.contains(&term) {
                terms.push(term);
            }
        };
        let about = |word: &&str| !COURTESY.contains(word);
        content_words(&normal).filter(about).take(MAX_QUESTION_TERMS).for_each(|word| add(hasher.stem(word)));
        let days_ago = |days: u64| Day::of(now_ms.saturating_sub(days * DAY_MS));
        for word in words(&normal) {
            let day = match word {
                "today" => days_ago(0),
                "yesterday" => days_ago(1),
                _ => continue,
            };
            normalised(&day.to_string()).split(' ').for_each(|word| add(hasher.stem(word)));
        }
        let mut hashes: Vec<u64> = terms.iter().map(|term| hasher.hash(TermKind::Word, term)).collect();
        hashes.extend(terms.iter().map(|term| hasher.hash(TermKind::Speaker, term)));
        let says = |list: &[&str]| words(&normal).any(|word| list.contains(&word));
        for (speaker, pronouns) in [(USER_SPEAKER, OWN_WORDS), (ASSISTANT_SPEAKER, YOUR_WORDS)] {
            if says(pronouns) {
                hashes.push(hasher.hash(TermKind::Speaker, &hasher.stem(speaker)));
            }
        }
        let cues = hashes.len();
        hashes.extend(Cue::ALL.iter().map(|cue| hasher.hash(TermKind::Cue, cue.name())));
        Self {
            hashes,
            words: terms.len(),
            cues,
            asks_when: words(&normal).take(3).any(|word| word == "when"),
            asks_latest: says(LATEST_WORDS),
            now_ms,
            vector: None,
            background: Background::TYPICAL,
        }
    }

    /// The same question with its embedding, and how similar unrelated texts are for that embedder.
    #[must_use]
    pub fn with_vector(mut self, vector: &[f32], background: Background) -> Self {
        self.vector = Some(Quantised::from_unit(vector)).filter(|vector| vector.scale > 0.0);
        self.background = background;
        self
    }

    /// Hashes to look for, in the order in which [`ScanRow::counts`](crate::storage::ScanRow::counts) has to answer.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// How many of the hashes are words of the question; speakers follow, then the cues.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Which of the hashes are speakers. The first of them are the words again, in their order.
    pub(super) fn speakers(&self) -> std::ops::Range<usize> {
        self.words..self.cues
    }

    /// Where the cues begin.
    pub(super) fn cues(&self) -> usize {
        self.cues
    }

    /// The embedding.
    #[must_use]
    pub fn vector(&self) -> Option<&Quantised> {
        self.vector.as_ref()
    }
}
