//! The only ranking. A score adds up the evidence of words and meaning, each in standard deviations of
//! chance. Added to it are shares of the messages before and after, and properties of good and bad answers.
//!
//! All constants are round numbers set by hand, in standard deviations: a weight of 1 means "as much as one
//! deviation more of similarity". None was fitted to a collection of questions; docs/MEMORY.md shows their
//! effect on one.

use std::collections::HashSet;

use crate::{dates::DAY_MS, model::Kind};

use super::{
    CandidateRow, Candidates, Question,
    candidates::{NOTHING, WORDS},
    features::Cue,
    threshold::{Measure, ReferenceEvidence, is_about},
};

/// Properties of items that the ranking needs besides the scan. They come from the owner's state.
pub trait Documents {
    /// The messages before and after in the same conversation, if the caller may see them.
    fn neighbours(&self, number: u64) -> [Option<u64>; 2];
    /// When it was said, in milliseconds since the Unix epoch.
    fn time_ms(&self, number: u64) -> u64;
    /// Its kind.
    fn kind(&self, number: u64) -> Kind;
    /// Its worth, 0 to 1.
    fn salience(&self, number: u64) -> f32;
}

/// An item with its score in the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedItem {
    /// The item.
    pub number: u64,
    /// 0 to 1; the order of the items. 0.5 means that the item is barely related to the question.
    pub score: f32,
    /// Cosine similarity with the question, where both have vectors.
    pub similarity: Option<f32>,
}

/// Weights of a caller for the score, relative to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Weight of the relevance from [`rank`].
    pub semantic: f32,
    /// Weight of recency, which halves every half-life.
    pub recency: f32,
    /// The half-life in days.
    pub recency_half_life_days: f32,
    /// Weight of salience.
    pub importance: f32,
}

impl Default for Weights {
    /// Relevance alone.
    fn default() -> Self {
        Self { semantic: 1.0, recency: 0.0, recency_half_life_days: 30.0, importance: 0.0 }
    }
}

/// Score below which an item is usually unrelated to the question. See [`RankedItem::score`].
pub const DEFAULT_THRESHOLD: f32 = 0.5;

/// Candidates that are ranked in detail, besides their neighbours: far more than an answer has.
const SHORTLIST: usize = 400;

/// Weight of a word that is missing here but is in the message before: an answer often omits the words of its
/// question.
const WORD_BEFORE: f32 = 0.75;
/// The same for the message after.
const WORD_AFTER: f32 = 0.5;
/// Extra weight of its words if the message before ends with a question: then this message is the answer.
const WORD_ASKED: f32 = 0.5;
/// Weight of the similarity of the message before or after; a question before counts twice.
const MEANING_NEAR: f32 = 0.25;
/// Bonus for the speaker whom the question names: a person mostly talks about themselves.
pub(super) const BY_THE_NAMED: f32 = 4.0;
/// Bonus for a speaker who talks about themselves.
const OWN: f32 = 1.0;
/// Penalty for a text that ends with a question; doubled if the text only asks.
const ASKS: f32 = -1.0;
/// Bonus for a stated time, if the question asks when: an answer needs one.
const SAYS_WHEN: f32 = 3.0;
/// Bonus of the newest of the shortlist over the oldest, if the question asks for the newest.
const NEWEST: f32 = 2.0;
/// Words of a full text; more words add nothing. Facts and summaries count as this long.
const FULL_LENGTH: u32 = 24;

/// Ranks the results of a scan with the caller's weights, best first, at most `limit`.
#[must_use]
pub fn rank(
    question: &Question,
    candidates: &Candidates,
    documents: &dyn Documents,
    weights: &Weights,
    limit: usize,
) -> Vec<RankedItem> {
    let evidence = Evidence::new(question, candidates, documents);
    let shortlist = evidence.shortlist(SHORTLIST.max(limit.saturating_mul(2)));
    // An answer may share no word with its question, the message before.
    let mut seen: HashSet<u64> = shortlist.iter().map(|row| row.number).collect();
    let near = shortlist.iter().flat_map(|row| documents.neighbours(row.number)).flatten();
    let near: Vec<&CandidateRow> =
        near.filter(|number| seen.insert(*number)).filter_map(|number| candidates.get(number)).collect();
    let rows: Vec<&CandidateRow> = shortlist.into_iter().chain(near).collect();
    let newest = Newest::of(question, &rows, documents);

    let mut found: Vec<ScoredRow<'_>> = rows
        .into_iter()
        .map(|row| {
            let ContextScore { mut sum, matches } = evidence.together(row);
            sum += newest.bonus(row.number, documents);
            let says_it_all = evidence.says_it_all(row);
            let mut relevance = evidence.reference.score(sum);
            if says_it_all {
                relevance = relevance.max(DEFAULT_THRESHOLD);
            }
            ScoredRow { row, relevance, matches: matches || says_it_all }
        })
        .collect();
    found.sort_unstable_by(|a, b| b.relevance.total_cmp(&a.relevance).then(b.row.number.cmp(&a.row.number)));
    // If none of the best items covers enough of the question, all items are below the threshold.
    let answered = found.iter().take(BEST).any(|found| found.matches);
    let mut ranked: Vec<RankedItem> = found
        .into_iter()
        .map(|ScoredRow { row, relevance, .. }| {
            let relevance = if answered { relevance } else { relevance * DEFAULT_THRESHOLD };
            let score = blend(relevance, row.number, question, documents, weights);
            RankedItem { number: row.number, score, similarity: row.cosine }
        })
        .collect();
    ranked.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(b.number.cmp(&a.number)));
    ranked.truncate(limit);
    ranked
}

/// Words of a typical question. For a longer message, an answer must cover a share of this many words, the
/// weightiest ones.
const WORDS_OF_A_QUESTION: usize = 8;

/// Best items, as many as an answer has; at least one must match.
const BEST: usize = 10;

/// An item while it is ranked.
struct ScoredRow<'a> {
    row: &'a CandidateRow,
    relevance: f32,
    matches: bool,
}

/// The evidence of an item with the messages before and after.
struct ContextScore {
    /// The evidence.
    sum: f32,
    /// Whether it covers enough of the question to be an answer.
    matches: bool,
}

/// Share of the weight of a question's words that counts as nearly all.
const NEARLY_ALL: f32 = 0.75;

/// Measures candidates against chance.
struct Evidence<'a> {
    question: &'a Question,
    candidates: &'a Candidates,
    documents: &'a dyn Documents,
    measure: Measure,
    reference: ReferenceEvidence,
    /// Total weight of the words that an answer must partly cover.
    worth: f32,
}

impl<'a> Evidence<'a> {
    fn new(question: &'a Question, candidates: &'a Candidates, documents: &'a dyn Documents) -> Self {
        let measure = Measure::new(candidates.lexical_deviation, &candidates.cosines, question.background);
        // The properties of any sensible text: the speaker talks about themselves, is named in the question,
        // and says enough.
        let usual =
            OWN + length_prior(FULL_LENGTH / 2) + if candidates.names_speaker { BY_THE_NAMED } else { 0.0 };
        let reference = ReferenceEvidence::new(candidates, &measure, question.background, usual);
        let mut worth = candidates.worth.clone();
        worth.sort_unstable_by(|a, b| b.total_cmp(a));
        let worth = worth.iter().take(WORDS_OF_A_QUESTION).sum();
        Self { question, candidates, documents, measure, reference, worth }
    }

    /// The candidates with most evidence of their own, in no order. It reads every candidate, so it calls no
    /// method of `documents`.
    fn shortlist(&self, room: usize) -> Vec<&'a CandidateRow> {
        let rows = &self.candidates.rows;
        let mut order: Vec<(f32, u32)> = (0_u32..).zip(rows).map(|(at, row)| (self.alone(row), at)).collect();
        if order.len() > room {
            order.select_nth_unstable_by(room, |a, b| b.0.total_cmp(&a.0));
            order.truncate(room);
        }
        order.into_iter().filter_map(|(_, at)| rows.get(at as usize)).collect()
    }

    /// A candidate's evidence without its neighbours, kind and length.
    fn alone(&self, row: &CandidateRow) -> f32 {
        let mut sum = self.measure.words(row.lexical) + self.measure.meaning(row.cosine);
        if self.candidates.names_speaker && row.speaker_named {
            sum += BY_THE_NAMED;
        }
        sum
    }

    /// Whether it has nearly all words of the question, or the only one. Then it is about the same subject,
    /// even if chance is high in a small memory, and if the embedder knows the words in another spelling alone.
    fn says_it_all(&self, row: &CandidateRow) -> bool {
        let (own, all) = (self.candidates.weight_of(row.words), self.candidates.weight_of(u64::MAX));
        row.words != 0 && own >= NEARLY_ALL * all
    }

    /// A candidate's evidence with the messages before and after.
    fn together(&self, row: &CandidateRow) -> ContextScore {
        let [before, after] =
            self.documents.neighbours(row.number).map(|number| self.candidates.get(number?));
        let asked = before.is_some_and(|row| row.cues & Cue::EndsAsking.bit() != 0);
        let has = |row: Option<&CandidateRow>| self.candidates.shares.of(row.map_or(NOTHING, |row| row.list));
        let (own, before_has, after_has) = (has(Some(row)), has(before), has(after));
        // For each word: the part that is missing here and stands in a neighbour. A repeated word counts
        // once.
        let (mut near, mut answers, mut covered) = (0.0, 0.0, 0.0);
        for word in 0..self.candidates.weights.len().min(WORDS) {
            let beside = |weight: f32| {
                let said = own[word].min(weight);
                let missing = |there: &[f32; WORDS]| (there[word].min(weight) - said).max(0.0);
                (said, WORD_BEFORE * missing(&before_has), WORD_AFTER * missing(&after_has))
            };
            let (_, earlier, later) = beside(self.candidates.weights[word]);
            near += earlier.max(later);
            answers += if asked { WORD_ASKED * earlier } else { 0.0 };
            let full = self.candidates.full_weights[word];
            if full > 0.0 {
                let (said, earlier, later) = beside(full);
                covered += (said + earlier.max(later)) / full * self.candidates.worth[word];
            }
        }
        let meaning =
            |row: Option<&CandidateRow>| row.map_or(0.0, |row| self.measure.meaning(row.cosine).max(0.0));
        let question_before = if asked { meaning(before) } else { 0.0 };
        let sum = self.measure.words(row.lexical + near + answers)
            + self.measure.meaning(row.cosine)
            + MEANING_NEAR * (meaning(before) + meaning(after) + question_before)
            + self.prior(row);
        let share = covered / self.worth.max(f32::MIN_POSITIVE);
        ContextScore { sum, matches: is_about(share, row, self.candidates, self.question.background) }
    }

    /// Properties that make it a better or worse answer to any question.
    fn prior(&self, row: &CandidateRow) -> f32 {
        let has = |cue: Cue| row.cues & cue.bit() != 0;
        let told = matches!(self.documents.kind(row.number), Kind::Fact | Kind::Summary);
        let mut sum = length_prior(if told { FULL_LENGTH } else { row.length });
        if self.candidates.names_speaker && row.speaker_named {
            sum += BY_THE_NAMED;
        }
        if told || has(Cue::Own) {
            sum += OWN;
        }
        for cue in [Cue::EndsAsking, Cue::OnlyAsks] {
            if has(cue) {
                sum += ASKS;
            }
        }
        if self.question.asks_when && has(Cue::When) {
            sum += SAYS_WHEN;
        }
        sum
    }
}

/// Longer texts say more; each word adds less than the one before.
#[expect(clippy::cast_precision_loss, reason = "at most the full length")]
fn length_prior(length: u32) -> f32 {
    (1.0 + length.min(FULL_LENGTH) as f32).ln()
}

/// Recency, if the question asks for it.
struct Newest {
    from_ms: u64,
    span_ms: u64,
}

impl Newest {
    fn of(question: &Question, rows: &[&CandidateRow], documents: &dyn Documents) -> Self {
        if !question.asks_latest {
            return Self { from_ms: 0, span_ms: 0 };
        }
        let times = || rows.iter().map(|row| documents.time_ms(row.number));
        let (from_ms, to_ms) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        Self { from_ms, span_ms: to_ms - from_ms }
    }

    #[expect(clippy::cast_precision_loss, reason = "a share of a span of time")]
    fn bonus(&self, number: u64, documents: &dyn Documents) -> f32 {
        if self.span_ms == 0 {
            return 0.0;
        }
        NEWEST * documents.time_ms(number).saturating_sub(self.from_ms) as f32 / self.span_ms as f32
    }
}

/// Applies the caller's weights.
fn blend(
    relevance: f32,
    number: u64,
    question: &Question,
    documents: &dyn Documents,
    weights: &Weights,
) -> f32 {
    let positive = |weight: f32| if weight.is_finite() { weight.max(0.0) } else { 0.0 };
    let (semantic, recency, importance) =
        (positive(weights.semantic), positive(weights.recency), positive(weights.importance));
    let all = semantic + recency + importance;
    if recency + importance == 0.0 || !all.is_finite() {
        return relevance;
    }
    let fresh = freshness(documents.time_ms(number), question.now_ms, weights.recency_half_life_days);
    let worth = documents.salience(number).clamp(0.0, 1.0);
    (semantic * relevance + recency * fresh + importance * worth) / all
}

/// 1 for now, half after each half-life.
#[expect(clippy::cast_precision_loss, reason = "an age in days needs no more than 24 bits")]
fn freshness(time_ms: u64, now_ms: u64, half_life_days: f32) -> f32 {
    let days = now_ms.saturating_sub(time_ms) as f32 / DAY_MS as f32;
    let half_life = if half_life_days.is_finite() { half_life_days.max(0.01) } else { 30.0 };
    0.5_f32.powf(days / half_life)
}

#[cfg(test)]
mod tests;
