//! The echo engine fulfils the contract of every engine.

use std::time::Duration;

use baton_node::{
    engine::{
        Engine, EngineError, EngineEvent, EngineKind, FinishReason, GenerateJob, Sampling,
        echo::{EchoConfig, EchoEngine, word_id},
    },
    prompt::{ChatMessage, Prompt, Role},
};
use tokio::runtime::Handle;

use crate::answer::{Answer, read};

fn job(text: &str, resume_tokens: Vec<u32>) -> GenerateJob {
    let messages = vec![
        ChatMessage::new(Role::System, "be brief"),
        ChatMessage::new(Role::User, "earlier"),
        ChatMessage::new(Role::Assistant, "echo: earlier"),
        ChatMessage::new(Role::User, text),
    ];
    GenerateJob { resume_tokens, ..GenerateJob::new(Prompt::new(messages), Sampling::default(), 512) }
}

async fn run(engine: &dyn Engine, job: GenerateJob) -> Result<Answer, EngineError> {
    let resumed = job.resume_tokens.len();
    read(engine.generate(job)?, resumed).await
}

fn echo_with(config: EchoConfig) -> EchoEngine {
    EchoEngine::new(&config, Handle::current())
}

fn echo() -> EchoEngine {
    echo_with(EchoConfig::default())
}

#[tokio::test]
async fn refuses_what_only_a_model_can_do() {
    let engine = echo();
    assert!(matches!(engine.constrain("{}"), Err(EngineError::Unsupported { .. })));
    assert!(!engine.info().reports_logprobs);
    let sampling = Sampling { logprobs: 1, ..Sampling::default() };
    let refused = engine.generate(GenerateJob { sampling, ..job("hi", vec![]) }).unwrap_err();
    assert!(matches!(refused, EngineError::Unsupported { .. }), "{refused:?}");
}

#[tokio::test]
async fn echoes_the_last_user_message_with_stable_ids_and_exact_counts() {
    let engine = echo();
    let answer = run(&engine, job("hello  big world", vec![])).await.unwrap();
    assert_eq!((answer.text.as_str(), answer.finish), ("echo: hello big world", FinishReason::Stop));
    assert_eq!(answer.ids, ["echo:", "hello", "big", "world"].map(word_id));
    assert_eq!(word_id("hello"), 0x3d16_8fea); // BLAKE3("hello") begins ea8f163d
    let count = engine.count(&job("hello  big world", vec![]).prompt).unwrap();
    assert_eq!(count, 8);
    assert_eq!((engine.info().name.as_str(), engine.info().kind), ("echo", EngineKind::Echo));
}

#[tokio::test]
async fn resumes_where_a_prefix_ends_and_refuses_a_foreign_one() {
    let engine = echo();
    let prefix: Vec<u32> = ["echo:", "a"].map(word_id).to_vec();
    let answer = run(&engine, job("a b c", prefix)).await.unwrap();
    assert_eq!((answer.ids, answer.text.as_str()), (vec![word_id("b"), word_id("c")], " b c"));
    for foreign in [vec![7], vec![0; 9]] {
        let refused = run(&engine, job("a b c", foreign)).await;
        assert_eq!(refused.unwrap_err(), EngineError::InvalidResume);
    }
}

#[tokio::test]
async fn honours_length_stop_strings_and_context() {
    let engine = echo();
    let short = GenerateJob { max_tokens: 2, ..job("a b c", vec![]) };
    let short = run(&engine, short).await.unwrap();
    assert_eq!((short.text.as_str(), short.finish), ("echo: a", FinishReason::Length));
    let sampling = Sampling { stop: vec!["b c".into()], ..Sampling::default() };
    let stopped = GenerateJob { sampling, ..job("a b c d", vec![]) };
    let stopped = run(&engine, stopped).await.unwrap();
    assert_eq!((stopped.text.as_str(), stopped.finish), ("echo: a ", FinishReason::StopString));
    let small = echo_with(EchoConfig { context_tokens: 8, ..EchoConfig::default() });
    let whole = run(&small, job("a", vec![])).await.unwrap();
    assert_eq!((whole.ids.len(), whole.finish), (2, FinishReason::Stop));
    let refused = run(&small, job("a b c", vec![])).await.unwrap_err();
    assert_eq!(refused, EngineError::ContextOverflow { needed: 9, limit: 8 });
}

fn slow() -> EchoConfig {
    EchoConfig { token_delay: Duration::from_secs(3600), queue_limit: 1, ..EchoConfig::default() }
}

#[tokio::test]
async fn answers_one_job_at_a_time_and_refuses_what_finds_no_place() {
    let engine = echo_with(slow());
    let ask = || engine.generate(job("a", vec![]));
    let mut first = ask().unwrap();
    assert_eq!(first.next().await, Some(EngineEvent::Started { input_tokens: 6 }));
    let mut waiting = ask().unwrap();
    assert_eq!(ask().unwrap_err(), EngineError::Busy { limit: 2 });
    drop(first);
    assert_eq!(waiting.next().await, Some(EngineEvent::Started { input_tokens: 6 }));
    let mut last = ask().unwrap();
    engine.shutdown();
    for stopped in [&mut waiting, &mut last] {
        assert_eq!(stopped.next().await, Some(EngineEvent::Failed(EngineError::ShutDown)));
    }
    assert_eq!(ask().unwrap_err(), EngineError::ShutDown);
}

#[tokio::test]
async fn a_cancel_interrupts_the_wait_before_a_token() {
    let engine = echo_with(slow());
    let job = job("a", vec![]);
    let cancel = job.cancel.clone();
    let mut handle = engine.generate(job).unwrap();
    assert_eq!(handle.next().await, Some(EngineEvent::Started { input_tokens: 6 }));
    cancel.cancel();
    assert!(matches!(handle.next().await, Some(EngineEvent::Done { finish: FinishReason::Cancelled, .. })));
}
