//! The question of a search.

use crate::dates::{DAY_MS, Day};

use baton_models::embed::RelatedWord;

use super::{
    Background, QuantisedVector,
    features::{ASSISTANT_SPEAKER, Cue, OWN_WORDS, USER_SPEAKER},
    stop_words::is_stop_word,
    terms::{TermHasher, TermKind, content_words, normalised, words},
};

/// Most terms of a question, one bit each: a longer question is searched by its first words.
pub(super) const MAX_QUESTION_TERMS: usize = 64;

/// Most related words of a whole question: a question of eight words has about sixty.
const MAX_RELATED_TERMS: usize = 128;

/// A related word of one of the question's words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Synonym {
    /// The index of the question's word.
    pub(super) word: usize,
    /// Similarity of use, up to 1.
    pub(super) likeness: f32,
}

/// A question in the form for the search. Holds hashes, no words.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Hashes to search for, in this order: words; the same words as speaker names, with the speakers that
    /// "I" and "you" mean; cues; related words.
    hashes: Vec<u64>,
    words: usize,
    cues: usize,
    /// The meaning of the hashes after the cues.
    synonyms: Vec<Synonym>,
    pub(super) asks_when: bool,
    pub(super) asks_latest: bool,
    pub(super) now_ms: u64,
    pub(super) vector: Option<QuantisedVector>,
    pub(super) background: Background,
}

/// Words that ask for the newest item.
const LATEST_WORDS: &[&str] =
    &["latest", "newest", "recent", "recently", "currently", "current", "nowadays", "lately"];

/// Words that refer to the model.
const YOUR_WORDS: &[&str] = &["you", "your", "yours", "yourself"];

/// Words of courtesy, and words that ask for a number: they say nothing about the subject.
const COURTESY: &[&str] = &[
    "hello", "hi", "hey", "please", "thanks", "thank", "thx", "ok", "okay", "bye", "goodbye", "lot", "many",
    "much", "often",
];

impl Question {
    /// Parses a question. `now_ms` is the reference time for "yesterday".
    #[must_use]
    pub fn parse(text: &str, hasher: &TermHasher, now_ms: u64) -> Self {
        let normal = normalised(text);
        let mut terms: Vec<String> = Vec::new();
        let mut add = |term: String| {
            if terms.len() < MAX_QUESTION_TERMS && !terms.contains(&term) {
                terms.push(term);
            }
        };
        sought(&normal).for_each(|word| add(hasher.stem(word)));
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
            synonyms: Vec::new(),
            asks_when: words(&normal).take(3).any(|word| word == "when"),
            asks_latest: says(LATEST_WORDS),
            now_ms,
            vector: None,
            background: Background::TYPICAL,
        }
    }

    /// Adds the embedding, and the similarity of unrelated texts for that embedder.
    #[must_use]
    pub fn with_vector(mut self, vector: &[f32], background: Background) -> Self {
        self.vector = Some(QuantisedVector::from_unit(vector)).filter(|vector| vector.scale > 0.0);
        self.background = background;
        self
    }

    /// The question's words for the embedder's related words: its content words in letters, each once.
    #[must_use]
    pub fn words_sought(text: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for word in sought(&normalised(text)) {
            if word.chars().all(char::is_alphabetic) && !found.iter().any(|other| other == word) {
                found.push(word.to_owned());
            }
        }
        found
    }

    /// Adds related words to the search. `related` has a list for each of `words`, which come from
    /// [`words_sought`](Self::words_sought) of the same text.
    #[must_use]
    pub fn with_related(
        mut self,
        words: &[String],
        related: &[Vec<RelatedWord>],
        hasher: &TermHasher,
    ) -> Self {
        let own = |hash: &u64| self.hashes.iter().take(self.words).position(|word| word == hash);
        let mut found: Vec<(u64, Synonym)> = Vec::new();
        for (word, related) in words.iter().zip(related) {
            let Some(word) = own(&hasher.hash(TermKind::Word, &hasher.stem(word))) else { continue };
            for other in related.iter().filter(|other| !is_stop_word(&other.word)) {
                let hash = hasher.hash(TermKind::Word, &hasher.stem(&other.word));
                let known = found.iter().any(|(known, synonym)| *known == hash && synonym.word == word);
                if !known && own(&hash) != Some(word) {
                    let likeness =
                        if other.likeness.is_finite() { other.likeness.clamp(0.0, 1.0) } else { 0.0 };
                    found.push((hash, Synonym { word, likeness }));
                }
            }
        }
        found.sort_by(|a, b| b.1.likeness.total_cmp(&a.1.likeness));
        found.truncate(MAX_RELATED_TERMS);
        self.hashes.truncate(self.cues + Cue::ALL.len());
        self.hashes.extend(found.iter().map(|(hash, _)| *hash));
        self.synonyms = found.into_iter().map(|(_, synonym)| synonym).collect();
        self
    }

    /// Hashes to search for.
    #[must_use]
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The number of hashes that are words of the question; speakers follow, then cues, then related words.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The range of the speaker hashes. The first of them are the words again, in their order.
    pub(super) fn speakers(&self) -> std::ops::Range<usize> {
        self.words..self.cues
    }

    /// The start of the cues.
    pub(super) fn cues(&self) -> usize {
        self.cues
    }

    /// The start of the related words.
    pub(super) fn related(&self) -> usize {
        self.cues + Cue::ALL.len()
    }

    /// The synonyms of each word, as indices of [`synonyms`](Self::synonyms).
    pub(super) fn synonyms_by_word(&self) -> Vec<Vec<usize>> {
        let mut found = vec![Vec::new(); self.words];
        for (at, synonym) in self.synonyms.iter().enumerate() {
            if let Some(list) = found.get_mut(synonym.word) {
                list.push(at);
            }
        }
        found
    }

    /// The meaning of the hashes from [`related`](Self::related) on.
    pub(super) fn synonyms(&self) -> &[Synonym] {
        &self.synonyms
    }

    /// The embedding.
    #[must_use]
    pub fn vector(&self) -> Option<&QuantisedVector> {
        self.vector.as_ref()
    }
}

/// The words of a normalised text that name the subject of a question.
fn sought(normal: &str) -> impl Iterator<Item = &str> {
    content_words(normal).filter(|word| !COURTESY.contains(word)).take(MAX_QUESTION_TERMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn related_words_are_bounded_and_never_the_word_itself() {
        let hasher = TermHasher::new([5; 32]);
        let text = "Please, does my dog like the dogs on 3 May?";
        let words = Question::words_sought(text);
        assert_eq!(words, ["dog", "like", "dogs", "may"]);
        let named = |word: &str, likeness: f32| RelatedWord { word: word.to_owned(), likeness };
        let question = Question::parse(text, &hasher, 0);
        let related = [
            vec![named("puppy", 0.8), named("puppies", 0.7), named("dogs", 0.9), named("the", 0.9)],
            vec![named("love", f32::NAN), named("enjoy", 2.0)],
            vec![named("puppy", 0.6)],
            Vec::new(),
        ];
        let with = question.clone().with_related(&words, &related, &hasher);
        let expected = [(1, 1.0), (0, 0.8), (1, 0.0)].map(|(word, likeness)| Synonym { word, likeness });
        assert_eq!(with.synonyms(), expected);
        assert_eq!(with.hashes()[with.related() + 1], hasher.hash(TermKind::Word, "puppi"));
        assert_eq!(&with.hashes()[..with.related()], question.hashes());
        let many: Vec<RelatedWord> = (0..1_000).map(|number| named(&format!("word{number}"), 0.5)).collect();
        let with = question.with_related(&words, &[many], &hasher);
        assert_eq!(with.synonyms().len(), MAX_RELATED_TERMS);
        assert_eq!(with.hashes().len(), with.related() + MAX_RELATED_TERMS);
    }
}
