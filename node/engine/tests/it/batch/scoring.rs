//! Tokens of a prompt that the chooser scores: the same logits as when they were chosen.

use std::sync::{Arc, Mutex};

use baton_engine::{
    batch::{BatchError, BatchOptions, Choice, Chooser, Finish, Request},
    kernels::Isa,
};

use super::bench::{Bench, Record, VOCABULARY, model, plain, request, tiny};
use crate::support::{Random, hash};

/// Records the scored tokens with the hashes of their logits, and ends the answer.
#[derive(Clone, Default)]
struct Scorer(Arc<Mutex<Vec<(u32, u64)>>>);

impl Chooser for Scorer {
    fn choose(&mut self, _tokens: &[u32], _logits: &[f32]) -> Choice {
        Choice::End
    }

    fn score(&mut self, tokens: &[u32], next: u32, logits: &[f32]) {
        assert!(!tokens.is_empty());
        self.0.lock().unwrap().push((next, hash(logits)));
    }
}

#[test]
fn scored_tokens_have_the_logits_by_which_they_were_chosen_and_leave_their_blocks_to_the_next_turn() {
    let prompt = Random::new(3).tokens(70, VOCABULARY);
    let mut first = Bench::new(100, plain());
    let asked = first.ask(&prompt, 60);
    first.finish();
    let answer = asked.events();
    let wanted: Vec<(u32, u64)> = answer.tokens.iter().copied().zip(answer.hashes.clone()).collect();
    let given = [prompt, answer.tokens].concat();
    for isa in Isa::all() {
        for (chunk, cache_bytes) in [(16, 0), (7, usize::MAX), (500, usize::MAX)] {
            let mut model = model(&tiny(), 100);
            model.set_isa(isa);
            let mut bench = Bench::with(model, BatchOptions { chunk, cache_bytes, ..plain() });
            // A part of the prompt and of the scored tokens is kept, and another request runs beside it.
            bench.ask(&given[..100], 1);
            bench.finish();
            let (scorer, record) = (Scorer::default(), Record::new());
            let chooser = Box::new(scorer.clone());
            bench.submit(Request { scored: 60, chooser, ..request(&given, 1, &record) }).unwrap();
            let beside = Record::new();
            bench.submit(Request { session: None, ..request(&given[..70], 60, &beside) }).unwrap();
            bench.finish();
            assert_eq!(*scorer.0.lock().unwrap(), wanted, "{isa:?}, chunks of {chunk}");
            assert_eq!((record.finish(), record.events().tokens.len()), (Some(Finish::End), 0));
            assert_eq!(beside.events().hashes, answer.hashes);
            let kept = if cache_bytes > 0 { (64, 130) } else { (0, 0) };
            assert_eq!(
                record.events().stats.cached_tokens,
                kept.0,
                "no scored token is taken from the cache"
            );
            let next = bench.ask(&[&given[..], &[1, 2, 3]].concat(), 1);
            bench.finish();
            assert_eq!(next.events().stats.cached_tokens, kept.1);
        }
    }
}

#[test]
fn a_request_without_a_token_before_the_scored_ones_is_refused() {
    let mut bench = Bench::new(10, plain());
    let record = Record::new();
    let asked = |scored| Request { scored, ..request(&[1, 2, 3], 1, &record) };
    assert_eq!(bench.submit(asked(3)), Err(BatchError::Empty));
    assert_eq!(bench.submit(asked(2)), Ok(()));
}
