//! Similarly used words, such as "dog" and "puppy", from the rows of a static table. A question may use
//! another word than its answer.
//!
//! The lexicon holds whole words only. Of a word's forms, it holds the one that the table ranks as most
//! frequent.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rust_stemmers::{Algorithm, Stemmer};

use crate::embed::{
    CountedFuture, EmbedFuture, EmbedRole, Embedder, MAX_RELATED, RelatedFuture, RelatedWord, StaticTable,
    unit,
};

/// Least cosine. Two random words of potion-base-8M have 0.00 with a deviation of 0.08; one pair in seven
/// hundred reaches this value.
const LEAST: f32 = 0.35;

/// Largest code of a row in int8.
const MAX_CODE: f32 = 127.0;

/// The words of a table with their directions in int8: a fourth of the rows' memory and scan time.
pub(crate) struct Lexicon {
    dimensions: usize,
    stemmer: Stemmer,
    words: Vec<(String, f32)>,
    codes: Vec<i8>,
}

impl Lexicon {
    /// Extracts the whole words of a vocabulary whose pieces are numbered by falling frequency. `row` returns
    /// a piece's row.
    pub(crate) fn new<'a>(
        dimensions: usize,
        vocabulary: HashMap<String, u32>,
        row: impl Fn(u32) -> Option<&'a [f32]>,
    ) -> Self {
        let whole = |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase());
        let mut pieces: Vec<(u32, String)> = vocabulary
            .into_iter()
            .filter(|(word, _)| whole(word))
            .map(|(word, piece)| (piece, word))
            .collect();
        pieces.sort_unstable();
        let mut lexicon = Self {
            dimensions,
            stemmer: Stemmer::create(Algorithm::English),
            words: Vec::new(),
            codes: Vec::new(),
        };
        let mut stems = HashSet::new();
        for (piece, word) in pieces {
            let Some(direction) = row(piece).map(|row| unit(row.to_vec())) else { continue };
            let largest = direction.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            if largest > 0.0 && stems.insert(lexicon.stemmer.stem(&word).into_owned()) {
                lexicon.codes.extend(direction.iter().map(|x| code(x / largest)));
                lexicon.words.push((word, largest / MAX_CODE));
            }
        }
        lexicon
    }

    /// Words used like `word`, whose unit vector is `direction`; other forms of the word itself are excluded.
    pub(crate) fn related(&self, word: &str, direction: &[f32]) -> Vec<RelatedWord> {
        let largest = direction.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if largest == 0.0 || direction.len() != self.dimensions {
            return Vec::new();
        }
        let sought: Vec<i8> = direction.iter().map(|x| code(x / largest)).collect();
        let own = self.stemmer.stem(word);
        let mut found: Vec<(f32, &str)> = self
            .words
            .iter()
            .zip(self.codes.chunks_exact(self.dimensions))
            .filter_map(|((other, scale), codes)| {
                #[expect(clippy::cast_precision_loss, reason = "a likeness needs no more than 24 bits")]
                let likeness = dot(codes, &sought) as f32 * scale * largest / MAX_CODE;
                (likeness >= LEAST).then_some((likeness, other.as_str()))
            })
            .filter(|(_, other)| self.stemmer.stem(other) != own)
            .collect();
        found.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        found.truncate(MAX_RELATED);
        found
            .into_iter()
            .map(|(likeness, word)| RelatedWord { word: word.to_owned(), likeness: likeness.min(1.0) })
            .collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "within ±127")]
fn code(share: f32) -> i8 {
    (share * MAX_CODE).round() as i8
}

/// Computed in chunks of a fixed length, so that the compiler uses the machine's multiply-add.
fn dot(a: &[i8], b: &[i8]) -> i32 {
    const LANES: usize = 32;
    let (a, b) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sum = 0;
    for (a, b) in a.0.iter().zip(b.0) {
        sum += a.iter().zip(b).map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b))).sum::<i32>();
    }
    sum + a.1.iter().zip(b.1).map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b))).sum::<i32>()
}

/// An embedder combined with a static table, which knows single words.
pub struct CombinedEmbedder {
    embedder: Arc<dyn Embedder>,
    table: StaticTable,
}

impl CombinedEmbedder {
    /// Embeds with `embedder`, and relates words with `table`.
    #[must_use]
    pub fn new(embedder: Arc<dyn Embedder>, table: StaticTable) -> Self {
        Self { embedder, table }
    }
}

impl Embedder for CombinedEmbedder {
    fn id(&self) -> &str {
        self.embedder.id()
    }

    fn dimensions(&self) -> usize {
        self.embedder.dimensions()
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        self.embedder.embed(role, texts)
    }

    fn embed_counted<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> CountedFuture<'a> {
        self.embedder.embed_counted(role, texts)
    }

    fn related<'a>(&'a self, words: &'a [&'a str]) -> RelatedFuture<'a> {
        self.table.related(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_named_once_and_best_first() {
        let rows: HashMap<u32, Vec<f32>> = [
            (5, vec![1.0, 0.0, 0.0]),
            (6, vec![0.9, 0.4, 0.0]),
            (7, vec![2.0, 0.5, 0.0]),
            (8, vec![0.0, 0.0, 1.0]),
            (9, vec![0.95, 0.1, 0.0]),
            (10, vec![1.0, 0.0, 0.1]),
            (11, vec![0.0; 3]),
        ]
        .into();
        let vocabulary =
            [("dog", 5), ("puppy", 6), ("hound", 7), ("train", 8), ("dogs", 9), ("##gy", 10), ("nil", 11)];
        let vocabulary = vocabulary.map(|(word, piece)| (word.to_owned(), piece)).into();
        let lexicon = Lexicon::new(3, vocabulary, |piece| rows.get(&piece).map(Vec::as_slice));
        let words = |word: &str, direction: &[f32]| -> Vec<String> {
            lexicon.related(word, direction).into_iter().map(|related| related.word).collect()
        };
        assert_eq!(words("dogs", &[1.0, 0.0, 0.0]), ["hound", "puppy"]);
        assert_eq!(words("wolf", &[1.0, 0.0, 0.0]), ["dog", "hound", "puppy"]);
        assert_eq!(words("railway", &[0.0, 0.0, 1.0]), ["train"]);
        assert!(words("", &[0.0; 3]).is_empty() && words("dog", &[1.0]).is_empty());
        let likeness = lexicon.related("wolf", &[1.0, 0.0, 0.0])[1].likeness;
        assert!((likeness - 2.0 / 4.25_f32.sqrt()).abs() < 0.01, "{likeness}");
    }

    #[test]
    fn the_number_of_related_words_is_bounded() {
        let letters = |number: u32| -> String {
            number.to_string().bytes().map(|digit| char::from(b'b' + digit - b'0')).collect::<String>() + "x"
        };
        let vocabulary = (10..200).map(|number| (letters(number), number)).collect();
        let row = [1.0_f32, 0.0];
        let lexicon = Lexicon::new(2, vocabulary, |_| Some(&row[..]));
        assert_eq!(lexicon.related("other", &row).len(), MAX_RELATED);
    }
}
