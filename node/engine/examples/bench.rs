//! Tokens per second of a model: prompts, and generation by one and by several sequences at once.
//!
//! `bench MODEL.gguf [--threads 1,2] [--prompt 512,1800] [--gen 64] [--batch 1,4,8] [--runs 3] [--isa avx512]` prints a
//! line of JSON for each case.

#![allow(clippy::print_stdout, reason = "a program for the command line")]
#![allow(clippy::unwrap_used, reason = "a program for the command line")]
#![allow(clippy::cast_possible_truncation, reason = "tokens have 32 bits")]

use std::{path::Path, time::Instant};

use baton_engine::{Chunk, Model, Options, Sequence, Want, kernels::Isa};

/// Tokens of a prompt that go through the model at once.
const CHUNK: usize = 512;

fn numbers(text: &str) -> Vec<usize> {
    text.split(',').map(|number| number.parse().expect("numbers with commas between")).collect()
}

fn prompt(length: usize, vocabulary: usize) -> Vec<u32> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) % vocabulary as u32).collect()
}

fn read(model: &mut Model, sequence: &mut Sequence, tokens: &[u32]) -> u32 {
    let mut best = 0;
    for tokens in tokens.chunks(CHUNK) {
        let logits = model.step(&mut [Chunk { sequence, tokens, want: Want::Last }]).unwrap();
        best = largest(logits.rows().next().unwrap());
    }
    best
}

fn largest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate() {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0 as u32
}

/// Seconds that this thread has computed, whatever else the machine did; 0 where the system does not say.
fn computed() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0.0) / 1e9
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str, default: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).map_or(default, String::as_str).to_owned()
    };
    let path = arguments.get(1).expect("a model's file");
    let isa = Isa::named(&option("--isa", Isa::best().name())).expect("an instruction set of this processor");
    let runs = numbers(&option("--runs", "3"))[0];
    let generated = numbers(&option("--gen", "64"))[0];
    let start = Instant::now();
    let options = Options { isa, kv_budget: 4 << 30, ..Options::default() };
    let mut model = Model::load(Path::new(path), &options).unwrap();
    let load = start.elapsed().as_secs_f64();
    let bytes = model.weight_bytes();
    println!(
        "{}",
        serde_json::json!({"model": path, "isa": isa.name(), "load_s": load, "weight_bytes": bytes})
    );
    for threads in numbers(&option("--threads", "1,2")) {
        model.set_threads(threads).unwrap();
        for length in numbers(&option("--prompt", "512,1800")) {
            let tokens = prompt(length, model.vocabulary());
            let time = |model: &mut Model| {
                let mut sequence = model.sequence();
                let (start, before) = (Instant::now(), computed());
                read(model, &mut sequence, &tokens);
                (start.elapsed().as_secs_f64(), computed() - before)
            };
            let (times, own): (Vec<f64>, Vec<f64>) = (0..runs).map(|_| time(&mut model)).unzip();
            let best = times.iter().copied().fold(f64::MAX, f64::min);
            let prefill = length as f64 / median(times);
            println!(
                "{}",
                serde_json::json!({"threads": threads, "prompt": length,
                "prefill_tokens_per_s": prefill, "best": length as f64 / best,
                "main_thread": length as f64 / median(own)})
            );
            for batch in numbers(&option("--batch", "1,4,8")) {
                let mut sequences: Vec<Sequence> = (0..batch).map(|_| model.sequence()).collect();
                let mut next: Vec<u32> = Vec::new();
                for (number, sequence) in sequences.iter_mut().enumerate() {
                    let mut tokens = tokens.clone();
                    tokens[0] = number as u32;
                    next.push(read(&mut model, sequence, &tokens));
                }
                let (mut times, before) = (Vec::new(), computed());
                for _ in 0..generated {
                    let start = Instant::now();
                    let mut chunks: Vec<Chunk<'_>> = sequences
                        .iter_mut()
                        .zip(&next)
                        .map(|(sequence, token)| Chunk {
                            sequence,
                            tokens: std::slice::from_ref(token),
                            want: Want::Last,
                        })
                        .collect();
                    let logits = model.step(&mut chunks).unwrap();
                    times.push(start.elapsed().as_secs_f64());
                    next = logits.rows().map(largest).collect();
                }
                let own = (batch * generated) as f64 / (computed() - before);
                let best = times.iter().copied().fold(f64::MAX, f64::min);
                println!(
                    "{}",
                    serde_json::json!({"threads": threads, "prompt": length, "batch": batch,
                    "decode_tokens_per_s": batch as f64 / median(times), "best": batch as f64 / best,
                    "main_thread": own})
                );
            }
        }
    }
}
