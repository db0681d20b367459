//! First-token time of a network turn minus that of the bare engine, alternating in one run.

use std::{path::PathBuf, sync::Arc, time::Instant};

use anyhow::{Context as _, bail};
use baton_client::{NewSession, TurnInput};
use baton_node::{
    engine::{
        Engine, EngineEvent, GenerateJob, Sampling,
        echo::{EchoConfig, EchoEngine},
    },
    prompt::{ChatMessage, Prompt, Role},
};
use serde::Serialize;
use tokio::runtime::Handle;

use super::{BenchTurnArgs, Quantiles, ms_since, timed_turn, unlimited};
use crate::network::{EngineChoice, Network, native_engine};

/// Turns of one session before the next begins, so that prompts stay short and comparable.
const SESSION_TURNS: usize = 4;
/// Turns before measuring: connections, caches and clock rates settle.
const WARM_UP: usize = 4;
const ANSWER_TOKENS: u32 = 4;
const SYSTEM: &str = "You are a helpful assistant.";

/// The network's overhead.
#[derive(Debug, Serialize)]
pub(crate) struct Overhead {
    pub(crate) turns: usize,
    pub(crate) network_first_token_ms: Quantiles,
    pub(crate) bare_first_token_ms: Quantiles,
    pub(crate) added_first_token_ms: Quantiles,
    /// From sending to the accepted turn.
    pub(crate) network_turn_ms: Quantiles,
}

/// Measures one engine: each prompt goes to a node over the network, then to the bare engine in this process.
pub(super) async fn measure(
    choice: EngineChoice,
    turns: usize,
    args: &BenchTurnArgs,
) -> anyhow::Result<Overhead> {
    let folder = tempfile::tempdir()?;
    let options = unlimited(choice, args.models.model_dir.clone());
    let network = Network::start(folder.path(), 2, options).await?;
    let nodes: Vec<_> = network.running().map(|node| node.node).collect();
    let bare = bare_engine(choice, args.models.model_dir.clone()).await?;
    let client = crate::demo::open_client(&network, &folder.path().join("client")).await?;

    let mut samples: Vec<[f64; 4]> = Vec::with_capacity(turns);
    let mut session = None;
    let mut messages = Vec::new();
    for turn in 0..WARM_UP + turns {
        if turn % SESSION_TURNS == 0 {
            session = Some(client.new_session(NewSession::with_system(SYSTEM)).await?);
            messages = vec![ChatMessage::new(Role::System, SYSTEM)];
        }
        let text = format!("This is message {turn}. Please answer with one word.");
        messages.push(ChatMessage::new(Role::User, text.clone()));
        let input = TurnInput { max_output_tokens: ANSWER_TOKENS, ..TurnInput::user(text) };
        let input = input.with_route(|route| {
            route.node = nodes.get(turn % nodes.len()).copied();
            route.allow_echo = choice == EngineChoice::Echo;
        });
        let timed = timed_turn(&client, session.context("a session was begun")?, input).await?;
        let alone = bare_first_token_ms(bare.as_ref(), messages.clone()).await?;
        messages.push(ChatMessage::new(Role::Assistant, timed.outcome.text.as_str()));
        if turn >= WARM_UP {
            samples.push([timed.first_text_ms, alone, timed.first_text_ms - alone, timed.whole_ms]);
        }
    }
    bare.shutdown();
    client.shutdown(std::time::Duration::from_secs(5)).await;
    network.stop().await?;
    let column = |index: usize| {
        let values: Vec<f64> = samples.iter().filter_map(|sample| sample.get(index).copied()).collect();
        Quantiles::of(&values)
    };
    Ok(Overhead {
        turns,
        network_first_token_ms: column(0),
        bare_first_token_ms: column(1),
        added_first_token_ms: column(2),
        network_turn_ms: column(3),
    })
}

async fn bare_engine(choice: EngineChoice, model_dir: Option<PathBuf>) -> anyhow::Result<Arc<dyn Engine>> {
    if choice == EngineChoice::Echo {
        return Ok(Arc::new(EchoEngine::new(&EchoConfig::default(), Handle::current())));
    }
    native_engine(model_dir).await
}

async fn bare_first_token_ms(engine: &dyn Engine, messages: Vec<ChatMessage>) -> anyhow::Result<f64> {
    let job = GenerateJob::new(Prompt::new(messages), Sampling::default(), ANSWER_TOKENS);
    let begun = Instant::now();
    let mut handle = engine.generate(job)?;
    let mut first = None;
    loop {
        match handle.next().await {
            Some(EngineEvent::Token { text, .. }) if first.is_none() && !text.is_empty() => {
                first = Some(ms_since(begun));
            }
            Some(EngineEvent::Failed(error)) => return Err(error.into()),
            Some(EngineEvent::Done { .. }) => break,
            Some(_) => {}
            None => bail!("the engine ended without an answer"),
        }
    }
    first.context("an answer has text")
}
