//! One owner's index at a given size, of made-up items. The bench and the test of its speed search it.

use baton_memory::{
    model::Kind,
    search::{Background, Documents, Features, Index, QuantisedVector, Question, TermHasher, features, rank},
};
use baton_models::embed::RelatedWord;

/// Words of the artificial language; an owner with many items uses tens of thousands.
const WORDS: usize = 20_000;
/// Different words of an item.
const ITEM_WORDS: usize = 20;
/// Words of a question.
const QUESTION_WORDS: usize = 8;
/// Words related to each of them; a static table has about as many.
const RELATED: usize = 12;
/// Questions per measurement.
pub(crate) const QUESTIONS: usize = 200;

/// Artificial items, and questions about them: words with natural frequencies (Zipf), random vectors.
pub(crate) struct ScaleInput {
    items: Vec<Features>,
    questions: Vec<Question>,
    dimensions: usize,
}

/// An owner with these items.
pub(crate) struct Scale {
    /// The index.
    pub index: Index,
    questions: Vec<Question>,
    items: u64,
}

impl Documents for Scale {
    fn neighbours(&self, number: u64) -> [Option<u64>; 2] {
        [number.checked_sub(1), Some(number + 1).filter(|next| *next < self.items)]
    }

    fn time_ms(&self, number: u64) -> u64 {
        number * 60_000
    }

    fn kind(&self, _number: u64) -> Kind {
        Kind::Episode
    }

    fn salience(&self, _number: u64) -> f32 {
        0.5
    }
}

impl ScaleInput {
    /// Generates it, the same each time.
    pub(crate) fn generate(items: usize, dimensions: usize) -> Self {
        let hasher = TermHasher::new([1; 32]);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let hashes: Vec<u64> = (0..WORDS)
            .map(|word| features(&format!("w{word}"), &hasher).terms.first().map_or(0, |term| term.0))
            .collect();
        let items = (0..items).map(|_| random.item(&hashes, dimensions)).collect();
        let questions = (0..QUESTIONS)
            .map(|_| {
                let words: Vec<String> = (0..QUESTION_WORDS).map(|_| random.named()).collect();
                let background = Background { mean: 0.0, deviation: 0.1 };
                let related: Vec<Vec<RelatedWord>> = words
                    .iter()
                    .map(|_| {
                        (0..RELATED).map(|_| RelatedWord { word: random.named(), likeness: 0.5 }).collect()
                    })
                    .collect();
                Question::parse(&words.join(" "), &hasher, 0)
                    .with_related(&words, &related, &hasher)
                    .with_vector(&random.unit(dimensions), background)
            })
            .collect();
        Self { items, questions, dimensions }
    }

    /// Builds the index from the items' features.
    pub(crate) fn build(self) -> Scale {
        let items = self.items.len() as u64;
        let mut index = Index::new(self.dimensions);
        for (number, features) in (0..).zip(self.items) {
            index.insert(number, features);
        }
        Scale { index, questions: self.questions, items }
    }
}

impl Scale {
    /// Asks one of its questions; returns the number of hits.
    pub(crate) fn ask(&self, number: usize) -> usize {
        let Some(question) = self.questions.get(number % QUESTIONS) else { return 0 };
        rank(question, &self.index.scan(question, &|_| true), self, 20).len()
    }
}

/// xorshift64 (Marsaglia, 2003): good enough for artificial data.
struct Random(u64);

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up data"
)]
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// 0 to 1.
    fn share(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 24) as f32
    }

    /// A word: the logarithm of its rank is uniform.
    fn word(&mut self) -> usize {
        ((WORDS as f32).powf(self.share()) as usize).clamp(1, WORDS) - 1
    }

    fn named(&mut self) -> String {
        format!("w{}", self.word())
    }

    fn unit(&mut self, dimensions: usize) -> Vec<f32> {
        let vector: Vec<f32> = (0..dimensions).map(|_| self.share() + self.share() - 1.0).collect();
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.into_iter().map(|x| x / norm).collect()
    }

    fn item(&mut self, hashes: &[u64], dimensions: usize) -> Features {
        let mut terms: Vec<(u64, u16)> =
            (0..ITEM_WORDS).filter_map(|_| hashes.get(self.word()).map(|hash| (*hash, 1))).collect();
        terms.sort_unstable();
        terms.dedup_by_key(|term| term.0);
        let length = u32::try_from(terms.len()).unwrap_or(u32::MAX);
        Features { terms, length, vector: Some(QuantisedVector::from_unit(&self.unit(dimensions))) }
    }
}
