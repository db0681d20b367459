//! Standard measures of retrieval.

use std::collections::BTreeMap;

use serde::Serialize;

/// The results of an evaluation, for each embedder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    /// One result for each embedder, and one without any (`bm25`).
    pub(super) configs: Vec<ConfigReport>,
}

/// The results with one embedder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ConfigReport {
    /// Its id.
    pub(super) embedder: String,
    /// Over all questions.
    #[serde(flatten)]
    pub(super) all: Measures,
    /// By category of question.
    pub(super) by_category: BTreeMap<String, Measures>,
    /// The quality of "no match" by threshold, ascending; the first is the default.
    pub(super) no_match: Vec<NoMatch>,
}

/// Means over questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Measures {
    /// Their number.
    pub(super) questions: u64,
    /// Share of the evidence among the first five.
    pub(super) r_at_5: f64,
    /// Among the first ten.
    pub(super) r_at_10: f64,
    /// Among the first twenty.
    pub(super) r_at_20: f64,
    /// One over the rank of the first evidence.
    pub(super) mrr: f64,
    /// Normalised discounted cumulative gain of the first ten (Järvelin and Kekäläinen, 2002); each piece of
    /// evidence counts one.
    pub(super) ndcg_at_10: f64,
}

/// How often a threshold left a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct NoMatch {
    /// The score.
    pub(super) threshold: f64,
    /// Share of answerable questions with a match.
    pub(super) answered: f64,
    /// Share of the evidence among the first ten that is above the threshold.
    pub(super) kept_at_10: f64,
    /// Share of questions about another dialogue with a match.
    pub(super) answered_elsewhere: f64,
    /// Share of unrelated questions with a match.
    pub(super) answered_unrelated: f64,
}

/// Sums over questions, and their means.
#[derive(Default)]
pub(super) struct Sums {
    all: Measures,
    by_category: BTreeMap<String, Measures>,
}

impl Sums {
    /// Adds a question: its category, the number of its pieces of evidence, and the ranks of the found ones,
    /// from 0.
    pub(super) fn add(&mut self, category: u64, evidence: usize, ranks: &[usize]) {
        let one = Measures::of(evidence, ranks);
        self.all.add(&one);
        self.by_category.entry(category.to_string()).or_default().add(&one);
    }

    pub(super) fn report(self, embedder: &str, no_match: Vec<NoMatch>) -> ConfigReport {
        let by_category =
            self.by_category.into_iter().map(|(category, sums)| (category, sums.mean())).collect();
        ConfigReport { embedder: embedder.to_owned(), all: self.all.mean(), by_category, no_match }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of questions and ranks")]
impl Measures {
    fn of(evidence: usize, ranks: &[usize]) -> Self {
        let share =
            |limit: usize| ranks.iter().filter(|rank| **rank < limit).count() as f64 / evidence.max(1) as f64;
        let gain = |rank: usize| 1.0 / (rank as f64 + 2.0).log2();
        let ideal: f64 = (0..evidence.clamp(1, 10)).map(gain).sum();
        Self {
            questions: 1,
            r_at_5: share(5),
            r_at_10: share(10),
            r_at_20: share(20),
            mrr: ranks.iter().min().map_or(0.0, |rank| 1.0 / (*rank as f64 + 1.0)),
            ndcg_at_10: ranks.iter().filter(|rank| **rank < 10).map(|rank| gain(*rank)).sum::<f64>() / ideal,
        }
    }

    fn add(&mut self, other: &Self) {
        self.questions += other.questions;
        self.r_at_5 += other.r_at_5;
        self.r_at_10 += other.r_at_10;
        self.r_at_20 += other.r_at_20;
        self.mrr += other.mrr;
        self.ndcg_at_10 += other.ndcg_at_10;
    }

    fn mean(&self) -> Self {
        // Four digits: there are a few thousand questions.
        let mean = |sum: f64| (sum / self.questions.max(1) as f64 * 10_000.0).round() / 10_000.0;
        Self {
            questions: self.questions,
            r_at_5: mean(self.r_at_5),
            r_at_10: mean(self.r_at_10),
            r_at_20: mean(self.r_at_20),
            mrr: mean(self.mrr),
            ndcg_at_10: mean(self.ndcg_at_10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_those_of_the_textbook() {
        let mut sums = Sums::default();
        sums.add(1, 2, &[0, 7]);
        sums.add(4, 1, &[]);
        let told = NoMatch { threshold: 0.5, answered: 1.0, ..NoMatch::default() };
        let report = sums.report("x", vec![told]);
        assert_eq!(report.all.questions, 2);
        assert_eq!((report.all.r_at_5, report.all.r_at_10, report.all.r_at_20), (0.25, 0.5, 0.5));
        assert_eq!(
            (report.all.mrr, report.by_category["1"].mrr, report.by_category["4"].mrr),
            (0.5, 1.0, 0.0)
        );
        let ideal = 1.0 + 1.0 / 3.0_f64.log2();
        let expected = (1.0 + 1.0 / 9.0_f64.log2()) / ideal;
        assert!((report.by_category["1"].ndcg_at_10 - expected).abs() < 1e-4);
        let line = serde_json::to_value(Report { configs: vec![report] }).unwrap();
        let config = &line["configs"][0];
        for field in ["embedder", "r_at_5", "r_at_10", "r_at_20", "mrr", "ndcg_at_10", "by_category"] {
            assert!(config.get(field).is_some(), "{field}");
        }
        assert_eq!(config["no_match"][0]["answered"], 1.0);
    }
}
