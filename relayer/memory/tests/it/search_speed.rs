//! The speed of one owner's index at a given size.

#[path = "../../benches/search/scale.rs"]
mod scale;

use std::time::Instant;

use serde::Serialize;

use scale::{QUESTIONS, ScaleInput};

/// The results of a measurement. Times in microseconds.
#[derive(Debug, Serialize)]
struct Speed {
    /// Items of the owner.
    items: usize,
    /// Length of the vectors.
    dimensions: usize,
    /// Time to build the index from stored features.
    build_us: u64,
    /// Bytes of memory for each item.
    bytes_per_item: usize,
    /// Median time of scan and ranking.
    p50_us: u64,
    /// 99th percentile of scan and ranking.
    p99_us: u64,
}

/// Measures an owner with this many items.
fn scan_speed(items: usize, dimensions: usize) -> Speed {
    let input = ScaleInput::generate(items, dimensions);
    let begin = Instant::now();
    let scale = input.build();
    let build_us = micros(begin);
    let mut times: Vec<u64> = (0..QUESTIONS)
        .map(|number| {
            let begin = Instant::now();
            let found = scale.ask(number);
            let took = micros(begin);
            std::hint::black_box(found);
            took
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or(0);
    let bytes_per_item = scale.index.bytes() / items.max(1);
    Speed { items, dimensions, build_us, bytes_per_item, p50_us: at(50), p99_us: at(99) }
}

fn micros(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// `BATON_SPEED` lists the sizes to print, such as `1000,10000`.
#[test]
fn sizes_that_are_asked_for_are_measured() {
    let sizes = std::env::var("BATON_SPEED").unwrap_or_default();
    for items in sizes.split(',').filter_map(|size| size.parse().ok()) {
        let speed = scan_speed(items, 256);
        eprintln!("{}", serde_json::to_string(&speed).unwrap());
        assert!(speed.p99_us < 300_000, "the deadline of a recall");
    }
}

#[test]
fn what_is_measured_finds_something() {
    let speed = scan_speed(2_000, 64);
    assert!(speed.p99_us >= speed.p50_us && speed.bytes_per_item > 64);
    assert_eq!(ScaleInput::generate(100, 16).build().ask(0), 20);
}
