//! The crash matrix, with real processes: `kill -9` of the serving node at each step of a turn, with and without a
//! restart. No accepted turn is lost, none is applied twice, and the conversation goes on.
#![expect(clippy::unwrap_used, reason = "helpers of a test, where a failure should panic where it happens")]

use std::{path::Path, time::Duration};

use baton_client::{Client, ClientConfig, NewSession, ResumeOptions, TurnEvent, TurnInput};
use baton_proto::ids::NodeId;
use baton_testnet::network::{EngineChoice, Network, NodeOptions};

/// Steps of a turn at which a node can be made to wait for its death.
const STEPS: [&str; 8] =
    ["accepted", "fetched", "mid-token", "sealed", "journaled", "put-sent", "put-done", "receipt-sent"];
const PAUSE_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

fn options() -> NodeOptions {
    NodeOptions {
        engine: EngineChoice::Echo,
        shards: 10,
        context_tokens: None,
        echo_delay_ms: 5,
        model_dir: None,
        extra: Vec::new(),
    }
}

async fn open_client(network: &Network, home: &Path) -> Client {
    let url = network.store_url();
    let mut config = ClientConfig::with_http(Some(home), url, url, Some(url), 10).unwrap();
    config.bootstrap = network.addresses();
    config.timeouts.author_stores = Duration::from_secs(1);
    Client::open(config).await.unwrap()
}

fn say(text: &str, node: Option<NodeId>) -> TurnInput {
    TurnInput { node, allow_echo: true, ..TurnInput::user(text) }
}

/// One cell: the node dies at `step`, and comes back or not. Returns the number of turns afterwards.
async fn check(network: &mut Network, home: &Path, step: &str, restart: bool) {
    let victim = network.add_node(&["--pause-at".to_owned(), step.to_owned()]).await.unwrap();
    let index = network.index_of(victim).unwrap();
    let client = open_client(network, home).await;
    let session = client.new_session(NewSession::default()).await.unwrap();
    let steady = network.running().next().map(|node| node.node);
    client.turn(session, say("before", steady), |_: TurnEvent| {}).await.unwrap();

    let text = format!("the turn that dies when {step} {}", "and goes on for a while ".repeat(4));
    let input = TurnInput { max_attempts: 1, ..say(&text, Some(victim)) };
    let running = client.clone();
    let turn = tokio::spawn(async move { running.turn(session, input, |_: TurnEvent| {}).await });
    let process = &mut network.nodes[index].as_mut().unwrap().process;
    let paused = process.wait_event("paused", PAUSE_TIMEOUT).await.unwrap();
    assert_eq!(paused["step"], step);
    network.kill_node(victim).await.unwrap();
    if restart {
        let same = network.start_node(index, &[]).await.unwrap();
        assert_eq!(same, victim, "a node keeps its key");
    }
    let accepted = turn.await.unwrap().is_ok();

    // The client starts again as well: what it needs is in its journal.
    client.shutdown(Duration::from_secs(2)).await;
    let client = open_client(network, home).await;
    if !accepted {
        let options = ResumeOptions { allow_echo: true, ..ResumeOptions::default() };
        let resumed = client.resume(session, options, |_: TurnEvent| {}).await.unwrap();
        assert!(resumed.is_some(), "{step}: the turn was neither accepted nor pending");
    }
    client.turn(session, say("after", None), |_: TurnEvent| {}).await.unwrap();

    let history = client.history(session).await.unwrap();
    let said: Vec<&str> =
        history.iter().map(|view| view.turn.record.as_ref().unwrap().messages[0].text.as_str()).collect();
    assert_eq!(said, ["before", text.as_str(), "after"], "{step}, restart {restart}");
    assert!(client.wait_settled(session, SETTLE_TIMEOUT).await.unwrap(), "{step}: not settled");
    client.verify(session, true).await.unwrap();
    client.shutdown(Duration::from_secs(2)).await;
    if network.index_of(victim).is_some() {
        network.kill_node(victim).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_at_any_step_loses_no_turn_and_repeats_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::start(folder.path(), 1, options()).await.unwrap();
    for restart in [false, true] {
        for step in STEPS {
            let home = folder.path().join(format!("client-{step}-{restart}"));
            check(&mut network, &home, step, restart).await;
        }
    }
    network.stop().await.unwrap();
}
