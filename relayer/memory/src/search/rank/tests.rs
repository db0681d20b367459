//! The ranking over an index, as the service uses it.

use baton_models::embed::RelatedWord;

use super::*;
use crate::search::{Background, Index, QuantisedVector, TermHasher, document_features};

const DAY: u64 = 86_400_000;
const BEGIN: u64 = 1_683_504_000_000;

struct Talk {
    index: Index,
    hasher: TermHasher,
    kinds: Vec<Kind>,
}

impl Documents for Talk {
    fn neighbours(&self, number: u64) -> [Option<u64>; 2] {
        let there = |number: u64| (number < self.kinds.len() as u64).then_some(number);
        [number.checked_sub(1).and_then(there), there(number + 1)]
    }
    fn time_ms(&self, number: u64) -> u64 {
        BEGIN + number * DAY
    }
    fn kind(&self, number: u64) -> Kind {
        self.kinds[usize::try_from(number).unwrap()]
    }
    fn salience(&self, number: u64) -> f32 {
        if number == 1 { 1.0 } else { 0.0 }
    }
}

impl Talk {
    fn new(turns: &[(&str, &str)]) -> Self {
        let hasher = TermHasher::new([3; 32]);
        let mut index = Index::new(2);
        for (number, (speaker, text)) in (0..).zip(turns) {
            index.insert(number, document_features(text, speaker, BEGIN + number * DAY, &hasher));
        }
        Self { index, hasher, kinds: vec![Kind::Episode; turns.len()] }
    }

    fn ask(&self, text: &str) -> Vec<RankedItem> {
        self.ask_among(text, &|_| true, &Weights::default())
    }

    fn ask_among(&self, text: &str, allowed: &dyn Fn(u64) -> bool, weights: &Weights) -> Vec<RankedItem> {
        let question = Question::parse(text, &self.hasher, BEGIN + 30 * DAY);
        rank(&question, &self.index.scan(&question, allowed), self, weights, 10)
    }
}

fn numbers(ranked: &[RankedItem]) -> Vec<u64> {
    ranked.iter().map(|ranked| ranked.number).collect()
}

fn talk() -> Talk {
    Talk::new(&[
        ("user", "I adopted a grey cat from the shelter in Lisbon."),
        ("assistant", "That is lovely, cats are wonderful company!"),
        ("user", "What should I cook for dinner tonight?"),
        ("assistant", "Perhaps a mushroom risotto with parsley."),
        ("user", "My sister Ana works as a nurse at the harbour hospital."),
        ("assistant", "Nurses do important work."),
        ("user", "I am allergic to hazelnuts, so no pralines for me."),
        ("assistant", "Noted, no hazelnuts."),
    ])
}

#[test]
fn the_one_who_is_asked_about_is_the_one_who_told() {
    let talk = talk();
    assert_eq!(numbers(&talk.ask("What am I allergic to? Hazelnuts?"))[0], 6);
    assert_eq!(numbers(&talk.ask("What does my sister do for work?"))[0], 4);
    assert_eq!(numbers(&talk.ask("Which risotto did you propose?"))[0], 3);
}

#[test]
fn no_match_is_an_answer() {
    let talk = talk();
    for about in [
        "Which animal did I adopt from the shelter?",
        "Where does my sister Ana work?",
        "Can I have hazelnuts?",
    ] {
        assert!(talk.ask(about)[0].score >= DEFAULT_THRESHOLD, "{about}: {:?}", talk.ask(about));
    }
    for nothing in [
        "What is the boiling point of ethanol?",
        "Reverse a linked list in Python, please",
        "hello",
        "Thanks a lot!",
        "",
        "the of and",
    ] {
        assert!(talk.ask(nothing).iter().all(|ranked| ranked.score < DEFAULT_THRESHOLD), "{nothing}");
    }
}

#[test]
fn an_answer_is_found_by_the_question_before_it() {
    let talk = Talk::new(&[
        ("Ana", "I went hiking in the dunes and saw a heron."),
        ("Ana", "Which instrument did you choose for the school orchestra?"),
        ("Ben", "I took the cello, my teacher says it suits me."),
        ("Ana", "The garden needs water, it was a dry summer."),
    ]);
    assert_eq!(numbers(&talk.ask("Which instrument did Ben choose?"))[0], 2);
}

#[test]
fn b11_what_is_not_allowed_is_neither_found_nor_counted() {
    let talk = talk();
    let only = talk.ask_among("cat from the shelter", &|number| number > 1, &Weights::default());
    assert!(!numbers(&only).contains(&0) && !numbers(&only).contains(&1));
    // The scores equal those of a memory without the other items.
    let mut other = super::tests::talk();
    assert!(other.index.remove(0) && other.index.remove(1));
    assert_eq!(only, other.ask("cat from the shelter"));
    assert_eq!(talk.ask_among("cat", &|_| false, &Weights::default()), []);
}

#[test]
fn recency_counts_only_where_the_question_asks_for_it() {
    let mut turns = vec![("user", "I moved to a flat in Porto near the river."); 2];
    turns.extend([("assistant", "Good to know."); 4]);
    turns.push(("user", "I moved to a flat in Porto near the river."));
    let talk = Talk::new(&turns);
    let latest = talk.ask("What is my current flat in Porto?");
    assert_eq!(latest[0].number, 6);
    assert!(latest[0].score > latest[1].score);
}

#[test]
fn c9_relevance_recency_and_worth_blend_as_the_caller_weighs_them() {
    let talk = Talk::new(&[
        ("user", "My bicycle is red and has a bell."),
        ("user", "My bicycle is red and has a bell."),
        ("user", "My bicycle is red and has a bell."),
    ]);
    let best = |weights: Weights| talk.ask_among("red bicycle", &|_| true, &weights)[0];
    assert_eq!(best(Weights { recency: 1.0, ..Weights::default() }).number, 2);
    assert_eq!(best(Weights { importance: 1.0, ..Weights::default() }).number, 1);
    for weights in [
        Weights { semantic: f32::NAN, recency: f32::INFINITY, recency_half_life_days: 0.0, importance: -1.0 },
        Weights { semantic: 0.0, recency: 0.0, recency_half_life_days: f32::NAN, importance: 0.0 },
        Weights { semantic: f32::MAX, recency: f32::MAX, recency_half_life_days: -1.0, importance: f32::MAX },
    ] {
        assert!((0.0..=1.0).contains(&best(weights).score));
    }
}

#[test]
fn d5_meaning_finds_what_no_word_does() {
    let mut talk = talk();
    let background = Background { mean: 0.0, deviation: 0.1 };
    for number in 0..8 {
        let vector = if number == 3 { [1.0, 0.0] } else { [0.0, 1.0] };
        talk.index.set_vector(number, Some(QuantisedVector::from_unit(&vector)));
    }
    let question =
        Question::parse("Italian rice dish", &talk.hasher, BEGIN).with_vector(&[1.0, 0.0], background);
    let ranked = rank(&question, &talk.index.scan(&question, &|_| true), &talk, &Weights::default(), 3);
    assert_eq!(ranked[0].number, 3);
    assert!(ranked[0].similarity.unwrap() > 0.99 && ranked[0].score > ranked[1].score);
    assert_eq!(ranked.len(), 3);
    // Another embedder's vectors do not count.
    let other = Question::parse("rice", &talk.hasher, BEGIN).with_vector(&[1.0, 0.0, 0.0], background);
    assert!(talk.index.scan(&other, &|_| true).rows().is_empty());
}

#[test]
fn f7_a_question_about_something_else_has_no_match_however_good_the_best_is() {
    let talk = talk();
    // A name says nothing about the subject, and one word of several is no answer.
    for nothing in [
        "Which instrument does my sister Ana study at the conservatory in Vienna?",
        "How much does the harbour ferry to the islands cost in winter?",
    ] {
        let ranked = talk.ask(nothing);
        assert!(
            !ranked.is_empty() && ranked.iter().all(|ranked| ranked.score < DEFAULT_THRESHOLD),
            "{nothing}"
        );
    }
    // A caller that wants these items still gets them in the same order.
    let ranked = talk.ask("Which instrument does my sister Ana study at the conservatory in Vienna?");
    assert_eq!(numbers(&ranked)[0], 4);
}

#[test]
fn f7_a_memory_of_one_item_answers_what_it_says() {
    let talk = Talk::new(&[("user", "The anchor weighs forty kilograms.")]);
    assert!(talk.ask("How much does the anchor weigh?")[0].score >= DEFAULT_THRESHOLD);
    assert!(talk.ask("Where is the lighthouse?").iter().all(|ranked| ranked.score < DEFAULT_THRESHOLD));
}

#[test]
fn what_is_said_in_another_word_is_found_by_what_is_related() {
    let mut talk = talk();
    let text = "Did I take a boat?";
    let words = Question::words_sought(text);
    assert_eq!(words, ["take", "boat"]);
    let more = [(8, "We paddled our canoe over."), (9, "We paddled our boat over.")];
    let ask = |talk: &Talk, related: &[&str]| {
        let named =
            related.iter().map(|word| RelatedWord { word: (*word).to_owned(), likeness: 0.8 }).collect();
        let question =
            Question::parse(text, &talk.hasher, BEGIN).with_related(&words, &[vec![], named], &talk.hasher);
        numbers(&rank(&question, &talk.index.scan(&question, &|_| true), talk, &Weights::default(), 3))
    };
    for (number, told) in more {
        talk.index.insert(number, document_features(told, "user", BEGIN, &talk.hasher));
        talk.kinds.push(Kind::Episode);
    }
    // A literal match is better than a related word.
    assert_eq!(ask(&talk, &["canoe"]), [9, 8]);
    assert!(talk.index.remove(9));
    assert_eq!(ask(&talk, &["canoe"]), [8]);
    assert!(ask(&talk, &[]).is_empty());
}

#[test]
fn the_answer_to_a_question_comes_before_what_follows_a_statement() {
    let score = |before: &str| {
        let talk = Talk::new(&[("Ana", before), ("Ben", "It was the oboe that I took, in the end.")]);
        let ranked = talk.ask("Which instrument is in the orchestra, an oboe?");
        ranked.iter().find(|ranked| ranked.number == 1).map(|ranked| ranked.score)
    };
    assert!(score("An instrument in your orchestra?") > score("An instrument in your orchestra."));
}
