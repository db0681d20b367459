//! The native engine with the real default model. Fetches it through the Python package index if it is absent.

mod common {
    use super::*;
}
use baton_node::{
    engine::{
        Engine, EngineEvent, GenerateJob, Sampling,
        native::{NativeConfig, NativeEngine},
    },
    prompt::{ChatMessage, Prompt, Role},
};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn quick() {
    let path = std::path::PathBuf::from(std::env::var("HOME").unwrap())
        .join(".cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let t = Instant::now();
    let engine = NativeEngine::load(&NativeConfig::new("smol", path)).unwrap();
    println!(
        "load {:?} rss {}",
        t.elapsed(),
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM"))
            .collect::<String>()
    );
    for q in [
        "What is the capital of France?",
        "What is the capital of Italy?",
        "Write the numbers from one to five.",
        "Say hello to the world.",
        &"The quick brown fox jumps over the lazy dog. ".repeat(50),
    ] {
        let prompt = Prompt::new(vec![
            ChatMessage::new(Role::System, "You are a helpful assistant."),
            ChatMessage::new(Role::User, q),
        ]);
        let t = Instant::now();
        let c = engine.count(&prompt).unwrap();
        println!("count {c:?} {:?}", t.elapsed());
        let mut h = engine
            .generate(GenerateJob {
                prompt,
                sampling: Sampling { max_tokens: 24, ..Sampling::default() },
                resume_tokens: vec![],
                cancel: CancellationToken::new(),
            })
            .unwrap();
        let mut out = String::new();
        while let Some(e) = h.next().await {
            match e {
                EngineEvent::Token { text, .. } => out += &text,
                e => println!("{e:?}"),
            }
        }
        println!("{out:?}");
    }
    println!(
        "rss {}",
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM"))
            .collect::<String>()
    );
}
