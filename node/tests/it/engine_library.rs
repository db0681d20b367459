//! Models computed by a general library, through the same interface as all others.

use std::{fs, time::Duration};

use baton_engine::gguf::DType;
use baton_node::{
    engine::{
        Engine, EngineError, EngineEvent, EngineKind, FinishReason, GenerateJob, Sampling,
        native::{LoadError, NativeConfig, NativeEngine},
    },
    models::Shape,
    prompt::{ChatMessage, Prompt, Role},
};
use tempfile::TempDir;

use crate::{answer::read, small, support};

fn config(folder: &TempDir, file: &support::writer::Writer) -> NativeConfig {
    let path = folder.path().join("small.gguf");
    fs::write(&path, file.finish()).unwrap();
    NativeConfig::new("small", path)
}

fn job(question: &str, max_tokens: u32) -> GenerateJob {
    let sampling = Sampling { temperature: 0.9, seed: 5, logprobs: 2, ..Sampling::default() };
    GenerateJob::new(Prompt::new(vec![ChatMessage::new(Role::User, question)]), sampling, max_tokens)
}

#[tokio::test]
async fn every_architecture_answers_one_after_the_other_and_says_that_nobody_can_check_it() {
    for name in small::NAMES {
        let folder = tempfile::tempdir().unwrap();
        let engine = NativeEngine::load(&config(&folder, &small::model(name))).unwrap();
        assert_eq!(
            (engine.info().kind, engine.info().context_tokens),
            (EngineKind::Library, 1_024),
            "{name}"
        );
        let alone = read(engine.generate(job("What is it?", 20)).unwrap(), 0).await.unwrap();
        assert!(alone.reports.iter().all(|report| report.len() == 3), "{name}");
        assert_eq!(alone.reports.len(), alone.ids.len(), "{name}");
        assert!(alone.finish == FinishReason::Stop || alone.ids.len() == 20, "{name}: {alone:?}");
        let other = engine.generate(job("Something else, and longer than the other one.", 9)).unwrap();
        let again = engine.generate(job("What is it?", 20)).unwrap();
        read(other, 0).await.unwrap();
        let again = read(again, 0).await.unwrap();
        assert_eq!((&again.ids, &again.reports), (&alone.ids, &alone.reports), "{name}: nothing is left");

        let mut resumed = job("What is it?", 20);
        resumed.resume_tokens = alone.ids[..3].to_vec();
        let rest = read(engine.generate(resumed).unwrap(), 3).await.unwrap();
        assert_eq!((rest.ids.as_slice(), rest.finish), (&alone.ids[3..], alone.finish), "{name}");
    }
}

#[tokio::test]
async fn schemas_stops_and_cancels_are_those_of_every_model() {
    let folder = tempfile::tempdir().unwrap();
    let engine = NativeEngine::load(&config(&folder, &small::model("phi3"))).unwrap();
    let mut answer = job("Is it so?", 20);
    answer.constraint = Some(engine.constrain(r#"{"type": "boolean"}"#).unwrap());
    let answer = read(engine.generate(answer).unwrap(), 0).await.unwrap();
    assert!(["true", "false"].contains(&answer.text.trim()), "{answer:?}");
    assert_eq!(answer.finish, FinishReason::Stop);

    let mut long = job("Go on.", 900);
    long.sampling.temperature = 0.0;
    let cancel = long.cancel.clone();
    let mut handle = engine.generate(long).unwrap();
    while !matches!(handle.next().await, Some(EngineEvent::Token { .. })) {}
    cancel.cancel();
    while let Some(event) = handle.next().await {
        let is_cancelled = matches!(event, EngineEvent::Done { finish: FinishReason::Cancelled, .. });
        assert!(is_cancelled || matches!(event, EngineEvent::Token { .. }), "{event:?}");
    }
    let most = engine.generate(job(&"so ".repeat(400), 9)).unwrap();
    assert!(matches!(read(most, 0).await, Err(EngineError::ContextOverflow { limit: 1_024, .. })));
    // The load is counted after each step, so the end arrives a moment earlier.
    let idle = || (engine.load().running, engine.load().waiting) == (0, 0);
    let counted = async {
        while !idle() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), counted).await.is_ok(), "{:?}", engine.load());
    assert!(engine.load().kv_budget > 0);
}

#[test]
fn what_the_library_would_pass_over_is_refused_and_its_memory_is_reckoned_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut scaled = small::model("phi3");
    scaled.string("phi3.rope.scaling.type", "longrope");
    let refused = NativeEngine::load(&config(&folder, &scaled)).err().unwrap();
    assert!(matches!(refused, LoadError::Refused { .. }));
    let text = refused.to_string();
    assert!(
        text.contains("phi3") && text.contains("rope.scaling.type") && text.contains("proxied"),
        "{text}"
    );

    let found = config(&folder, &small::model("phi3"));
    let shape = Shape::read(&found.model_path).unwrap();
    // Embeddings as single-precision numbers.
    assert_eq!(shape.library_bytes, Some(72 * 64 * 4));
    assert_eq!(shape.footprint(1), shape.file_bytes + 72 * 64 * 4 + (1 << 20));
    // Weights with two bytes in the file take four.
    let half = small::Small { dtype: DType::F16, ..small::Small::new("phi3") };
    let half = Shape::read(&config(&folder, &half.writer()).model_path).unwrap();
    assert_eq!(
        half.library_bytes,
        Some(72 * 64 * 4 + 2 * (72 * 64 + 3 * (64 * (64 + 64) + 64 * 64 + 3 * 64 * 128)))
    );
    fs::write(&found.model_path, small::model("phi3").finish()).unwrap();
    let few = NativeConfig { kv_bytes: 3 * 32 * 2 * 3 * 2 * 16 * 4, ..found };
    assert_eq!(
        NativeEngine::load(&few).unwrap().info().context_tokens,
        96,
        "as many tokens as its memory holds"
    );
    let none = NativeConfig { kv_bytes: 100, ..few };
    assert!(matches!(NativeEngine::load(&none), Err(LoadError::KvBudget { .. })));
}
