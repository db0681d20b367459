//! Measures the time to the first token of a session's second turn, with and without the first turn's blocks.
//!
//! `second_turn MODEL.gguf [--threads 2] [--history 1500] [--new 64] [--chunk 192] [--runs 5]` prints a line
//! of JSON. It has medians of the time to the first token for a turn of `history + new` tokens. Runs
//! alternate: all tokens computed, and the history's blocks kept.

#![allow(clippy::print_stdout, reason = "a program for the command line")]
#![allow(clippy::unwrap_used, reason = "a program for the command line")]
#![allow(clippy::cast_possible_truncation, reason = "tokens have 32 bits")]

use std::path::Path;

use baton_engine::{
    Model, Options,
    batch::{BatchOptions, Batcher, Cancel, Event, Finish, Greedy, Request, SessionKey, Stats, channel},
};
use zeroize::Zeroizing;

fn tokens(length: usize, seed: u32, vocabulary: usize) -> Vec<u32> {
    let token = |at: u32| ((at + seed).wrapping_mul(2_654_435_761) >> 8) % vocabulary as u32;
    (0..length as u32).map(token).collect()
}

fn ask(batcher: &Batcher, session: u8, prompt: &[u32]) -> Stats {
    let (sink, events) = channel(64);
    let request = Request {
        session: Some(SessionKey([session; 32])),
        prompt: Zeroizing::new(prompt.to_vec()),
        scored: 0,
        max_tokens: 1,
        start_by: None,
        end_by: None,
        cancel: Cancel::default(),
        chooser: Box::new(Greedy::default()),
        sink: Box::new(sink),
    };
    batcher.submit(request).unwrap();
    loop {
        if let Some(Event::Finished { finish, stats }) = events.wait() {
            assert_eq!(finish, Finish::Length);
            return stats;
        }
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str, default: usize| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).map_or(default, |value| value.parse().unwrap())
    };
    let path = arguments.get(1).expect("a model's file");
    let mut options = Options { kv_budget: 4 << 30, ..Options::default() };
    options.threads = option("--threads", options.threads);
    let (history, new) = (option("--history", 1_500), option("--new", 64));
    let model = Model::load(Path::new(path), &options).unwrap();
    let vocabulary = model.vocabulary();
    let chunk = option("--chunk", BatchOptions::default().chunk);
    let batcher =
        Batcher::spawn("second-turn", model, BatchOptions { chunk, ..BatchOptions::default() }).unwrap();
    let (mut whole, mut second, mut cached) = (Vec::new(), Vec::new(), 0);
    for run in 0..option("--runs", 5) as u32 {
        let mut prompt = tokens(history, 10_000 * run, vocabulary);
        let first = ask(&batcher, 1, &prompt);
        prompt.extend(tokens(new, 77 + run, vocabulary));
        let stats = ask(&batcher, 1, &prompt);
        cached = stats.cached_tokens;
        second.push(stats.first_token.as_secs_f64());
        let stats = ask(&batcher, 2, &prompt);
        assert_eq!((first.cached_tokens, stats.cached_tokens), (0, 0));
        whole.push(stats.first_token.as_secs_f64());
        batcher.clear(&SessionKey([1; 32]));
        batcher.clear(&SessionKey([2; 32]));
    }
    let (whole, second) = (median(whole), median(second));
    println!(
        "{}",
        serde_json::json!({
            "model": path, "threads": options.threads, "chunk": chunk, "history": history, "new": new,
            "cached_tokens": cached, "whole_ms": whole * 1e3, "second_turn_ms": second * 1e3,
            "ratio": second / whole,
        })
    );
}
