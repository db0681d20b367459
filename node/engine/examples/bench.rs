//! Measures a model's tokens per second: prompts, and generation by one and by several sequences at once.
//!
//! `bench MODEL.gguf [--threads 1,2] [--prompt 512,1800] [--gen 64] [--batch 1,4,8] [--runs 3]
//! [--isa avx512]` prints a line of JSON for the model, one for each case, and one for the memory.

#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::{path::Path, time::Instant};

use baton_engine::{
    Model, Options,
    bench::{Plan, Progress, Rate, measure, memory},
    kernels::Isa,
};
use serde_json::{Value, json};

fn numbers(text: &str) -> Vec<usize> {
    text.split(',').map(|number| number.parse().expect("numbers with commas between")).collect()
}

fn rate(rate: &Rate) -> Value {
    json!({ "tokens_per_s": rate.median, "best": rate.best, "main_thread": rate.own })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str, default: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).map_or(default, String::as_str).to_owned()
    };
    let path = arguments.get(1).ok_or("a model's file is missing")?;
    let isa = Isa::named(&option("--isa", Isa::best().name())).ok_or("this processor lacks that --isa")?;
    let plan = Plan {
        threads: numbers(&option("--threads", "1,2")),
        prompts: numbers(&option("--prompt", "512,1800")),
        batches: numbers(&option("--batch", "1,4,8")),
        generated: numbers(&option("--gen", "64"))[0],
        runs: numbers(&option("--runs", "3"))[0],
    };
    let mut load = |threads| {
        let start = Instant::now();
        let model = Model::load(Path::new(path), &Options { isa, kv_budget: 8 << 30, threads })?;
        let (load, bytes) = (start.elapsed().as_secs_f64(), model.weight_bytes());
        println!("{}", json!({"model": path, "isa": isa.name(), "load_s": load, "weight_bytes": bytes}));
        Ok(model)
    };
    let mut held = None;
    measure(&mut load, &plan, &mut |progress| {
        if let Progress::Case(case) = progress {
            held = memory();
            println!(
                "{}",
                json!({
                    "threads": case.threads, "prompt": case.prompt, "batch": case.batch,
                    "prefill": rate(&case.prefill), "decode": rate(&case.decode),
                })
            );
        }
    })?;
    if let Some(memory) = held {
        println!("{}", json!({ "resident_bytes": memory.resident, "peak_bytes": memory.peak }));
    }
    Ok(())
}
