//! The echo engine fulfils the contract of every engine.

use std::time::Duration;

use baton_node::{
    engine::{
        Engine, EngineError, EngineEvent, EngineKind, FinishReason, GenerateJob, Sampling,
        echo::{EchoConfig, EchoEngine, word_id},
    },
    prompt::{ChatMessage, Prompt, Role},
};
use tokio_util::sync::CancellationToken;

fn job(text: &str, sampling: Sampling, resume_tokens: Vec<u32>) -> GenerateJob {
    let messages = vec![
        ChatMessage::new(Role::System, "be brief"),
        ChatMessage::new(Role::User, "earlier"),
        ChatMessage::new(Role::Assistant, "echo: earlier"),
        ChatMessage::new(Role::User, text),
    ];
    GenerateJob {
        prompt: Prompt::new(messages),
        sampling,
        resume_tokens,
        constraint: None,
        cache_key: None,
        cancel: CancellationToken::new(),
    }
}

async fn run(engine: &dyn Engine, job: GenerateJob) -> Result<(Vec<u32>, String, FinishReason), EngineError> {
    let mut handle = engine.generate(job)?;
    let (mut ids, mut text) = (Vec::new(), String::new());
    while let Some(event) = handle.next().await {
        match event {
            EngineEvent::Started { .. } | EngineEvent::Resumed { .. } => {}
            EngineEvent::Token { ids: more, text: piece, .. } => {
                ids.extend(more);
                text += &piece;
            }
            EngineEvent::Done { finish, .. } => return Ok((ids, text, finish)),
            EngineEvent::Failed(error) => return Err(error),
        }
    }
    panic!("no last event");
}

fn echo() -> EchoEngine {
    EchoEngine::new(&EchoConfig::default()).unwrap()
}

#[tokio::test]
async fn refuses_what_only_a_model_can_do() {
    let engine = echo();
    assert!(matches!(engine.constrain("{}"), Err(EngineError::Unsupported { .. })));
    assert!(!engine.reports_logprobs());
    let asked = Sampling { logprobs: 1, ..Sampling::default() };
    let refused = engine.generate(job("hi", asked, Vec::new())).unwrap_err();
    assert!(matches!(refused, EngineError::Unsupported { .. }), "{refused:?}");
}

#[tokio::test]
async fn echoes_the_last_user_message_with_stable_ids_and_exact_counts() {
    let engine = echo();
    let (ids, text, finish) =
        run(&engine, job("hello  big world", Sampling::default(), vec![])).await.unwrap();
    assert_eq!((text.as_str(), finish), ("echo: hello big world", FinishReason::Stop));
    assert_eq!(ids, ["echo:", "hello", "big", "world"].map(word_id));
    assert_eq!(word_id("hello"), 0x3d16_8fea); // BLAKE3("hello") begins ea8f163d
    let count = engine.count(&job("hello  big world", Sampling::default(), vec![]).prompt).unwrap();
    assert_eq!((count.tokens, count.exact), (8, true));
    assert_eq!((engine.info().name.as_str(), engine.info().kind), ("echo", EngineKind::Echo));
}

#[tokio::test]
async fn resumes_where_a_prefix_ends_and_refuses_a_foreign_one() {
    let engine = echo();
    let prefix: Vec<u32> = ["echo:", "a"].map(word_id).to_vec();
    let (ids, text, _) = run(&engine, job("a b c", Sampling::default(), prefix)).await.unwrap();
    assert_eq!((ids, text.as_str()), (vec![word_id("b"), word_id("c")], " b c"));
    for foreign in [vec![7], vec![0; 9]] {
        let refused = run(&engine, job("a b c", Sampling::default(), foreign)).await;
        assert_eq!(refused.unwrap_err(), EngineError::InvalidResume);
    }
}

#[tokio::test]
async fn honours_length_stop_strings_and_context() {
    let engine = echo();
    let short = Sampling { max_tokens: 2, ..Sampling::default() };
    let (_, text, finish) = run(&engine, job("a b c", short, vec![])).await.unwrap();
    assert_eq!((text.as_str(), finish), ("echo: a", FinishReason::Length));
    let stop = Sampling { stop: vec!["b c".into()], ..Sampling::default() };
    let (_, text, finish) = run(&engine, job("a b c d", stop, vec![])).await.unwrap();
    assert_eq!((text.as_str(), finish), ("echo: a ", FinishReason::StopString));
    let small = EchoEngine::new(&EchoConfig { context_tokens: 8, ..EchoConfig::default() }).unwrap();
    let (ids, _, finish) = run(&small, job("a", Sampling::default(), vec![])).await.unwrap();
    assert_eq!((ids.len(), finish), (2, FinishReason::Stop));
    let refused = run(&small, job("a b c", Sampling::default(), vec![])).await.unwrap_err();
    assert_eq!(refused, EngineError::ContextOverflow { needed: 9, limit: 8 });
}

#[tokio::test]
async fn a_cancel_interrupts_the_wait_before_a_token() {
    let config = EchoConfig { token_delay: Duration::from_secs(3600), ..EchoConfig::default() };
    let engine = EchoEngine::new(&config).unwrap();
    let job = job("a", Sampling::default(), vec![]);
    let cancel = job.cancel.clone();
    let mut handle = engine.generate(job).unwrap();
    assert_eq!(handle.next().await, Some(EngineEvent::Started { input_tokens: 6 }));
    cancel.cancel();
    assert!(matches!(handle.next().await, Some(EngineEvent::Done { finish: FinishReason::Cancelled, .. })));
}
