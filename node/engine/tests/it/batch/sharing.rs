//! Slots, chunks, memory, readers and ends.

use std::{sync::atomic::Ordering, time::Duration};

use baton_engine::batch::{
    BatchError, BatchOptions, Choice, Chooser, Finish, Request, StepOutcome, Steps as _,
};
use proptest::prelude::*;

use super::bench::{Bench, Record, VOCABULARY, plain, request, session};
use crate::support::Random;

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    Random::new(seed).tokens(length, VOCABULARY)
}

#[test]
fn a_long_prompt_delays_another_sequence_by_no_more_than_a_chunk() {
    let mut bench = Bench::new(100, plain());
    let short = bench.ask(&prompt(1, 5), 100);
    while short.events().tokens.len() < 3 {
        bench.step();
    }
    let long = bench.ask(&prompt(2, 400), 5);
    for steps in 1.. {
        let before = short.events().tokens.len();
        let rows = bench.rows();
        assert!(rows.prefilled <= 16, "{rows:?}");
        // A token each step: after `steps` chunks of 16, the request has `steps` tokens.
        assert_eq!(short.events().tokens.len(), before + 1);
        if !long.events().tokens.is_empty() {
            assert_eq!(steps, 400 / 16, "and the long one is not delayed by the short one");
            break;
        }
    }
}

#[test]
fn no_prompt_starves_while_shorter_ones_come() {
    let mut bench = Bench::new(400, BatchOptions { slots: 4, ..plain() });
    let long = bench.ask(&prompt(1, 320), 2);
    let mut short = Vec::new();
    // Short prompts that fill each step's chunk, without end.
    for steps in 0.. {
        if bench.scheduler.load().running < 4 {
            short.push(bench.ask(&prompt(steps, 16), 1));
        }
        bench.step();
        if long.finish().is_some() {
            assert!(steps < 3 * 320 / 16, "{steps} steps");
            break;
        }
    }
    assert!(short.len() > 10);
    bench.finish();
    assert!(short.iter().all(|record| record.finish() == Some(Finish::Length)));
}

#[test]
fn the_shortest_prompt_comes_first_and_prompts_share_a_chunk() {
    let mut bench = Bench::new(100, plain());
    let long = bench.ask(&prompt(1, 100), 1);
    let short: Vec<Record> = (0..3).map(|seed| bench.ask(&prompt(seed, 5), 1)).collect();
    assert_eq!(bench.rows().prefilled, 16);
    assert!(short.iter().all(|record| record.finish().is_some()) && long.finish().is_none());
    bench.finish();
    assert_eq!(long.finish(), Some(Finish::Length));
}

#[test]
fn as_many_run_as_there_are_slots_and_all_that_wait_finish() {
    let options = BatchOptions { slots: 8, queue: 64, ..plain() };
    let mut bench = Bench::new(200, options);
    let records: Vec<Record> =
        (0..72).map(|seed| bench.ask(&prompt(seed, 1 + seed as usize % 40), 12)).collect();
    let refused = bench.submit(request(&prompt(1, 5), 5, &Record::new()));
    assert_eq!(refused, Err(BatchError::Busy { limit: 64 }));
    bench.step();
    assert_eq!((bench.scheduler.load().running, bench.scheduler.load().waiting), (8, 64));
    bench.finish();
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record.finish(), Some(Finish::Length), "{number}");
        let events = record.events();
        assert_eq!((events.tokens.len(), events.stats.cached_tokens), (12, 0));
        assert_eq!(events.started, [(1 + number % 40, 0)]);
    }
    assert_eq!(bench.used_blocks(), 0);
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let mut bench = Bench::new(4, plain());
    let mut refuses = |prompt: &[u32], max_tokens, wanted: &dyn Fn(&BatchError) -> bool| {
        let record = Record::new();
        let error = bench.submit(request(prompt, max_tokens, &record)).unwrap_err();
        assert!(wanted(&error), "{error:?}");
        assert_eq!(record.events().finished, [], "the caller knows");
    };
    refuses(&[], 5, &|error| *error == BatchError::Empty);
    refuses(&[1], 0, &|error| *error == BatchError::Empty);
    refuses(&[1, 48], 5, &|error| *error == BatchError::Token { token: 48, vocabulary: 48 });
    refuses(&[1; 100], 29, &|error| matches!(error, BatchError::NeverFits { .. }));
    refuses(&[1; 500], 13, &|error| *error == BatchError::TooLong { tokens: 513, context: 512 });
    refuses(&[1; 500], usize::MAX, &|error| matches!(error, BatchError::TooLong { .. }));
    let fits = bench.ask(&[1; 100], 28);
    bench.finish();
    assert_eq!(fits.finish(), Some(Finish::Length));
}

#[test]
fn the_budget_holds_under_a_flood_of_long_prompts() {
    for cache_bytes in [0, usize::MAX] {
        let options = BatchOptions { slots: 16, queue: 100, cache_bytes, ..plain() };
        let mut bench = Bench::new(20, options);
        let records: Vec<Record> =
            (0..100).map(|seed| bench.ask(&prompt(seed, 100 + seed as usize), 20)).collect();
        // `step` checks the budget.
        let mut most = 0;
        while bench.step() != StepOutcome::Idle {
            most = most.max(bench.scheduler.load().running);
        }
        assert!((2..=5).contains(&most), "{most} at once");
        assert!(records.iter().all(|record| record.finish() == Some(Finish::Length)));
        let load = bench.scheduler.load();
        assert_eq!(load.kv_bytes, load.cached_bytes);
        assert_eq!(load.kv_bytes == 0, cache_bytes == 0);
    }
}

#[test]
fn a_reader_that_is_gone_ends_its_request_and_frees_its_blocks_at_once() {
    for (length, tokens, steps) in [(100, 20, 3), (10, 100, 20), (100, 20, 0)] {
        let mut bench = Bench::new(100, plain());
        let record = bench.ask(&prompt(1, length), tokens);
        for _ in 0..steps {
            bench.rows();
        }
        let before = record.events().tokens.len();
        assert_eq!(bench.used_blocks() > 0, steps > 0);
        record.is_gone.store(1, Ordering::SeqCst);
        assert_eq!(bench.step(), StepOutcome::Idle);
        assert_eq!((record.finish(), record.events().tokens.len()), (Some(Finish::Cancelled), before));
        assert_eq!(bench.used_blocks(), 0);
    }
}

#[test]
fn a_slow_reader_pauses_its_own_request_alone() {
    for speculate in [false, true] {
        let mut bench = Bench::new(100, BatchOptions { speculate, ..plain() });
        let slow = bench.ask(&[3; 20], 60);
        let wanted = {
            let mut bench = Bench::new(100, plain());
            let record = bench.ask(&[3; 20], 60);
            bench.finish();
            record.events().tokens
        };
        slow.room.store(5, Ordering::SeqCst);
        let other = bench.ask(&prompt(2, 10), 40);
        while other.finish().is_none() {
            bench.rows();
        }
        assert_eq!(slow.events().tokens.len(), 5);
        assert_eq!(bench.step(), StepOutcome::Paused);
        while slow.finish().is_none() {
            slow.room.store(3, Ordering::SeqCst);
            bench.rows();
        }
        assert_eq!((slow.events().tokens, slow.finish()), (wanted, Some(Finish::Length)));
    }
}

#[test]
fn a_reader_that_takes_nothing_for_too_long_ends_its_request() {
    let mut bench = Bench::new(100, BatchOptions { stall: Duration::from_millis(100), ..plain() });
    let slow = bench.ask(&prompt(1, 10), 60);
    slow.room.store(2, Ordering::SeqCst);
    while bench.step() != StepOutcome::Paused {}
    bench.wait(60);
    slow.room.store(1, Ordering::SeqCst);
    bench.rows();
    bench.step();
    bench.wait(99);
    assert_eq!((bench.step(), slow.finish()), (StepOutcome::Paused, None));
    bench.wait(1);
    assert_eq!(bench.step(), StepOutcome::Idle);
    assert_eq!(slow.finish(), Some(Finish::Failed(BatchError::Stalled)));
    assert_eq!(bench.used_blocks(), 0);
}

/// Does something at its third token.
struct AtThird(usize, fn() -> Choice);

impl Chooser for AtThird {
    fn choose(&mut self, _: &[u32], _: &[f32]) -> Choice {
        self.0 += 1;
        if self.0 == 3 { (self.1)() } else { Choice::Token(7) }
    }
}

#[test]
fn a_chooser_ends_its_own_request_however_it_does() {
    for (act, tokens, wanted) in [
        ((|| panic!("of the test")) as fn() -> Choice, 2, Finish::Failed(BatchError::Panicked)),
        (|| Choice::Nothing, 2, Finish::Failed(BatchError::NoChoice)),
        (|| Choice::Token(VOCABULARY as u32), 2, Finish::Failed(BatchError::NoChoice)),
        (|| Choice::End, 2, Finish::End),
        (|| Choice::Last(9), 3, Finish::End),
    ] {
        let mut bench = Bench::new(100, plain());
        let (record, other) = (Record::new(), bench.ask(&prompt(3, 20), 30));
        let mut request = request(&prompt(2, 20), 30, &record);
        request.chooser = Box::new(AtThird(0, act));
        bench.submit(request).unwrap();
        bench.finish();
        assert_eq!((record.finish(), record.events().tokens.len()), (Some(wanted), tokens));
        assert_eq!((other.finish(), other.events().tokens.len()), (Some(Finish::Length), 30));
        assert_eq!(bench.used_blocks(), 0);
    }
}

#[test]
fn a_second_turn_computes_only_new_tokens_and_no_other_session_gains() {
    let options = BatchOptions { cache_bytes: usize::MAX, ..plain() };
    let mut bench = Bench::new(100, options.clone());
    let first = bench.ask(&prompt(1, 100), 40);
    bench.finish();
    let mut history = prompt(1, 100);
    history.extend(first.events().tokens);
    history.extend(prompt(2, 10));
    let mut ask = |number: Option<u8>| {
        let record = Record::new();
        bench.submit(Request { session: number.map(session), ..request(&history, 10, &record) }).unwrap();
        let mut prefilled = 0;
        while let StepOutcome::Stepped(rows) = bench.step() {
            prefilled += rows.prefilled;
        }
        (record.events(), prefilled)
    };
    // The last token of the first answer was not computed.
    let (second, prefilled) = ask(Some(0));
    assert_eq!((second.started[0], second.stats.cached_tokens, prefilled), ((150, 139), 139, 11));
    for number in [Some(1), None] {
        let (other, prefilled) = ask(number);
        assert_eq!((other.stats.cached_tokens, prefilled), (0, 150), "{number:?}");
        assert_eq!((&other.tokens, &other.hashes), (&second.tokens, &second.hashes));
    }
    let load = bench.scheduler.load();
    assert!(load.cached_bytes > 0 && load.cached_bytes == load.kv_bytes);
}

#[test]
fn cached_blocks_expire() {
    let options = BatchOptions { cache_idle: Duration::from_secs(5), cache_bytes: usize::MAX, ..plain() };
    let mut bench = Bench::new(100, options);
    bench.ask(&prompt(1, 100), 10);
    bench.finish();
    assert_eq!(bench.used_blocks(), 4);
    bench.wait(4_999);
    bench.step();
    assert_eq!(bench.used_blocks(), 4);
    bench.wait(1);
    bench.step();
    assert_eq!(bench.used_blocks(), 0);
}

#[test]
fn cached_blocks_give_way_to_requests() {
    let mut bench = Bench::new(10, BatchOptions { cache_bytes: usize::MAX, ..plain() });
    bench.ask(&prompt(1, 200), 10);
    bench.finish();
    assert_eq!(bench.used_blocks(), 7);
    let large = bench.ask(&prompt(2, 300), 20);
    bench.finish();
    assert_eq!((large.finish(), bench.used_blocks()), (Some(Finish::Length), 10));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Requests of all lengths come at any time; some readers go, some are
    /// slow. Each is answered once, no step exceeds its bounds, and at the end only the cache holds memory.
    #[test]
    fn every_request_is_answered_exactly_once(
        seed in any::<u64>(),
        slots in 1_usize..6,
        chunk in 1_usize..40,
        speculate in any::<bool>(),
        cached in any::<bool>(),
    ) {
        let mut random = Random::new(seed);
        let cache_bytes = if cached { usize::MAX } else { 0 };
        let options = BatchOptions { slots, chunk, speculate, cache_bytes, queue: 8, ..BatchOptions::default() };
        let mut bench = Bench::new(12, options);
        let mut requests = Vec::new();
        let mut refused = 0;
        for _ in 0..150 {
            if random.below(3) == 0 && requests.len() < 40 {
                let record = Record::new();
                let room = [0, 1, 3, usize::MAX][random.below(4) as usize];
                record.room.store(room, Ordering::SeqCst);
                // Few distinct tokens, so that some guesses are right.
                let (length, tokens) = (random_length(&mut random), 1 + random.below(47) as usize);
                let tokens = random.tokens(length, tokens);
                let mut request = request(&tokens, 1 + random.below(40) as usize, &record);
                request.session = Some(session(random.below(3) as u8));
                match bench.submit(request) {
                    Ok(()) => requests.push(record),
                    Err(BatchError::Busy { .. } | BatchError::NeverFits { .. }) => {
                        refused += 1;
                        prop_assert!(record.finish().is_none());
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            if random.below(12) == 0 && !requests.is_empty() {
                requests[random.below(requests.len() as u64) as usize].is_gone.store(1, Ordering::SeqCst);
            }
            if random.below(5) == 0 && !requests.is_empty() {
                let record = &requests[random.below(requests.len() as u64) as usize];
                record.room.store(2, Ordering::SeqCst);
            }
            bench.wait(1);
            if let StepOutcome::Stepped(rows) = bench.step() {
                prop_assert!(rows.prefilled <= chunk && rows.decoded <= slots && rows.drafted <= 7);
            }
            let load = bench.scheduler.load();
            prop_assert!(load.running <= slots && load.waiting + load.running <= 8 + slots);
        }
        requests.iter().for_each(|record| record.room.store(usize::MAX, Ordering::SeqCst));
        bench.finish();
        for record in &requests {
            prop_assert!(record.finish().is_some());
        }
        prop_assert!(requests.len() + refused > 0);
        let load = bench.scheduler.load();
        prop_assert_eq!(load.kv_bytes, load.cached_bytes);
    }
}

fn random_length(random: &mut Random) -> usize {
    let most = if random.below(4) == 0 { 420 } else { 60 };
    1 + random.below(most) as usize
}
