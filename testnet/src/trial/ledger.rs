//! The messages of a trial and their acknowledgements, and the check of a history against them. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// One message sent through a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentMessage {
    text: String,
    /// The lane that sent it: messages of one lane keep their order.
    lane: usize,
    acknowledged: bool,
}

/// All messages of a session, each with a unique text.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnLedger {
    messages: Vec<SentMessage>,
}

/// A turn as a client shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) said: String,
    pub(crate) answer: String,
    /// Whether it is in a branch that a fork left.
    pub(crate) is_beside: bool,
}

impl Exchange {
    /// A text in a list without answers and without an order, such as the memory's.
    pub(crate) fn of_list(text: &str) -> Self {
        Self { said: text.to_owned(), answer: echo(text), is_beside: true }
    }
}

/// Violations of the promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LedgerVerdict {
    /// Missing acknowledged messages.
    pub(crate) lost: BTreeSet<String>,
    /// Turns that were never sent, are duplicated, are out of order, or have another turn's answer.
    pub(crate) wrong: BTreeSet<String>,
}

impl LedgerVerdict {
    /// Whether there are no violations.
    pub(crate) fn is_good(&self) -> bool {
        self.lost.is_empty() && self.wrong.is_empty()
    }

    /// Adds the verdict of another check of the same session.
    pub(crate) fn and(&mut self, other: Self) {
        self.lost.extend(other.lost);
        self.wrong.extend(other.wrong);
    }
}

impl TurnLedger {
    /// Records a message before it is sent. Its text must be unique.
    pub(crate) fn say(&mut self, lane: usize, text: &str) {
        self.messages.push(SentMessage { text: text.to_owned(), lane, acknowledged: false });
    }

    /// Records that the client printed its acknowledgement.
    pub(crate) fn acknowledge(&mut self, text: &str) {
        if let Some(message) = self.messages.iter_mut().find(|message| message.text == text) {
            message.acknowledged = true;
        }
    }

    /// The number of acknowledged messages.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.messages.iter().filter(|message| message.acknowledged).count() as u64
    }

    /// The number for the next message.
    pub(crate) fn next_number(&self) -> usize {
        self.messages.len()
    }

    /// Checks a session's history:
    ///
    /// - An acknowledged message is there once, in its lane's order, with its answer.
    /// - An unacknowledged message may be there once.
    /// - No other message is there.
    pub(crate) fn judge(&self, history: &[Exchange]) -> LedgerVerdict {
        let mut verdict = self.count(history);
        for exchange in history {
            if exchange.answer != echo(&exchange.said) {
                let what = format!("{:?} has the answer {:?}", brief(&exchange.said), exchange.answer);
                verdict.wrong.insert(what);
            }
        }
        // A branch has an order of its own.
        let chain = history.iter().enumerate().filter(|(_, exchange)| !exchange.is_beside);
        let places: BTreeMap<&str, usize> =
            chain.map(|(place, exchange)| (exchange.said.as_str(), place)).collect();
        let mut last: BTreeMap<usize, (usize, &str)> = BTreeMap::new();
        for message in self.messages.iter().filter(|message| message.acknowledged) {
            let Some(place) = places.get(message.text.as_str()).copied() else { continue };
            if let Some((before, text)) = last.insert(message.lane, (place, &message.text))
                && before > place
            {
                verdict.wrong.insert(format!("{:?} comes before {:?}", brief(&message.text), brief(text)));
            }
        }
        verdict
    }

    /// The check that each message is there as often as it may be.
    fn count(&self, history: &[Exchange]) -> LedgerVerdict {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for exchange in history {
            *counts.entry(&exchange.said).or_default() += 1;
        }
        let mut verdict = LedgerVerdict::default();
        for message in self.messages.iter().filter(|message| message.acknowledged) {
            if !counts.contains_key(message.text.as_str()) {
                verdict.lost.insert(brief(&message.text).to_owned());
            }
        }
        let said: BTreeSet<&str> = self.messages.iter().map(|message| message.text.as_str()).collect();
        for (text, count) in counts {
            if !said.contains(text) {
                verdict.wrong.insert(format!("nobody said {text:?}"));
            } else if count > 1 {
                verdict.wrong.insert(format!("{:?} is there {count} times", brief(text)));
            }
        }
        verdict
    }
}

/// A message's name: the text before its padding.
fn brief(text: &str) -> &str {
    text.split(':').next().unwrap_or(text)
}

/// The answer of the echo engine.
pub(crate) fn echo(said: &str) -> String {
    format!("echo: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a`, `b` and `d` of one lane and `c` of another; all but `b` acknowledged.
    fn ledger() -> TurnLedger {
        let mut ledger = TurnLedger::default();
        for (lane, text) in [(0, "a"), (0, "b"), (1, "c"), (0, "d")] {
            ledger.say(lane, text);
            if text != "b" {
                ledger.acknowledge(text);
            }
        }
        ledger
    }

    fn history(texts: &[&str]) -> Vec<Exchange> {
        let exchange =
            |text: &&str| Exchange { said: (*text).to_owned(), answer: echo(text), is_beside: false };
        texts.iter().map(exchange).collect()
    }

    #[test]
    fn a_history_with_all_that_was_acknowledged_is_good() {
        assert_eq!(ledger().acknowledged(), 3);
        for texts in [&["a", "b", "c", "d"][..], &["a", "c", "d"], &["c", "a", "d"], &["a", "d", "c", "b"]] {
            assert!(ledger().judge(&history(texts)).is_good(), "{texts:?}");
        }
    }

    #[test]
    fn finds_lost_doubled_unknown_and_unordered_turns() {
        let cases: [(&[&str], &[&str], usize); 5] = [
            (&["a", "b", "c"], &["d"], 0),
            (&[], &["a", "c", "d"], 0),
            (&["a", "a", "c", "d"], &[], 1),
            (&["a", "c", "d", "x"], &[], 1),
            (&["d", "c", "a"], &[], 1),
        ];
        for (texts, lost, wrong) in cases {
            let verdict = ledger().judge(&history(texts));
            let expected: BTreeSet<String> = lost.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!((&verdict.lost, verdict.wrong.len()), (&expected, wrong), "{texts:?}: {verdict:?}");
        }
    }

    #[test]
    fn finds_anothers_answer() {
        let mut turns = history(&["a", "c", "d"]);
        turns[1].answer = echo("a");
        let verdict = ledger().judge(&turns);
        assert_eq!((verdict.lost.len(), verdict.wrong.len()), (0, 1), "{verdict:?}");
    }

    #[test]
    fn two_looks_count_a_lost_turn_once() {
        let mut verdict = ledger().judge(&history(&["a", "c"]));
        verdict.and(ledger().judge(&history(&["a", "c"])));
        verdict.and(ledger().judge(&history(&["a", "d"])));
        assert_eq!(verdict.lost, BTreeSet::from(["c".to_owned(), "d".to_owned()]));
    }

    #[test]
    fn a_list_has_no_order() {
        assert!(ledger().judge(&["d", "c", "a"].map(Exchange::of_list)).is_good());
        let verdict = ledger().judge(&["d", "d", "a"].map(Exchange::of_list));
        assert_eq!((verdict.lost, verdict.wrong.len()), (BTreeSet::from(["c".to_owned()]), 1));
    }
}
