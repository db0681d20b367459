//! A model that computes one sequence at a time: the order of requests, and their ends.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use baton_engine::batch::{BatchError, BatchOptions, Batcher, Finish, Solo};
use zeroize::Zeroizing;

use super::channel::{Event, Events, ask};

const CONTEXT: usize = 64;
const TOKENS: usize = 10;
const TOKEN_BYTES: usize = 100;

/// Chooses the last digit of the sum of all tokens so far; token 9 makes it fail.
struct Sum {
    sum: u32,
    computed: usize,
    /// The calls that it got: position and number of tokens; zeros for a call to forget.
    calls: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Solo for Sum {
    fn vocabulary(&self) -> usize {
        TOKENS
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn token_bytes(&self) -> usize {
        TOKEN_BYTES
    }

    fn chunk(&self, _position: usize, remaining: usize) -> usize {
        remaining.min(4)
    }

    fn append(&mut self, tokens: &[u32], position: usize) -> Result<Zeroizing<Vec<f32>>, String> {
        self.calls.lock().unwrap().push((position, tokens.len()));
        if position == 0 {
            (self.sum, self.computed) = (0, 0);
        }
        assert_eq!(self.computed, position, "a sequence is appended to in order");
        if tokens.contains(&9) {
            return Err("nine".to_owned());
        }
        assert!(!tokens.contains(&8), "eight");
        self.computed += tokens.len();
        self.sum += tokens.iter().sum::<u32>();
        let mut logits = vec![0.0; if tokens.contains(&7) { 3 } else { TOKENS }];
        let digits = logits.len() as u32;
        logits[(self.sum % digits) as usize] = 1.0;
        Ok(Zeroizing::new(logits))
    }

    fn forget(&mut self) {
        self.calls.lock().unwrap().push((0, 0));
    }
}

type CallLog = Arc<Mutex<Vec<(usize, usize)>>>;

fn batcher(queue: usize, kv_budget: usize) -> (Batcher, CallLog) {
    let calls = CallLog::default();
    let model = Sum { sum: 0, computed: 0, calls: Arc::clone(&calls) };
    let options =
        BatchOptions { queue, slots: 5, stall: Duration::from_millis(50), ..BatchOptions::default() };
    (Batcher::spawn_solo("solo", Box::new(model), options, kv_budget).unwrap(), calls)
}

fn model_error(reason: &str) -> Finish {
    Finish::Failed(BatchError::Model { reason: reason.to_owned() })
}

#[test]
fn requests_run_one_after_another_and_leave_no_state() {
    let (batcher, calls) = batcher(8, 1 << 20);
    let all: Vec<Events> = (0..4).map(|_| ask(&batcher, &[1, 1, 1, 1, 1], 4, 64).unwrap()).collect();
    for events in &all {
        // 5, 5 + 5, 10 + 0, and so on.
        assert_eq!(events.read(), (vec![5, 0, 0, 0], Finish::Length));
    }
    batcher.shutdown();
    let one = [(0, 4), (4, 1), (5, 1), (6, 1), (7, 1), (0, 0)];
    assert_eq!(*calls.lock().unwrap(), one.repeat(4));
    assert_eq!(batcher.load().running, 0);
}

#[test]
fn a_failure_ends_one_request_alone() {
    let (batcher, _) = batcher(8, 1 << 20);
    for (prompt, finish) in [
        (vec![1, 9], model_error("nine")),
        (vec![1, 8], Finish::Failed(BatchError::Panicked)),
        (vec![1, 7], model_error("3 logits for a vocabulary of 10")),
    ] {
        assert_eq!(ask(&batcher, &prompt, 3, 8).unwrap().read(), (Vec::new(), finish));
        assert_eq!(ask(&batcher, &[2, 1], 1, 8).unwrap().read(), (vec![3], Finish::Length));
    }
}

#[test]
fn impossible_requests_and_one_too_many_are_refused() {
    let (batcher, _) = batcher(1, 32 * TOKEN_BYTES);
    let refused = |prompt: &[u32], most| ask(&batcher, prompt, most, 8).err().unwrap();
    assert_eq!(refused(&[], 1), BatchError::Empty);
    assert_eq!(refused(&[1; 60], 5), BatchError::TooLong { tokens: 65, context: CONTEXT });
    assert_eq!(refused(&[10], 1), BatchError::Token { token: 10, vocabulary: TOKENS });
    assert_eq!(refused(&[1; 30], 3), BatchError::NeverFits { wanted: 6_400, budget: 3_200 });
    // One runs and one waits.
    let first = ask(&batcher, &[1], 20, 1).unwrap();
    assert_eq!(first.wait(), Some(Event::Started { prompt: 1, cached: 0 }));
    let second = ask(&batcher, &[1], 2, 8).unwrap();
    assert_eq!(refused(&[1], 2), BatchError::Busy { limit: 1 });
    // The first request's reader takes nothing more.
    assert_eq!(second.read(), (vec![1, 2], Finish::Length));
    drop(first);
}

#[test]
fn an_absent_reader_a_stall_and_shutdown_end_requests() {
    let (batcher, calls) = batcher(8, 1 << 20);
    let first = ask(&batcher, &[1, 2], 40, 3).unwrap();
    assert!(matches!(first.wait(), Some(Event::Started { .. })));
    drop(first);
    assert_eq!(ask(&batcher, &[1], 1, 8).unwrap().read(), (vec![1], Finish::Length));
    assert!(calls.lock().unwrap().len() <= 7, "nothing more is computed without a reader");
    // The reader stops: the request gives way to the next one.
    let unread = ask(&batcher, &[1], 40, 2).unwrap();
    assert_eq!(ask(&batcher, &[1], 1, 8).unwrap().read().1, Finish::Length);
    assert_eq!(unread.read(), (vec![1, 2], Finish::Failed(BatchError::Stalled)));
    let running = ask(&batcher, &[1], 40, 1).unwrap();
    let waiting = ask(&batcher, &[1], 40, 1).unwrap();
    assert!(matches!(running.wait(), Some(Event::Started { .. })));
    batcher.shutdown();
    for events in [running, waiting] {
        assert_eq!(events.read().1, Finish::Failed(BatchError::ShutDown));
    }
    assert_eq!(ask(&batcher, &[1], 1, 1).err(), Some(BatchError::ShutDown));
}
