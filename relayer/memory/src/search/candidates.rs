//! The results of a scan, for the ranking.

use super::question::{Question, Synonym};

/// Saturation of repeated words (Robertson and Zaragoza, "The probabilistic relevance framework", 2009).
const K1: f32 = 1.2;
/// Length penalty; low, because messages are short and longer ones say more.
const B: f32 = 0.4;

/// Share of its weight that a word keeps if no document has it: it may be a synonym of a word that exists.
const UNSEEN: f32 = 0.5;

/// Least share of the question's largest weight for a related word. Smaller ones change no order, and very
/// common words would cost most of a search.
const LEAST_SYNONYM: f32 = 0.2;

/// Assumed extra documents without any word of the question. In a small memory, a word in all documents is
/// then not taken for a common word.
const MORE_DOCUMENTS: f32 = 16.0;

/// Most words of a question.
pub(super) const WORDS: usize = super::question::MAX_QUESTION_TERMS;

/// An item that a scan found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandidateRow {
    /// The item.
    pub number: u64,
    /// BM25 of the question's words or their synonyms.
    pub lexical: f32,
    /// Cosine with the question's vector, where both have one.
    pub cosine: Option<f32>,
    /// The question's words that it has literally, one bit each.
    pub(super) words: u64,
    /// Words in the text.
    pub(super) length: u32,
    /// Set of [`Cue`](super::features::Cue)s.
    pub(super) cues: u8,
    /// Whether its speaker is named in the question.
    pub(super) speaker_named: bool,
    /// Its list in [`Candidates::shares`].
    pub(super) list: u32,
}

/// The weights of each document for each word of a question, as lists: most are empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares(Vec<Share>);

/// No list, or its end.
pub(super) const NOTHING: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Share {
    word: u8,
    worth: f32,
    next: u32,
}

impl Shares {
    /// Adds a document's weight for a word; the largest weight of a word counts. Words must come in order.
    /// Returns the increase.
    pub(super) fn take(&mut self, list: &mut u32, word: usize, worth: f32) -> f32 {
        let word = u8::try_from(word).unwrap_or(u8::MAX);
        if let Some(share) = self.0.get_mut(*list as usize).filter(|share| share.word == word) {
            let more = (worth - share.worth).max(0.0);
            share.worth += more;
            return more;
        }
        if worth <= 0.0 {
            return 0.0;
        }
        let Ok(at) = u32::try_from(self.0.len()) else { return 0.0 };
        self.0.push(Share { word, worth, next: *list });
        *list = at;
        worth
    }

    /// A list's weight for each word.
    pub(super) fn of(&self, list: u32) -> [f32; WORDS] {
        let mut worth = [0.0; WORDS];
        let mut at = list;
        while let Some(share) = self.0.get(at as usize) {
            if let Some(place) = worth.get_mut(usize::from(share.word)) {
                *place = share.worth;
            }
            at = share.next;
        }
        worth
    }
}

/// The results of a scan over the visible documents, with their statistics.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Ascending by number.
    pub(super) rows: Vec<CandidateRow>,
    /// The weight of each row for each word of the question.
    pub(super) shares: Shares,
    /// Weight of each word of the question, unseen ones included.
    pub(super) weights: Vec<f32>,
    /// The same, with the full weight of unseen words.
    pub(super) full_weights: Vec<f32>,
    /// The weights that decide whether the question is answered: as if there were more documents without
    /// these words.
    pub(super) worth: Vec<f32>,
    /// Standard deviation of BM25 over all documents, from the document count of each word.
    pub(super) lexical_deviation: f32,
    pub(super) cosines: CosineStatistics,
    /// Documents searched.
    pub(super) documents: u64,
    /// Whether the question names a speaker, and not the only one.
    pub(super) names_speaker: bool,
}

impl Candidates {
    /// The rows, ascending by number.
    #[must_use]
    pub fn rows(&self) -> &[CandidateRow] {
        &self.rows
    }

    /// How many documents were searched.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.documents
    }

    pub(super) fn get(&self, number: u64) -> Option<&CandidateRow> {
        let at = self.rows.binary_search_by_key(&number, |row| row.number).ok()?;
        self.rows.get(at)
    }

    /// Total weight of some of the question's words, one bit each.
    pub(super) fn weight_of(&self, words: u64) -> f32 {
        if words == 0 {
            return 0.0;
        }
        let has = |word: usize| {
            words.checked_shr(u32::try_from(word).unwrap_or(u32::MAX)).is_some_and(|rest| rest & 1 == 1)
        };
        self.weights.iter().enumerate().filter(|(word, _)| has(*word)).map(|(_, weight)| weight).sum()
    }
}

/// Counts over the searched documents: the same whether all or only the best of them are scored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Statistics {
    pub(super) documents: u64,
    /// Words of all documents.
    pub(super) total_length: u64,
    /// Documents with each of the question's hashes, in their order.
    pub(super) counts: Vec<u32>,
    /// `None` if all documents are scored: then these are counted there.
    pub(super) cosines: Option<CosineStatistics>,
}

/// The cosines of all searched documents with a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CosineStatistics {
    pub(super) count: u64,
    pub(super) mean: f32,
    pub(super) deviation: f32,
}

/// Sums of cosines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CosineSums {
    count: u64,
    sum: f64,
    squares: f64,
    noise: f64,
}

impl CosineSums {
    /// Adds a cosine with the variance of its estimation, 0 for an exact one.
    pub(super) fn add(&mut self, cosine: f64, noise: f64) {
        self.count += 1;
        self.sum += cosine;
        self.squares += cosine * cosine;
        self.noise += noise;
    }

    /// Their statistics, without the variance of the estimation.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "statistics of cosines")]
    pub(super) fn statistics(self) -> CosineStatistics {
        let count = self.count.max(1) as f64;
        let mean = self.sum / count;
        let variance = ((self.squares - self.noise) / count - mean * mean).max(0.0);
        CosineStatistics { count: self.count, mean: mean as f32, deviation: variance.sqrt() as f32 }
    }
}

/// Weights of a question's words among some documents.
pub(super) struct Bm25 {
    /// For each word; 0 for the name of a speaker, which counts separately.
    pub(super) weights: Vec<f32>,
    /// The same, without the reduction for unseen words.
    pub(super) full: Vec<f32>,
    /// The same, with [`MORE_DOCUMENTS`] extra documents.
    pub(super) worth: Vec<f32>,
    /// For each synonym.
    pub(super) synonyms: Vec<f32>,
    pub(super) deviation: f32,
    pub(super) names_speaker: bool,
    average_length: f32,
}

#[expect(clippy::cast_precision_loss, reason = "counts of documents; a weight needs no more than 24 bits")]
impl Bm25 {
    pub(super) fn new(statistics: &Statistics, question: &Question) -> Self {
        let n = statistics.documents as f32;
        let of_words = statistics.counts.get(..question.words()).unwrap_or_default();
        let of_speakers = statistics.counts.get(question.speakers()).unwrap_or_default();
        let of_related = statistics.counts.get(question.related()..).unwrap_or_default();
        let names = |speaker: &u32| *speaker > 0 && u64::from(*speaker) < statistics.documents;
        let names_speaker = of_speakers.iter().any(names);
        let is_name = |word: usize| of_speakers.get(word).is_some_and(names);
        let all_names = (0..of_words.len()).all(is_name);
        let rarity = |documents: f32, count: u32| {
            let count = (count as f32).min(documents);
            (1.0 + (documents - count + 0.5) / (count + 0.5)).ln()
        };
        let weigh = |documents: f32| -> Vec<f32> {
            let no_word = |word: usize| is_name(word) && !all_names;
            let words = of_words.iter().enumerate();
            words.map(|(word, count)| if no_word(word) { 0.0 } else { rarity(documents, *count) }).collect()
        };
        let full = weigh(n);
        let seen = |(weight, count): (&f32, &u32)| if *count == 0 { UNSEEN * weight } else { *weight };
        let weights: Vec<f32> = full.iter().zip(of_words).map(seen).collect();
        // A common word gains nothing from a rare related word; a name has no related words.
        let heaviest = full.iter().copied().fold(0.0, f32::max);
        let synonym = |(synonym, count): (&Synonym, &u32)| {
            let weight = full.get(synonym.word).filter(|_| !is_name(synonym.word)).copied().unwrap_or(0.0);
            let worth = synonym.likeness * weight.min(rarity(n, *count));
            if worth < LEAST_SYNONYM * heaviest { 0.0 } else { worth }
        };
        let synonyms = question.synonyms().iter().zip(of_related).map(synonym).collect();
        // Assumes that words are independent and count once in a text.
        let variance = weights.iter().zip(of_words).map(|(weight, count)| {
            let share = (*count as f32 / n.max(1.0)).min(1.0);
            weight * weight * share * (1.0 - share)
        });
        let deviation = variance.sum::<f32>().sqrt();
        Self {
            weights,
            worth: weigh(n + MORE_DOCUMENTS),
            full,
            synonyms,
            deviation,
            names_speaker,
            average_length: (statistics.total_length as f32 / n.max(1.0)).max(1.0),
        }
    }

    /// The score of a word that occurs `count` times in a text.
    pub(super) fn term(&self, word: usize, count: u16, length: u32) -> f32 {
        self.weights.get(word).map_or(0.0, |weight| weight * self.saturated(count, length))
    }

    /// Whether a synonym counts at all.
    pub(super) fn counts(&self, synonym: usize) -> bool {
        self.synonyms.get(synonym).is_some_and(|weight| *weight > 0.0)
    }

    /// The score of a synonym in a text, in place of its word.
    pub(super) fn related(&self, synonym: usize, count: u16, length: u32) -> f32 {
        self.synonyms.get(synonym).map_or(0.0, |weight| weight * self.saturated(count, length))
    }

    /// The factor of a word that occurs `count` times in a text.
    pub(super) fn saturated(&self, count: u16, length: u32) -> f32 {
        let count = f32::from(count);
        let relative = length as f32 / self.average_length;
        count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * relative))
    }
}
