//! The same tokens and the same logits, to the last bit, in every batch and every way of computing.

use std::time::Instant;

use baton_engine::{
    Model, Options,
    batch::{BatchOptions, Scheduler, StepOutcome, Steps as _},
    gguf::{DType, GgufFile},
    kernels::Isa,
};

use super::bench::{AnswerEvents, Greedy, Noisy, Record, VOCABULARY, request, session, tiny};
use crate::support::{
    Random, real_model,
    synthetic::{Shape, open},
};

/// A prompt whose end repeats earlier words, as conversations do: otherwise nothing is guessed.
fn prompt(random: &mut Random, length: usize, vocabulary: usize) -> Vec<u32> {
    let again = (length / 3).min(6);
    let mut tokens = random.tokens(length - again, vocabulary);
    let from = random.below((tokens.len() - again) as u64 + 1) as usize;
    tokens.extend_from_within(from..from + again);
    tokens
}

/// One way to compute.
#[derive(Debug, Clone, Copy)]
struct Way {
    batch: usize,
    chunk: usize,
    speculate: bool,
    /// Whether the prompts' first half has been computed before.
    cached: bool,
}

/// The events of requests computed in this way, the number of correct guesses, and the model.
fn run(model: Model, prompts: &[Vec<u32>], length: usize, way: Way) -> (Vec<AnswerEvents>, usize, Model) {
    let Way { batch, chunk, speculate, cached } = way;
    let cache_bytes = if cached { usize::MAX } else { 0 };
    let options = BatchOptions {
        slots: batch,
        chunk,
        speculate,
        cache_bytes,
        queue: prompts.len(),
        ..BatchOptions::default()
    };
    let mut scheduler = Scheduler::new(model, options);
    let mut accepted = 0;
    let mut all = |prompts: &[Vec<u32>], length: usize| -> Vec<Record> {
        let ask = |(number, prompt): (usize, &Vec<u32>)| {
            let record = Record::new();
            let mut request = request(prompt, length, &record);
            request.session = Some(session(number as u8));
            // Half of the requests choose with noise, the others take the largest logit.
            request.chooser = if number % 2 == 0 { Box::new(Noisy(number as u64)) } else { Box::new(Greedy) };
            assert!(scheduler.accept(request).is_ok());
            record
        };
        let records = prompts.iter().enumerate().map(ask).collect();
        // Each row that decodes gives a token, and each right guess another; the prompt gives the first.
        accepted = prompts.len() * (length - 1);
        while let StepOutcome::Stepped(rows) = scheduler.step(&Instant::now) {
            accepted -= rows.decoded;
        }
        records
    };
    if cached {
        let begun: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| prompt[..prompt.len() * 3 / 4].to_vec()).collect();
        all(&begun, 1);
    }
    let events: Vec<AnswerEvents> = all(prompts, length).iter().map(Record::events).collect();
    for (events, prompt) in events.iter().zip(prompts) {
        let wanted = if cached { prompt.len() * 3 / 4 } else { 0 };
        assert_eq!(events.stats.cached_tokens, wanted, "{way:?}");
        assert_eq!(events.tokens.len(), length);
    }
    (events, accepted, scheduler.into_model())
}

/// Computes prompts in all ways: batches, chunks, threads, instruction sets, with and without kept blocks,
/// with and without guesses.
fn same_in_all_ways(file: &GgufFile, prompts: &[Vec<u32>], length: usize, chunks: &[usize], isas: &[Isa]) {
    let options = Options { threads: 1, isa: Isa::best(), kv_budget: 1 << 30 };
    let model = Model::from_file(file, &options).unwrap();
    let alone = Way { batch: 1, chunk: 1_024, speculate: false, cached: false };
    let (wanted, _, mut model) = run(model, prompts, length, alone);
    let mut right = 0;
    for threads in [1, 2] {
        model.set_threads(threads).unwrap();
        for isa in isas {
            model.set_isa(*isa);
            for chunk in chunks {
                for (batch, speculate, cached) in [1, 3, 8].into_iter().flat_map(|batch| {
                    [(false, false), (false, true), (true, false), (true, true)]
                        .map(|(speculate, cached)| (batch, speculate, cached))
                }) {
                    let way = Way { batch, chunk: *chunk, speculate, cached };
                    let (found, accepted, same) = run(model, prompts, length, way);
                    (right, model) = (right + accepted, same);
                    for (number, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                        assert!(
                            found.tokens == wanted.tokens && found.hashes == wanted.hashes,
                            "prompt {number}: {isa:?}, {threads} threads, {way:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(right > 0, "some guesses are right, or nothing was tested of them");
}

fn is_full() -> bool {
    std::env::var_os("BATON_FULL").is_some_and(|value| value == "1")
}

/// A sample of the prompts, or all 1,000 with `BATON_FULL=1`.
#[test]
fn a_thousand_prompts_give_the_same_bits_in_every_way() {
    let file = tiny();
    let mut random = Random::new(11);
    let prompts: Vec<Vec<u32>> = (0..1_000)
        .map(|_| {
            let length = 2 + random.below(90) as usize;
            prompt(&mut random, length, VOCABULARY)
        })
        .collect();
    let count = if is_full() { prompts.len() } else { 16 };
    for prompts in prompts[..count].chunks(100) {
        same_in_all_ways(&file, prompts, 8, &[7, 64], &Isa::all());
    }
}

#[test]
fn other_families_give_the_same_bits_in_every_way() {
    for (family, dtype) in [("gemma3", DType::Q5K), ("qwen3", DType::Q8_0), ("qwen2", DType::F16)] {
        let file = open(&Shape::new(family, &[dtype]).writer().finish());
        let mut random = Random::new(12);
        let prompts: Vec<Vec<u32>> = (0..4).map(|_| prompt(&mut random, 70, 72)).collect();
        same_in_all_ways(&file, &prompts, 8, &[33], &[Isa::best()]);
    }
}

#[test]
fn smollm2_gives_the_same_bits_in_every_way() {
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = GgufFile::open(&path).unwrap();
    let mut random = Random::new(13);
    let count = if is_full() { 8 } else { 2 };
    let prompts: Vec<Vec<u32>> = (0..count).map(|_| prompt(&mut random, 48, 49_152)).collect();
    let (scalar, vector): (Vec<Isa>, Vec<Isa>) =
        Isa::all().into_iter().partition(|isa| isa.name() == "scalar");
    same_in_all_ways(&file, &prompts, 4, &[40], &vector);
    if is_full() {
        // Scalar is a hundred times slower: one prompt.
        same_in_all_ways(&file, &prompts[..1], 4, &[40], &scalar);
    }
}
