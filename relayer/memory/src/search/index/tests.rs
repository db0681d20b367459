//! Tests of the index against an exhaustive search.

use baton_models::embed::RelatedWord;
use proptest::prelude::*;

use super::*;
use crate::search::{Background, TermHasher, document_features};

const DIMENSIONS: usize = 4;

fn hasher() -> TermHasher {
    TermHasher::new([9; 32])
}

fn item(words: &[u8], speaker: &str, direction: Option<u8>) -> Features {
    let text: Vec<String> = words.iter().map(|word| format!("word{word}")).collect();
    let mut found = document_features(&text.join(" "), speaker, 0, &hasher());
    found.vector = direction.map(|direction| QuantisedVector::from_unit(&towards(direction)));
    found
}

fn towards(direction: u8) -> [f32; DIMENSIONS] {
    let angle = f32::from(direction) / 40.0;
    [angle.cos(), angle.sin(), 0.0, 0.0]
}

/// Matching rows, rounded, because sums are added in another order.
fn comparable(found: &Candidates) -> Vec<CandidateRow> {
    let round = |x: f32| (x * 1_000.0).round();
    let matches =
        found.rows().iter().filter(|row| row.cosine.is_some() || row.lexical > 0.0 || row.words != 0);
    matches
        .map(|row| CandidateRow {
            lexical: round(row.lexical),
            cosine: row.cosine.map(round),
            list: 0,
            ..*row
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, Vec<u8>, bool, Option<u8>),
    Vector(u64, Option<u8>),
    Remove(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let words = || prop::collection::vec(0_u8..12, 0..8);
    let step = prop_oneof![
        (0_u64..20, words(), any::<bool>(), prop::option::of(0_u8..60))
            .prop_map(|(n, w, s, v)| Step::Put(n, w, s, v)),
        (0_u64..20, prop::option::of(0_u8..60)).prop_map(|(n, v)| Step::Vector(n, v)),
        (0_u64..20).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// After any inserts, changes and removals, the index finds what a new index of the visible items finds. With the
    /// statistics of all, an index of some finds the same of these.
    #[test]
    fn the_index_finds_what_an_index_of_the_visible_items_finds(steps in steps(), hidden in 0_u64..20) {
        let mut index = Index::new(DIMENSIONS);
        let mut items: std::collections::BTreeMap<u64, Features> = std::collections::BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(number, words, ana, direction) => {
                    let features = item(&words, if ana { "Ana" } else { "Ben" }, direction);
                    index.insert(number, features.clone());
                    items.insert(number, features);
                }
                Step::Vector(number, direction) => {
                    let vector = direction.map(|direction| QuantisedVector::from_unit(&towards(direction)));
                    index.set_vector(number, vector.clone());
                    if let Some(features) = items.get_mut(&number) {
                        features.vector = vector;
                    }
                }
                Step::Remove(number) => {
                    prop_assert_eq!(index.remove(number), items.remove(&number).is_some());
                }
            }
        }
        prop_assert_eq!(index.len(), items.len());
        let items: Vec<(u64, Features)> = items.into_iter().collect();
        let allowed = |number: u64| number != hidden;
        let text = "What did Ana say of word1, word3 and word5?";
        let likes = |word: &str, likeness: f32| RelatedWord { word: word.to_owned(), likeness };
        let related = [vec![likes("word2", 0.5), likes("word3", 0.9)], vec![likes("word2", 0.8), likes("none", 0.4)]];
        let words = ["word1", "word5"].map(str::to_owned);
        let question = Question::parse(text, &hasher(), 0)
            .with_related(&words, &related, &hasher())
            .with_vector(&towards(3), Background::TYPICAL);
        let found = index.scan(&question, &allowed);
        let among = |keep: &dyn Fn(u64) -> bool| {
            let mut index = Index::new(DIMENSIONS);
            let kept = items.iter().filter(|(number, _)| allowed(*number) && keep(*number));
            kept.for_each(|(number, features)| index.insert(*number, features.clone()));
            index
        };
        let expected = among(&|_| true).scan(&question, &|_| true);
        prop_assert_eq!(comparable(&found), comparable(&expected));
        for row in found.rows() {
            let there = expected.get(row.number).expect("it was compared");
            prop_assert_eq!(found.shares.of(row.list), expected.shares.of(there.list));
            let (_, features) = items.iter().find(|(number, _)| *number == row.number).expect("it is there");
            let has = |hash: &u64| features.terms.iter().any(|term| term.0 == *hash);
            let words = question.hashes().iter().take(question.words()).enumerate();
            let words = words.filter(|(_, hash)| has(hash)).fold(0, |words, (at, _)| words | 1 << at);
            let cosine = features.vector.as_ref().and_then(|vector| vector.cosine(question.vector()?));
            prop_assert_eq!((row.words, row.cosine), (words, cosine));
        }
        let count = |hash: &u64| {
            let with = |(number, features): &&(u64, Features)| {
                allowed(*number) && features.terms.iter().any(|term| term.0 == *hash)
            };
            u32::try_from(items.iter().filter(with).count()).unwrap()
        };
        let lengths = items.iter().filter(|(number, _)| allowed(*number));
        let statistics = Statistics {
            documents: found.documents(),
            total_length: lengths.map(|(_, features)| u64::from(features.length)).sum(),
            counts: question.hashes().iter().map(count).collect(),
            cosines: Some(found.cosines),
        };
        let even = |number: u64| number.is_multiple_of(2);
        let some = among(&even).scan_among(&question, &statistics);
        let expected: Vec<CandidateRow> =
            comparable(&found).into_iter().filter(|row| even(row.number)).collect();
        prop_assert_eq!(comparable(&some), expected);
        prop_assert_eq!((&some.weights, &some.worth, some.cosines), (&found.weights, &found.worth, found.cosines));
    }
}

#[test]
fn f1_what_is_removed_leaves_no_vector_and_no_posting() {
    let mut index = Index::new(DIMENSIONS);
    index.insert(7, item(&[1, 2], "Ana", Some(5)));
    index.insert(8, item(&[2, 3], "Ana", Some(5)));
    assert!(index.remove(7) && !index.remove(7));
    assert!(index.remove(8) && index.is_empty());
    assert!(index.postings.iter().all(Vec::is_empty));
    assert!(index.blocks.iter().flatten().all(|code| *code == 0));
    assert!(index.scales.iter().all(|scale| *scale == 0.0));
    // The slots are reused.
    index.insert(9, item(&[1], "Ana", None));
    assert_eq!((index.len(), index.numbers.len()), (1, 2));
    assert!(index.bytes() > 0);
}

#[test]
fn b11_an_empty_scope_finds_nothing() {
    let mut index = Index::new(DIMENSIONS);
    index.insert(1, item(&[1], "Ana", Some(1)));
    let question = Question::parse("word1", &hasher(), 0).with_vector(&towards(1), Background::TYPICAL);
    let nothing = index.scan(&question, &|_| false);
    assert_eq!((nothing.rows().len(), nothing.documents()), (0, 0));
    assert_eq!(index.scan(&question, &|_| true).rows().len(), 1);
}
