//! Turns a text into search terms. Words are normalised, stripped of stop words, stemmed, and hashed under
//! the owner's key. So an index contains no words.

use baton_proto::text::searchable;
use rust_stemmers::{Algorithm, Stemmer};
use unicode_segmentation::UnicodeSegmentation as _;
use zeroize::Zeroizing;

use super::stop_words::is_stop_word;
use crate::extraction::APOSTROPHES;

/// Most bytes of a word; longer ones are not searched for.
const MAX_WORD_BYTES: usize = 64;

/// Most words of a text that are read: a message has at most 512 KiB, or about 100,000 words.
pub(super) const MAX_WORDS: usize = 100_000;

/// The kind of a term: the same word is a different term in another kind.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum TermKind {
    /// A word of the text.
    Word = 0,
    /// A word of the speaker's name.
    Speaker = 1,
    /// A property of the text as a whole.
    Cue = 2,
}

/// Hashes terms under an owner's key. The key is wiped on drop.
pub struct TermHasher {
    key: Zeroizing<[u8; 32]>,
    stemmer: Stemmer,
}

impl std::fmt::Debug for TermHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TermHasher(…)")
    }
}

impl TermHasher {
    /// A hasher under a key, which must have no other use.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { key: Zeroizing::new(key), stemmer: Stemmer::create(Algorithm::English) }
    }

    /// The first eight bytes of BLAKE3 under the key. With a million terms of an owner, the chance of a
    /// collision is one in forty million.
    pub(super) fn hash(&self, kind: TermKind, term: &str) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[kind as u8]);
        hasher.update(term.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }

    /// The English stem of a word in lower case; a word in another script stays unchanged.
    pub(super) fn stem(&self, word: &str) -> String {
        if word.is_ascii() { self.stemmer.stem(word).into_owned() } else { word.to_owned() }
    }
}

/// Normalises a text: its searchable form, with plain apostrophes.
pub(super) fn normalised(text: &str) -> String {
    searchable(text).replace(APOSTROPHES, "'")
}

/// The words of a normalised text, stop words included, with contractions split ("didn't" is "didn" and "t").
pub(super) fn words(normal: &str) -> impl Iterator<Item = &str> {
    normal
        .unicode_words()
        .flat_map(|word| word.split(['\'', '_', '.', ':', ',']))
        .filter(|word| !word.is_empty() && word.len() <= MAX_WORD_BYTES)
        .take(MAX_WORDS)
}

/// The words of a text without stop words.
pub(super) fn content_words(normal: &str) -> impl Iterator<Item = &str> {
    words(normal).filter(|word| !is_stop_word(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stems(text: &str) -> Vec<String> {
        let hasher = TermHasher::new([7; 32]);
        content_words(&normalised(text)).map(|word| hasher.stem(word)).collect()
    }

    #[test]
    fn one_word_in_many_spellings_is_one_term() {
        for (text, expected) in [
            ("Caroline’s paintings, didn't she PAINT?", vec!["carolin", "paint", "paint"]),
            ("Café CAFÉ cafe\u{301} cafe", vec!["cafe"; 4]),
            ("Straße ｆｕｌｌ ﬁne", vec!["strass", "full", "fine"]),
            ("on 3 May, 2023", vec!["3", "may", "2023"]),
            ("Привет, МИР", vec!["привет", "мир"]),
            ("İstanbul i\u{307}stanbul ISTANBUL", vec!["istanbul"; 3]),
            ("Σίσυφος ΣΊΣΥΦΟΣ Σι\u{301}συφος", vec!["σισυφοσ"; 3]),
            ("한글 \u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}", vec!["한글"; 2]),
            ("Hawaiʻi Hawai'i Hawai’i", vec!["hawai"; 3]),
            ("Søren Soren, Łódź LODZ, Ægir aegir", vec!["soren", "soren", "lodz", "lodz", "aegir", "aegir"]),
            ("tram ４７ 47", vec!["tram", "47", "47"]),
            ("مُحَمَّد محمد", vec!["محمد"; 2]),
            ("שָׁלוֹם שלום", vec!["שלום"; 2]),
            ("the of and", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(stems(text), expected, "{text}");
        }
        assert_eq!(stems(&"x".repeat(65)), Vec::<String>::new());
    }

    #[test]
    fn a4_terms_of_two_owners_have_nothing_in_common() {
        let (a, b) = (TermHasher::new([1; 32]), TermHasher::new([2; 32]));
        assert_eq!(a.hash(TermKind::Word, "fox"), a.hash(TermKind::Word, "fox"));
        assert_ne!(a.hash(TermKind::Word, "fox"), b.hash(TermKind::Word, "fox"));
        assert_ne!(a.hash(TermKind::Word, "fox"), a.hash(TermKind::Speaker, "fox"));
        assert_eq!(format!("{a:?}"), "TermHasher(…)");
    }
}
