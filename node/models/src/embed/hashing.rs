//! `hashing-384-v1`: an embedder without model files.
//!
//! A hash maps words, word pairs and word pieces to 384 dimensions, after Weinberger et al., "Feature hashing
//! for large scale multitask learning" (2009). It finds similar spelling, not similar meaning. Results are
//! the same on every machine, for ever: a different hash would need a different ID.

use crate::embed::{EmbedFuture, EmbedRole, Embedder, off_reactor, unit};

/// Length of the vectors.
pub(crate) const DIMENSIONS: usize = 384;

/// Weight of a pair of adjacent words.
const PAIR: f32 = 0.5;
/// Weight of a piece of a word.
const PIECE: f32 = 0.5;
/// Characters of a piece.
const PIECE_CHARACTERS: usize = 4;

/// Words that carry no topic, sorted.
const IGNORED: &[&str] = &[
    "a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "did", "do", "does", "for", "from",
    "had", "has", "have", "he", "her", "his", "how", "i", "in", "is", "it", "its", "me", "my", "of", "on",
    "or", "our", "s", "she", "so", "t", "that", "the", "their", "them", "they", "this", "to", "was", "we",
    "were", "what", "when", "where", "which", "who", "why", "will", "with", "you", "your",
];

/// The hashing embedder.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashing;

impl Hashing {
    /// Its id.
    pub const ID: &'static str = "hashing-384-v1";

    /// Embeds one text.
    #[must_use]
    pub fn embed_one(text: &str) -> Vec<f32> {
        let mut vector = vec![0.0; DIMENSIONS];
        let lower = text.to_lowercase();
        let mut before: Option<&str> = None;
        let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        for word in words.filter(|word| IGNORED.binary_search(word).is_err()) {
            add(&mut vector, &["word", word], 1.0);
            if let Some(before) = before {
                add(&mut vector, &["pair", before, word], PAIR);
            }
            let framed: Vec<char> =
                std::iter::once('^').chain(word.chars()).chain(std::iter::once('$')).collect();
            for piece in framed.windows(PIECE_CHARACTERS) {
                add(&mut vector, &["piece", &piece.iter().collect::<String>()], PIECE);
            }
            before = Some(word);
        }
        unit(vector)
    }
}

/// Adds a feature; its hash selects the dimension and the sign.
fn add(vector: &mut [f32], feature: &[&str], weight: f32) {
    let mut hasher = blake3::Hasher::new();
    for part in feature {
        hasher.update(part.as_bytes());
        hasher.update(&[0]);
    }
    let hash = hasher.finalize();
    let [a, b, c, d, sign, ..] = *hash.as_bytes();
    let place = u32::from_le_bytes([a, b, c, d]) as usize % vector.len();
    if let Some(component) = vector.get_mut(place) {
        *component += if sign & 1 == 0 { weight } else { -weight };
    }
}

impl Embedder for Hashing {
    fn id(&self) -> &str {
        Self::ID
    }

    fn dimensions(&self) -> usize {
        DIMENSIONS
    }

    fn embed<'a>(&'a self, _role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        off_reactor(texts, |texts| Ok(texts.iter().map(|text| Self::embed_one(text)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cosine(a: &str, b: &str) -> f32 {
        Hashing::embed_one(a).iter().zip(Hashing::embed_one(b)).map(|(a, b)| a * b).sum()
    }

    #[tokio::test]
    async fn c11_the_hashing_embedder_needs_nothing_and_never_changes() {
        let texts = ["I adopted a grey cat", "I adopted a grey cat", "", "the of and"];
        let vectors = Hashing.embed(EmbedRole::Document, &texts).await.unwrap();
        assert_eq!((Hashing.id(), Hashing.dimensions()), ("hashing-384-v1", 384));
        assert!(vectors.iter().all(|vector| vector.len() == 384));
        assert_eq!(vectors[0], vectors[1]);
        assert!((vectors[0].iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        assert!(vectors[2].iter().chain(&vectors[3]).all(|x| *x == 0.0));
        // Golden values: a change of these is another embedder and needs another ID.
        let places: Vec<usize> = Hashing::embed_one("fox")
            .iter()
            .enumerate()
            .filter(|(_, x)| **x != 0.0)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(places, GOLDEN_FOX);
    }

    const GOLDEN_FOX: [usize; 3] = [29, 125, 345];

    #[test]
    fn similar_spellings_are_nearer() {
        assert!(IGNORED.is_sorted());
        let question = "Which cats did she adopt?";
        assert!(cosine(question, "She adopted a cat") > cosine(question, "The train leaves at nine") + 0.2);
        assert!(cosine("Hello World", "hello, world!") > 0.999);
    }
}
