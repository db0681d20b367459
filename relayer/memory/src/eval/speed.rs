//! The speed of one owner's index at a given size.

use std::time::Instant;

use baton_embed::RelatedWord;
use serde::Serialize;

use crate::{
    model::Kind,
    search::{Background, Documents, Features, Index, QuantisedVector, Question, TermHasher, features, rank},
};

/// Words of the artificial language; an owner with many items uses tens of thousands.
const WORDS: usize = 20_000;
/// Different words of an item.
const ITEM_WORDS: usize = 20;
/// Words of a question.
const QUESTION_WORDS: usize = 8;
/// Words related to each of them; a static table has about as many.
const RELATED: usize = 12;
/// Questions per measurement.
const QUESTIONS: usize = 200;

/// The results of a measurement. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Items of the owner.
    pub items: usize,
    /// Length of the vectors.
    pub dimensions: usize,
    /// Time to build the index from stored features.
    pub build_us: u64,
    /// Bytes of memory for each item.
    pub bytes_per_item: usize,
    /// Median time of scan and ranking.
    pub p50_us: u64,
    /// 99th percentile of scan and ranking.
    pub p99_us: u64,
}

/// An owner with artificial items: words with natural frequencies (Zipf), random vectors.
pub struct Scale {
    /// The index.
    pub index: Index,
    questions: Vec<Question>,
    items: u64,
    build_us: u64,
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

impl Scale {
    /// Generates it, the same each time.
    #[must_use]
    pub fn new(items: usize, dimensions: usize) -> Self {
        let hasher = TermHasher::new([1; 32]);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let hashes: Vec<u64> = (0..WORDS)
            .map(|word| features(&format!("w{word}"), &hasher).terms.first().map_or(0, |term| term.0))
            .collect();
        let all: Vec<Features> = (0..items).map(|_| random.item(&hashes, dimensions)).collect();
        let begin = Instant::now();
        let mut index = Index::new(dimensions);
        for (number, features) in (0..).zip(all) {
            index.insert(number, features);
        }
        let build_us = micros(begin);
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
        Self { index, questions, items: items as u64, build_us }
    }

    /// Asks one of its questions; returns the number of hits.
    pub fn ask(&self, number: usize) -> usize {
        let Some(question) = self.questions.get(number % QUESTIONS) else { return 0 };
        rank(question, &self.index.scan(question, &|_| true), self, 20).len()
    }
}

/// Measures an owner with this many items.
#[must_use]
pub fn scan_speed(items: usize, dimensions: usize) -> Speed {
    let scale = Scale::new(items, dimensions);
    let mut times: Vec<u64> = (0..QUESTIONS)
        .map(|number| {
            let begin = Instant::now();
            let found = scale.ask(number);
            let took = micros(begin);
            std::hint::black_box(found);
            took
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or(0);
    let bytes_per_item = scale.index.bytes() / items.max(1);
    Speed { items, dimensions, build_us: scale.build_us, bytes_per_item, p50_us: at(50), p99_us: at(99) }
}

fn micros(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `BATON_SPEED` lists the sizes to print, such as `1000,10000`.
    #[test]
    fn sizes_that_are_asked_for_are_measured() {
        let sizes = std::env::var("BATON_SPEED").unwrap_or_default();
        for items in sizes.split(',').filter_map(|size| size.parse().ok()) {
            let speed = scan_speed(items, 256);
            eprintln!("{}", serde_json::to_string(&speed).unwrap());
            assert!(speed.p99_us < 300_000, "the deadline of a recall");
        }
    }

    #[test]
    fn what_is_measured_finds_something() {
        let speed = scan_speed(2_000, 64);
        assert!(speed.p99_us >= speed.p50_us && speed.bytes_per_item > 64);
        assert_eq!(Scale::new(100, 16).ask(0), 20);
    }
}
