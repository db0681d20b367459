//! From evidence to a score that can say "no match".
//!
//! Evidence is measured in standard deviations of what chance gives *in this memory*, which orders items well but says
//! nothing of whether the best of them is any good: some item is always best. So an item is compared with one that does not
//! exist: one that has a fixed share of the weight of the question's words, those that this memory has never seen among
//! them, and that is a fixed step more similar than unrelated texts are. That item has the score 0.5.
//!
//! That bar is for items. A second one is for the question: where none of the best items is about what it asks, nothing is
//! an answer, whoever said it and however long it is.

use super::{Background, Candidate, Candidates};

/// Share of the weight of the question's words that the item at the bar has.
const WORDS_AT_BAR: f32 = 0.4;
/// Deviations of unrelated texts by which it is more similar than those.
const MEANING_AT_BAR: f32 = 2.5;
/// Deviations from the bar to a score of 0.73, or 0.27.
const STEP: f32 = 2.0;
/// Share of the weight of the question's words, those that this memory has never seen among them in full, that an item has to
/// say itself or beside its neighbours.
const ABOUT_IT: f32 = 0.4;
/// The same with an embedder, where similarity adds to it, …
const ABOUT_IT_WITH_MEANING: f32 = 0.45;
/// … so that so many deviations of unrelated texts, beyond the most similar of those in a memory of this size, count as much as
/// all words.
const MEANING_OF_ALL_WORDS: f32 = 10.0;
/// How many items of the memory the background counts for: so few say little about their mean.
const BACKGROUND_ITEMS: f32 = 16.0;
/// Least deviation of BM25: that of one common word. A question of rare words alone would make any of them a certainty.
const LEAST_DEVIATION: f32 = 0.5;

/// Whether an item that says a share of the question, with its neighbours, is about what is asked.
pub(super) fn is_about(share: f32, row: &Candidate, candidates: &Candidates, background: Background) -> bool {
    row.cosine.map_or(share >= ABOUT_IT, |cosine| {
        let beyond = (cosine - background.mean) / background.deviation - by_chance(candidates.with_vector);
        share + beyond / MEANING_OF_ALL_WORDS >= ABOUT_IT_WITH_MEANING || beyond >= MEANING_AT_BAR
    })
}

/// Deviations of the greatest of so many numbers that fall normally: the more unrelated texts there are, the more similar is
/// the most similar of them.
#[expect(clippy::cast_precision_loss, reason = "a count of items, as a logarithm")]
fn by_chance(items: u64) -> f32 {
    (2.0 * (items.max(1) as f32).ln()).sqrt()
}

/// Evidence in standard deviations of what chance gives in this memory.
pub(super) struct Measure {
    words_deviation: f32,
    mean: f32,
    deviation: f32,
}

impl Measure {
    pub(super) fn new(candidates: &Candidates, background: Background) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a count of items, as a weight")]
        let items = candidates.with_vector as f32;
        let mix =
            |own: f32, typical: f32| (items * own + BACKGROUND_ITEMS * typical) / (items + BACKGROUND_ITEMS);
        let variance = mix(candidates.cosine_deviation.powi(2), background.deviation.powi(2));
        Self {
            words_deviation: candidates.lexical_deviation.max(LEAST_DEVIATION),
            mean: mix(candidates.cosine_mean, background.mean),
            deviation: variance.sqrt().max(0.01),
        }
    }

    /// Of BM25.
    pub(super) fn words(&self, lexical: f32) -> f32 {
        lexical / self.words_deviation
    }

    /// Of a candidate's cosine; 0 without one.
    pub(super) fn meaning(&self, row: &Candidate) -> f32 {
        row.cosine.map_or(0.0, |cosine| (cosine - self.mean) / self.deviation)
    }
}

/// The evidence of the item that has the score 0.5.
pub(super) struct Bar(f32);

impl Bar {
    /// `usual` is what any sensible text has besides words and meaning.
    pub(super) fn new(
        candidates: &Candidates,
        measure: &Measure,
        background: Background,
        usual: f32,
    ) -> Self {
        let words = measure.words(WORDS_AT_BAR * candidates.weight_of(u64::MAX));
        let meaning = if candidates.with_vector > 0 {
            (background.mean + MEANING_AT_BAR * background.deviation - measure.mean) / measure.deviation
        } else {
            0.0
        };
        Self(words + meaning + usual)
    }

    /// 0 to 1.
    pub(super) fn score(&self, sum: f32) -> f32 {
        1.0 / (1.0 + (-(sum - self.0) / STEP).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_the_larger_a_memory_the_more_similar_an_answer_has_to_be() {
        let background = Background { mean: 0.1, deviation: 0.1 };
        let about = |items: u64, share: f32, cosine: Option<f32>| {
            let candidates = Candidates { with_vector: items, ..Candidates::default() };
            let row = Candidate {
                number: 0,
                lexical: 0.0,
                cosine,
                words: 0,
                length: 9,
                cues: 0,
                speaker_named: false,
                list: super::super::candidates::NOTHING,
            };
            is_about(share, &row, &candidates, background)
        };
        for (items, share, cosine, expected) in [
            (0, 0.41, None, true),
            (0, 0.39, None, false),
            (1, 0.0, Some(0.36), true),
            (500, 0.0, Some(0.36), false),
            (500, 0.0, Some(0.71), true),
            (500, 0.4, Some(0.4), false),
            (500, 0.4, Some(0.51), true),
            (100_000, 0.4, Some(0.51), false),
            (100_000, 1.0, Some(0.1), true),
            (100_000, 0.4, Some(f32::NAN), false),
        ] {
            assert_eq!(about(items, share, cosine), expected, "{items} {share} {cosine:?}");
        }
    }
}
