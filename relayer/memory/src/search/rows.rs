//! Search rows: an item's features in a form that a database may compare, and the question in the same form.
//!
//! A row is under a key of the segment of its item. So rows of two segments have nothing in common, and a deletion, which
//! gives the segment another key, leaves nothing to compare old rows with. docs/MEMORY.md describes what rows reveal.
//!
//! The database's comparison is approximate. It selects the items whose exact features are opened and ranked; its counts
//! of documents and words are exact.

use std::collections::HashMap;

use zeroize::Zeroizing;

use super::{
    FeatureRecord, QuantisedVector, Question,
    candidates::{Bm25, CosineSums, Statistics},
    rank::BY_THE_NAMED,
    rotation::{rotate, rotated_dimensions},
    threshold::Measure,
};
use crate::storage::{KeyedQuery, RowQuery, RowScan, SearchRow, Signs, TERMS};

/// The key of the search rows of a segment.
pub struct RowKey {
    id: u64,
    secret: Zeroizing<[u8; 32]>,
}

impl RowKey {
    pub(crate) fn new(id: u64, secret: Zeroizing<[u8; 32]>) -> Self {
        Self { id, secret }
    }

    /// Its name in rows.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn keyed(&self, purpose: u8, number: u64) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&[purpose]);
        hasher.update(&number.to_le_bytes());
        hasher.finalize().into()
    }

    /// The row's name for the owner's hash of a term. Both keys are needed to find the word.
    fn term(&self, hash: u64) -> u32 {
        let keyed = self.keyed(b't', hash);
        let number = u32::from_le_bytes(*keyed.first_chunk().expect("a hash has 32 bytes"));
        number % TERMS + 1
    }

    /// The signs of a vector; a vector without a direction has none.
    fn signs(&self, embedder: u64, vector: &QuantisedVector) -> Signs {
        if vector.scale <= 0.0 {
            return Signs { embedder, bits: Vec::new() };
        }
        let seed = Zeroizing::new(self.keyed(b'r', embedder));
        let rotated = rotate(&seed, &vector.to_unit());
        let byte = |values: &[f32]| values.iter().fold(0, |byte, value| byte << 1 | u8::from(*value > 0.0));
        Signs { embedder, bits: rotated.chunks(8).map(byte).collect() }
    }

    /// The row of an item.
    pub(crate) fn row(&self, number: u64, record: &FeatureRecord) -> SearchRow {
        let features = &record.features;
        let mut terms: Vec<u32> = features.terms.iter().map(|(hash, _)| self.term(*hash)).collect();
        terms.sort_unstable();
        terms.dedup();
        let embedder = embedder_hash(&record.embedder, record.dimensions as usize);
        let signs = features.vector.as_ref().map(|vector| self.signs(embedder, vector));
        SearchRow { number, key: self.id, terms, length: features.length, signs }
    }
}

impl std::fmt::Debug for RowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An embedder's name in rows.
pub(crate) fn embedder_hash(embedder: &str, dimensions: usize) -> u64 {
    let hash = blake3::hash(format!("{embedder} {dimensions}").as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// A question to rows.
pub(crate) struct RowQuestion<'a> {
    question: &'a Question,
    embedder: u64,
    /// Its different terms.
    terms: Vec<u64>,
    /// For each hash of the question, its place among the terms; `None` for a cue, of which nothing is counted.
    places: Vec<Option<usize>>,
}

/// The items to open, and the statistics of all visible ones.
pub(crate) struct SelectedRows {
    pub(crate) numbers: Vec<u64>,
    pub(crate) statistics: Statistics,
}

impl<'a> RowQuestion<'a> {
    /// The embedder is that of the question's vector.
    pub(crate) fn new(question: &'a Question, embedder: u64) -> Self {
        let mut terms = Vec::new();
        let mut known = HashMap::new();
        let cues = question.cues()..question.related();
        let places = question.hashes().iter().enumerate().map(|(at, hash)| {
            let new = || {
                terms.push(*hash);
                terms.len() - 1
            };
            (!cues.contains(&at)).then(|| *known.entry(*hash).or_insert_with(new))
        });
        let places = places.collect();
        Self { question, embedder, terms, places }
    }

    /// The question under each key.
    pub(crate) fn under(&self, keys: &[RowKey]) -> RowQuery {
        let keyed = keys.iter().map(|key| KeyedQuery {
            key: key.id,
            terms: self.terms.iter().map(|hash| key.term(*hash)).collect(),
            signs: self.question.vector().map(|vector| key.signs(self.embedder, vector)),
        });
        keyed.collect()
    }

    /// Selects the visible items with most evidence of their own, at most `most`. `visible` is ascending.
    pub(crate) fn select(&self, scan: &RowScan, visible: &[u64], most: usize) -> SelectedRows {
        let seen: Vec<usize> = scan
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| visible.binary_search(&row.number).is_ok())
            .map(|(at, _)| at)
            .collect();
        let cosine = self.cosine_of_distance();
        let mut counts = vec![0_u32; self.terms.len()];
        let (mut total_length, mut cosines) = (0, CosineSums::default());
        for at in &seen {
            let row = &scan.rows[*at];
            total_length += u64::from(row.length);
            scan.terms_of(*at)
                .for_each(|term| counts.get_mut(term).into_iter().for_each(|count| *count += 1));
            if let Some(estimate) = row.distance.and_then(|distance| cosine.get(distance as usize)) {
                cosines.add(estimate.cosine, estimate.variance);
            }
        }
        let count_of =
            |place: &Option<usize>| place.and_then(|place| counts.get(place).copied()).unwrap_or(0);
        let cosines = cosines.statistics();
        let statistics = Statistics {
            documents: seen.len() as u64,
            total_length,
            counts: self.places.iter().map(count_of).collect(),
            cosines: Some(cosines),
        };
        let bm25 = Bm25::new(&statistics, self.question);
        let measure = Measure::new(bm25.deviation, &cosines, self.question.background);
        let terms = self.worths(&bm25);
        let mut order: Vec<(f32, u64)> = seen
            .iter()
            .map(|at| {
                let row = &scan.rows[*at];
                let (mut lexical, mut named) = (0.0, 0.0_f32);
                for term in scan.terms_of(*at).filter_map(|term| terms.get(term)) {
                    lexical += term.weight;
                    named = named.max(term.named);
                }
                let estimate = row.distance.and_then(|distance| cosine.get(distance as usize));
                #[expect(clippy::cast_possible_truncation, reason = "a cosine")]
                let meaning = estimate.map(|estimate| estimate.cosine as f32);
                let sum = measure.words(lexical * bm25.saturated(1, row.length)) + measure.meaning(meaning);
                (sum + named, row.number)
            })
            .collect();
        if order.len() > most {
            order.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0));
            order.truncate(most);
        }
        SelectedRows { numbers: order.into_iter().map(|(_, number)| number).collect(), statistics }
    }

    /// The worth of each term in an item.
    fn worths(&self, bm25: &Bm25) -> Vec<TermWorth> {
        let mut worths = vec![TermWorth::default(); self.terms.len()];
        for (at, place) in self.places.iter().enumerate() {
            let Some(worth) = place.and_then(|place| worths.get_mut(place)) else { continue };
            let weight = if at < self.question.words() {
                bm25.weights.get(at)
            } else {
                at.checked_sub(self.question.related()).and_then(|synonym| bm25.synonyms.get(synonym))
            };
            worth.weight = worth.weight.max(weight.copied().unwrap_or(0.0));
            if bm25.names_speaker && self.question.speakers().contains(&at) {
                worth.named = BY_THE_NAMED;
            }
        }
        worths
    }

    /// The cosine that each distance stands for.
    #[expect(clippy::cast_precision_loss, reason = "at most 16,384 bits")]
    fn cosine_of_distance(&self) -> Vec<CosineEstimate> {
        let Some(vector) = self.question.vector() else { return Vec::new() };
        let bits = rotated_dimensions(vector.codes.len()).next_multiple_of(8);
        let estimate = |distance: usize| {
            let share = distance as f64 / bits as f64;
            let (sine, cosine) = (std::f64::consts::PI * share).sin_cos();
            let spread = std::f64::consts::PI * sine;
            CosineEstimate { cosine, variance: spread * spread * share * (1.0 - share) / bits as f64 }
        };
        (0..=bits).map(estimate).collect()
    }
}

/// The worth of a term of a question in an item.
#[derive(Clone, Copy, Default)]
struct TermWorth {
    weight: f32,
    /// The bonus for the name of a speaker.
    named: f32,
}

/// An estimate from signs: each differs with a probability that is the share of the angle.
#[derive(Clone, Copy)]
struct CosineEstimate {
    cosine: f64,
    variance: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Background, TermHasher, features};
    use crate::storage::{ScannedRow, TERMS_OF_A_SET};

    const EMBEDDER: &str = "test";

    fn key(byte: u8) -> RowKey {
        RowKey::new(u64::from(byte), Zeroizing::new([byte; 32]))
    }

    fn vector(seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f32::from(u16::try_from(state >> 48).unwrap()) / 32_768.0 - 1.0
        };
        let vector: Vec<f32> = (0..384).map(|_| next()).collect();
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.into_iter().map(|x| x / norm).collect()
    }

    fn record(text: &str, seed: u64) -> FeatureRecord {
        let mut features = features(text, &TermHasher::new([7; 32]));
        features.vector = Some(QuantisedVector::from_unit(&vector(seed)));
        FeatureRecord::new(features, EMBEDDER)
    }

    /// As the database compares.
    fn compare(rows: &[SearchRow], query: &[KeyedQuery]) -> RowScan {
        let mut scan = RowScan::default();
        for row in rows {
            let Some(keyed) = query.iter().find(|keyed| keyed.key == row.key) else { continue };
            for set in keyed.terms.chunks(TERMS_OF_A_SET) {
                let has = |term: &u32| row.terms.binary_search(term).is_ok();
                let bits = set.iter().enumerate().filter(|(_, term)| has(term)).map(|(at, _)| 1 << at);
                scan.sets.push(bits.sum());
            }
            let differ = |a: &Signs, b: &Signs| {
                let same = a.embedder == b.embedder && a.bits.len() == b.bits.len();
                same.then(|| a.bits.iter().zip(&b.bits).map(|(a, b)| (a ^ b).count_ones()).sum())
            };
            let distance = row.signs.as_ref().and_then(|signs| differ(signs, keyed.signs.as_ref()?));
            scan.rows.push(ScannedRow { number: row.number, length: row.length, distance });
        }
        scan
    }

    #[test]
    fn rows_of_two_segments_have_nothing_in_common() {
        let record = record("The harbour opens at dawn.", 1);
        let (a, b) = (key(1).row(1, &record), key(2).row(1, &record));
        assert_eq!(a, key(1).row(1, &record));
        assert!(a.terms.len() == 3 && a.terms.iter().all(|term| !b.terms.contains(term)));
        let (a, b) = (a.signs.unwrap(), b.signs.unwrap());
        let differ: u32 = a.bits.iter().zip(&b.bits).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((200..312).contains(&differ), "{differ} of 512");
        assert_eq!(format!("{:?}", key(1)), "RowKey { id: 1, .. }");
    }

    #[test]
    fn the_best_rows_are_selected_whatever_their_key_with_the_statistics_of_all_visible_ones() {
        let hasher = TermHasher::new([7; 32]);
        let (one, two) = (key(1), key(2));
        let mut rows: Vec<SearchRow> = (0..400)
            .map(|number| {
                let text = format!(
                    "Barrel {number} holds vinegar{}.",
                    if number % 4 == 0 { " and salt" } else { "" }
                );
                if number % 2 == 0 { &one } else { &two }.row(number, &record(&text, number + 10))
            })
            .collect();
        rows.push(one.row(400, &record("Something else.", 3)));
        // A row under a key that is gone.
        rows.push(key(3).row(401, &record("salt", 3)));
        let question = Question::parse("Which barrel has the salt of number 8?", &hasher, 0)
            .with_vector(&vector(3), Background::TYPICAL);
        let asked = RowQuestion::new(&question, embedder_hash(EMBEDDER, 384));
        let scan = compare(&rows, &asked.under(&[one, two]));
        let visible: Vec<u64> = (0..402).filter(|number| number % 8 != 4).collect();
        let found = asked.select(&scan, &visible, 20);
        assert_eq!((found.numbers.len(), found.statistics.documents), (20, 351));
        assert!(found.numbers.contains(&8) && found.numbers.contains(&400), "{:?}", found.numbers);
        assert!(found.numbers.iter().all(|number| visible.contains(number) && *number != 401));
        let salt = question.hashes().iter().position(|hash| *hash == features("salt", &hasher).terms[0].0);
        assert_eq!(found.statistics.counts[salt.unwrap()], 50);
        let cosines = found.statistics.cosines.unwrap();
        let exact: Vec<f32> = rows
            .iter()
            .filter(|row| row.number < 400 && visible.contains(&row.number))
            .map(|row| {
                let item = QuantisedVector::from_unit(&vector(row.number + 10));
                item.cosine(question.vector().unwrap()).unwrap()
            })
            .collect();
        let mean = exact.iter().sum::<f32>() / 350.0;
        assert!(cosines.count == 351 && (cosines.mean - mean).abs() < 0.02, "{cosines:?} {mean}");
        assert!(cosines.deviation < 0.12, "{cosines:?}");
        let other = Question::parse("salt", &hasher, 0).with_vector(&vector(3), Background::TYPICAL);
        let other = RowQuestion::new(&other, embedder_hash("another", 384));
        let scan = compare(&rows, &other.under(&[key(1)]));
        assert!(
            scan.rows.iter().all(|row| row.distance.is_none()),
            "another embedder's signs are not compared"
        );
        assert_eq!(other.select(&RowScan::default(), &visible, 5).numbers, Vec::<u64>::new());
    }
}
