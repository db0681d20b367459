//! Measures how well a model predicts a text.
//!
//! `perplexity MODEL.gguf --text FILE [--window 512] [--threads N]` prints a line of JSON: the text's tokens
//! and a score for each scored token. The score is the natural logarithm of the token's probability, and the
//! likeliest token in its place. The text is cut into independent windows, each with the model's
//! begin-of-text token if there is one. The second half of each is scored, as in llama.cpp's perplexity
//! program.

#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::{collections::HashMap, path::Path};

use baton_engine::{
    Chunk, Model, Options,
    gguf::GgufFile,
    language::{Date, Language},
};

/// The logarithm of a token's probability, and the token with the largest logit, the first of equals.
fn score(logits: &[f32], token: u32) -> (f64, u32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (id, *logit);
        }
    }
    let largest = f64::from(best.1);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    (f64::from(logits[token as usize]) - largest - sum.ln(), best.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, options) = arguments.split_first().ok_or("a model's file is missing")?;
    let options: HashMap<&str, &str> =
        options.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let text = std::fs::read_to_string(options.get("--text").ok_or("--text is missing")?)?;
    let window: usize = options.get("--window").map_or(Ok(512), |window| window.parse())?;
    let mut settings = Options::default();
    if let Some(threads) = options.get("--threads") {
        settings.threads = threads.parse()?;
    }
    let file = GgufFile::open(Path::new(path))?;
    let language = Language::of_file(&file, Date::default())?;
    let mut model = Model::from_file(&file, &settings)?;
    let tokens = language.tokenizer().encode_text(&text);
    let (mut scores, mut likeliest) = (Vec::new(), Vec::new());
    for tokens in tokens.chunks_exact(window) {
        let mut tokens = tokens.to_vec();
        if let Some(begin) = language.tokenizer().begin() {
            tokens[0] = begin;
        }
        let (first, second) = tokens.split_at(window / 2);
        let mut sequence = model.sequence();
        model.step(&mut [Chunk { sequence: &mut sequence, tokens: first, logits: 0 }])?;
        let logits =
            model.step(&mut [Chunk { sequence: &mut sequence, tokens: second, logits: usize::MAX }])?;
        for (logits, token) in logits.rows().zip(&second[1..]) {
            let (score, best) = score(logits, *token);
            scores.push(score);
            likeliest.push(best);
        }
    }
    if scores.is_empty() {
        return Err(format!("the text has {} tokens, less than a window", tokens.len()).into());
    }
    let count = f64::from(u32::try_from(scores.len())?);
    println!(
        "{}",
        serde_json::json!({
            "perplexity": (-scores.iter().sum::<f64>() / count).exp(), "window": window,
            "begin": language.tokenizer().begin(), "tokens": *tokens, "scores": scores, "likeliest": likeliest,
        })
    );
    Ok(())
}
