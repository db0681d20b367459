//! Every architecture against llama.cpp, and the cutting of prompts.
//!
//! `tests/data/llama_cpp.json` has llama.cpp's results for the small models of these tests.
//! `cargo test -p baton-engine --features candle --test it candle -- --ignored` writes their files to the folder in
//! BATON_MODELS_OUT. `scripts/bench_engine/families.py FOLDER` then prints the JSON.

use std::{collections::HashMap, fs, path::PathBuf};

use super::small::{NAMES, Small, VOCABULARY, model, prompt};
use crate::support::{Random, real_model, synthetic};
use baton_engine::candle::CandleModel;
use baton_engine::{
    Chunk, Model,
    batch::Solo as _,
    gguf::{DType, GgufFile},
};

const CONTEXT: usize = 4_096;

fn open(name: &'static str) -> CandleModel {
    CandleModel::open(&synthetic::open(&model(name).finish()), CONTEXT).unwrap()
}

/// The logits after the last token, with the prompt in the model's chunks.
fn logits(model: &mut CandleModel, tokens: &[u32]) -> Vec<f32> {
    let (mut position, mut logits) = (0, Vec::new());
    while position < tokens.len() {
        let count = model.chunk(position, tokens.len() - position);
        logits = model.append(&tokens[position..position + count], position).unwrap().to_vec();
        position += count;
    }
    logits
}

fn one_by_one(model: &mut CandleModel, tokens: &[u32], first: usize) -> Vec<f32> {
    let mut logits = model.append(&tokens[..first], 0).unwrap().to_vec();
    for (position, token) in tokens.iter().enumerate().skip(first) {
        logits = model.append(&[*token], position).unwrap().to_vec();
    }
    logits
}

/// The largest difference, relative to the numbers' spread.
fn distance(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    let spread = one.iter().fold(f32::MIN, |a, b| a.max(*b)) - one.iter().fold(f32::MAX, |a, b| a.min(*b));
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / spread
}

#[test]
fn every_architecture_answers_as_llama_cpp() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama_cpp.json");
    let golden: HashMap<String, HashMap<String, Vec<f32>>> =
        serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    for name in NAMES {
        let mut model = open(name);
        // The JSON has no separate experts: their results are the same.
        let golden = &golden[if name == "experts-apart" { "mixture" } else { name }];
        for (length, wanted) in golden {
            let tokens = prompt(length.parse().unwrap());
            let found = logits(&mut model, &tokens);
            let apart = distance(wanted, &found);
            // llama.cpp's keys and values are half-precision numbers.
            assert!(apart < 2e-3, "{name}, {length} tokens: {apart}");
            model.forget();
        }
    }
}

#[test]
fn results_depend_neither_on_chunks_nor_on_the_earlier_prompt() {
    for name in NAMES {
        let mut model = open(name);
        // Longer than the initial size of some of candle's caches.
        let tokens = Random::new(5).tokens(600, VOCABULARY);
        let first = if name == "lfm2" { 2 } else { 1 };
        let wanted = one_by_one(&mut model, &tokens, first);
        model.forget();
        let apart = distance(&wanted, &logits(&mut model, &tokens));
        assert!(apart < 1e-4, "{name}: {apart}");
        // Without a call to `forget`.
        let again = logits(&mut model, &tokens[..9]);
        assert!(distance(&logits(&mut open(name), &tokens[..9]), &again) == 0.0, "{name}");
    }
}

#[test]
fn a_real_llama_answers_as_in_the_engine() {
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = GgufFile::open(&path).unwrap();
    let tokens: Vec<u32> = Random::new(3).tokens(40, 49_152);
    let mut exact = Model::from_file(&file, &baton_engine::Options::default()).unwrap();
    let mut sequence = exact.sequence();
    let chunk = Chunk { sequence: &mut sequence, tokens: &tokens, logits: 1 };
    let wanted = exact.step(&mut [chunk]).unwrap().rows().next().unwrap().to_vec();
    let found = logits(&mut CandleModel::open(&file, CONTEXT).unwrap(), &tokens);
    let apart = distance(&wanted, &found);
    // Both round activations to bytes, each in its own way.
    assert!(apart < 0.05, "{apart}");
}

#[test]
fn quantised_weights_are_read_too() {
    for dtype in [DType::Q4_0, DType::Q5_1, DType::Q8_0, DType::F16] {
        let mut plain = Small::new("phi3");
        plain.dtype = dtype;
        let mut model = CandleModel::open(&synthetic::open(&plain.writer().finish()), CONTEXT).unwrap();
        assert!(logits(&mut model, &prompt(20)).iter().all(|logit| logit.is_finite()), "{dtype:?}");
    }
}

#[test]
#[ignore = "writes the models for llama.cpp"]
fn write_models() {
    let folder = PathBuf::from(std::env::var_os("BATON_MODELS_OUT").expect("BATON_MODELS_OUT is a folder"));
    for name in NAMES.into_iter().filter(|name| *name != "experts-apart") {
        fs::write(folder.join(format!("{name}.gguf")), model(name).finish()).unwrap();
    }
}
