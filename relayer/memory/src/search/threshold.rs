//! Turns evidence into a score that can say "no match".
//!
//! Evidence is measured in standard deviations of chance *in this memory*. That orders items well, but some
//! item is always best, even if it is bad. So each item is scored against a reference item, which has the
//! score 0.5. The reference covers a fixed share of the weight of the question's words, including words that
//! this memory has never seen. It is also a fixed step more similar than unrelated texts.
//!
//! A second threshold is for the question. If none of the best items is about its subject, there is no
//! answer, whatever their speakers and lengths.

use super::{Background, CandidateRow, Candidates, candidates::CosineStatistics};

/// Share of the weight of the question's words that the reference item covers.
const REFERENCE_WORDS: f32 = 0.4;
/// Deviations by which the reference item is more similar than unrelated texts.
const REFERENCE_MEANING: f32 = 2.5;
/// Deviations from the reference item to a score of 0.73, or 0.27.
const STEP: f32 = 2.0;
/// Share of the weight of the question's words that an item must contain itself or in its neighbours. Unseen
/// words have their full weight.
const ABOUT_IT: f32 = 0.4;
/// The same share with an embedder, where similarity adds to it.
const ABOUT_IT_WITH_MEANING: f32 = 0.45;
/// Deviations that count as much as all words: those of unrelated texts, beyond the most similar one in a
/// memory of this size.
const MEANING_OF_ALL_WORDS: f32 = 10.0;
/// Weight of the background, as a count of items: fewer items say little about their mean.
const BACKGROUND_ITEMS: f32 = 16.0;
/// Least deviation of BM25: that of one common word. Otherwise a question of rare words alone would make each
/// of them a certainty.
const LEAST_DEVIATION: f32 = 0.5;

/// Whether an item that covers a share of the question, with its neighbours, is about its subject.
pub(super) fn is_about(
    share: f32,
    row: &CandidateRow,
    candidates: &Candidates,
    background: Background,
) -> bool {
    row.cosine.map_or(share >= ABOUT_IT, |cosine| {
        let beyond = (cosine - background.mean) / background.deviation - by_chance(candidates.cosines.count);
        share + beyond / MEANING_OF_ALL_WORDS >= ABOUT_IT_WITH_MEANING || beyond >= REFERENCE_MEANING
    })
}

/// Expected maximum of normally distributed deviations: the more unrelated texts there are, the more similar
/// is the most similar one.
#[expect(clippy::cast_precision_loss, reason = "a count of items, as a logarithm")]
fn by_chance(items: u64) -> f32 {
    (2.0 * (items.max(1) as f32).ln()).sqrt()
}

/// Evidence in standard deviations of chance in this memory.
pub(super) struct Measure {
    words_deviation: f32,
    mean: f32,
    deviation: f32,
}

impl Measure {
    pub(super) fn new(lexical_deviation: f32, cosines: &CosineStatistics, background: Background) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a count of items, as a weight")]
        let items = cosines.count as f32;
        let mix =
            |own: f32, typical: f32| (items * own + BACKGROUND_ITEMS * typical) / (items + BACKGROUND_ITEMS);
        let variance = mix(cosines.deviation.powi(2), background.deviation.powi(2));
        Self {
            words_deviation: lexical_deviation.max(LEAST_DEVIATION),
            mean: mix(cosines.mean, background.mean),
            deviation: variance.sqrt().max(0.01),
        }
    }

    /// The evidence of BM25.
    pub(super) fn words(&self, lexical: f32) -> f32 {
        lexical / self.words_deviation
    }

    /// The evidence of a cosine; 0 without one.
    pub(super) fn meaning(&self, cosine: Option<f32>) -> f32 {
        cosine.map_or(0.0, |cosine| (cosine - self.mean) / self.deviation)
    }
}

/// The evidence of the reference item, which has the score 0.5.
pub(super) struct ReferenceEvidence(f32);

impl ReferenceEvidence {
    /// `usual` is the evidence of any sensible text besides words and meaning.
    pub(super) fn new(
        candidates: &Candidates,
        measure: &Measure,
        background: Background,
        usual: f32,
    ) -> Self {
        let words = measure.words(REFERENCE_WORDS * candidates.weight_of(u64::MAX));
        let meaning = if candidates.cosines.count > 0 {
            (background.mean + REFERENCE_MEANING * background.deviation - measure.mean) / measure.deviation
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
            let cosines = CosineStatistics { count: items, ..CosineStatistics::default() };
            let candidates = Candidates { cosines, ..Candidates::default() };
            let row = CandidateRow {
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
