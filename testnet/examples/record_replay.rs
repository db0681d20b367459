//! Records the conversation that `node/tests/it/default_model/replay.rs` recomputes.
//!
//! `record_replay FOLDER` starts two nodes on the default model, runs six turns with them, and writes export,
//! memory and schema into the folder.

#![allow(clippy::print_stderr, reason = "a program for the command line")]

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use baton_client::{NewSession, OwnMemory, TurnEvent, TurnInput};
use baton_keys::SecretSigningKey;
use baton_proto::{
    export::ExportMemory,
    memory::MemoryItem,
    record::RecordKind,
    turn::{Sampling, TokenBias},
};
use baton_testnet::network::{EngineChoice, Network, NodeOptions};

const SCHEMA: &str = r#"{"type":"object","properties":{"city":{"type":"string","maxLength":20},"people":{"type":"integer"}},"required":["city","people"],"additionalProperties":false}"#;

fn turns() -> Vec<TurnInput> {
    let ask = |text: &str, tokens, sampling| TurnInput {
        max_output_tokens: tokens,
        sampling,
        ..TurnInput::user(text)
    };
    let greedy = Sampling::default;
    let drawn = Sampling {
        temperature: 0.8,
        top_p: 0.95,
        top_k: 40,
        min_p: 0.02,
        repetition_penalty: 1.1,
        seed: 7,
        ..Sampling::default()
    };
    let penalised = Sampling {
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        token_biases: vec![TokenBias { token: 30, bias: -100.0 }, TokenBias { token: 253, bias: 1.5 }],
        ..drawn.clone()
    };
    let item = MemoryItem {
        text: "The user's dog is called Biscuit and is afraid of thunder.".to_owned(),
        source: "2026-11-02, about the weather".to_owned(),
        time_ms: 1_793_600_000_000,
    };
    let memory = OwnMemory { signer: SecretSigningKey::generate(), items: vec![item] };
    vec![
        ask("What is the capital of France?", 24, greedy()),
        ask("Tell me something about the sea.", 96, drawn),
        TurnInput {
            json_schema: Some(SCHEMA.to_owned()),
            ..ask("Name a large city and how many live there.", 64, greedy())
        },
        ask("What should I do with my dog tonight? A storm is coming.", 64, penalised)
            .with_route(|route| route.memory = Some(memory)),
        TurnInput {
            kind: RecordKind::Edit,
            supersedes_from: Some(3),
            ..ask("What is a good name for a dog?", 40, greedy())
        },
        ask(
            "Count from one to five, in words.",
            48,
            Sampling { stop: vec!["four".to_owned(), "Four".to_owned()], ..greedy() },
        ),
    ]
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let out = std::env::args().nth(1).context("name a folder")?;
    let out = Path::new(&out);
    let folder = tempfile::tempdir()?;
    let network = Network::start(folder.path(), 2, NodeOptions::new(EngineChoice::Native)).await?;
    let client = network.client(&folder.path().join("client")).await?;
    let session = client.new_session(NewSession::with_system("You are a helpful assistant.")).await?;
    let nodes: Vec<_> = network.running().map(|node| node.node).collect();
    for (index, mut input) in turns().into_iter().enumerate() {
        input.route.node = nodes.get(index % nodes.len()).copied();
        let outcome = client.session(session).turn(input, |_: TurnEvent| {}).await?;
        eprintln!("{}: {:?} {:?}", outcome.seq, outcome.receipt.tokens, outcome.text);
        ensure!(
            client.session(session).wait_settled(Duration::from_secs(60)).await?,
            "turn {index} is stored"
        );
    }
    let history = client.session(session).history().await?.into_iter();
    let memory: Vec<ExportMemory> = history
        .map(|view| ExportMemory { seq: view.turn.link.seq, items: view.memory })
        .filter(|one| !one.items.is_empty())
        .collect();
    std::fs::write(out.join("export.json"), client.session(session).export(false).await?.as_bytes())?;
    std::fs::write(out.join("memory.json"), serde_json::to_vec(&memory)?)?;
    std::fs::write(out.join("schema.json"), SCHEMA)?;
    client.shutdown(Duration::from_secs(5)).await;
    network.stop().await
}
