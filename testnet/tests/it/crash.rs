//! The crash matrix, with real processes: `kill -9` of the serving node at each step of a turn, with and
//! without a restart. No accepted turn is lost or applied twice, and the conversation goes on.
//!
//! Each step runs once; a printed seed decides on the restart. `BATON_FULL=1` runs every step both ways, and
//! `BATON_SEED` repeats a seed.

use std::{
    collections::VecDeque,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use baton_client::{Client, NewSession, OtherNodes, RouteOptions, TurnEvent, TurnInput};
use baton_proto::ids::NodeId;
use baton_testnet::network::{Network, NodeOptions};
use parking_lot::Mutex;

/// Steps of a turn at which a node can pause to be killed.
const STEPS: [&str; 8] =
    ["accepted", "fetched", "mid-token", "sealed", "journaled", "put-sent", "put-done", "receipt-sent"];
/// Networks at once; a cell mostly waits for processes to start and for failures to be detected.
const LANES: usize = 4;
const PAUSE_TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

fn options() -> NodeOptions {
    NodeOptions { echo_delay_ms: 5, ..NodeOptions::echo() }
}

async fn open_client(network: &Network, home: &Path) -> Client {
    let mut config = network.client_config(Some(home)).unwrap();
    config.timeouts.author_stores = Duration::from_secs(1);
    Client::open(config).await.unwrap()
}

fn say(text: &str, node: Option<NodeId>) -> TurnInput {
    TurnInput::user(text).with_route(|route| (route.node, route.allow_echo) = (node, true))
}

/// One cell: the node dies at `step`, and restarts or not.
async fn check(network: &mut Network, home: &Path, step: &str, restart: bool) {
    let victim = network.add_node(&["--pause-at", step]).await.unwrap();
    let index = network.index_of(victim).unwrap();
    let client = open_client(network, home).await;
    let session = client.new_session(NewSession::default()).await.unwrap();
    let steady = network.running().next().map(|node| node.node);
    client.session(session).turn(say("before", steady), |_: TurnEvent| {}).await.unwrap();

    let text = format!("the turn that dies when {step} {}", "and goes on for a while ".repeat(4));
    let mut input = say(&text, Some(victim));
    input.route.max_attempts = 1;
    let running = client.clone();
    let turn = tokio::spawn(async move { running.session(session).turn(input, |_: TurnEvent| {}).await });
    let process = &mut network.nodes[index].as_mut().unwrap().process;
    let paused = process.wait_event("paused", PAUSE_TIMEOUT).await.unwrap();
    assert_eq!(paused["step"], step);
    network.kill_node(victim).await.unwrap();
    if restart {
        let same = network.start_node(index, &[]).await.unwrap();
        assert_eq!(same, victim, "a node keeps its key");
    }
    let accepted = turn.await.unwrap().is_ok();

    // The client restarts as well; its journal holds all that it needs.
    client.shutdown(Duration::from_secs(2)).await;
    let client = open_client(network, home).await;
    if !accepted {
        let options = RouteOptions { allow_echo: true, ..RouteOptions::default() };
        let resumed = client.session(session).resume(options, |_: TurnEvent| {}).await.unwrap();
        assert!(resumed.is_some(), "{step}: the turn was neither accepted nor pending");
    }
    client.session(session).turn(say("after", None), |_: TurnEvent| {}).await.unwrap();

    let history = client.session(session).history().await.unwrap();
    let said: Vec<&str> =
        history.iter().map(|view| view.turn.record.as_ref().unwrap().messages[0].text.as_str()).collect();
    assert_eq!(said, ["before", text.as_str(), "after"], "{step}, restart {restart}");
    assert!(client.session(session).wait_settled(SETTLE_TIMEOUT).await.unwrap(), "{step}: not settled");
    let report = client.session(session).verify(true).await.unwrap();
    assert!(report.is_good(), "{step}, restart {restart}: {report:?}");
    assert_eq!((report.turns, report.from_own), (3, 0), "{step}, restart {restart}: {report:?}");
    client.shutdown(Duration::from_secs(2)).await;
    if network.index_of(victim).is_some() {
        network.kill_node(victim).await.unwrap();
    }
}

/// Steps with their restarts. The bits of the seed choose; its complement is the other half.
fn cells() -> VecDeque<(&'static str, bool)> {
    if std::env::var_os("BATON_FULL").is_some_and(|full| full == "1") {
        return STEPS.into_iter().flat_map(|step| [(step, false), (step, true)]).collect();
    }
    let seed = match std::env::var("BATON_SEED") {
        Ok(seed) => seed.parse::<u8>().expect("BATON_SEED is a number from 0 to 255"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().to_le_bytes()[1],
    };
    eprintln!("crash matrix: BATON_SEED={seed} (each bit is a step, set where the node restarts)");
    STEPS.into_iter().enumerate().map(|(bit, step)| (step, seed >> bit & 1 == 1)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_at_any_step_loses_no_turn_and_repeats_none() {
    let folder = tempfile::tempdir().unwrap();
    let left = Arc::new(Mutex::new(cells()));
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        let (left, folder) = (left.clone(), folder.path().join(format!("lane-{lane}")));
        lanes.spawn(async move {
            std::fs::create_dir(&folder).unwrap();
            let mut network = Network::start(&folder, 1, options()).await.unwrap();
            let next = || left.lock().pop_front();
            while let Some((step, restart)) = next() {
                let home = folder.join(format!("client-{step}-{restart}"));
                check(&mut network, &home, step, restart).await;
            }
            network.stop().await.unwrap();
        });
    }
    while let Some(ended) = lanes.join_next().await {
        ended.unwrap();
    }
    assert!(left.lock().is_empty(), "every cell ran");
}

/// All nodes die while the client has connections to them: nothing tells it so, and it asks none in vain for long.
#[tokio::test(flavor = "multi_thread")]
async fn when_every_node_is_dead_a_turn_ends_within_seconds_and_names_each() {
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::start(folder.path(), 3, options()).await.unwrap();
    let client = open_client(&network, &folder.path().join("client")).await;
    let session = client.new_session(NewSession::default()).await.unwrap();
    client.session(session).turn(say("before", None), |_: TurnEvent| {}).await.unwrap();
    let nodes: Vec<NodeId> = network.running().map(|node| node.node).collect();
    let known_by = Instant::now() + Duration::from_secs(60);
    while client.nodes().await.len() < nodes.len() {
        assert!(Instant::now() < known_by, "the client knows all nodes");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for node in &nodes {
        network.kill_node(*node).await.unwrap();
    }

    // The first time, all were there a moment ago; then all count as gone.
    let options = RouteOptions { allow_echo: true, ..RouteOptions::default() };
    for time in ["first", "second"] {
        let begun = Instant::now();
        let mut silences = Vec::new();
        let on_event = |event: TurnEvent| {
            if let TurnEvent::NoAnswerYet { others, .. } = event {
                silences.push(others);
            }
        };
        let ended = match time {
            "first" => client.session(session).turn(say("after", None), on_event).await.map(drop),
            _ => client.session(session).resume(options.clone(), on_event).await.map(drop),
        };
        let took = begun.elapsed();
        let error = ended.unwrap_err().to_string();
        for node in &nodes {
            assert!(error.contains(&node.to_string()[..8]), "{time}: {node} is not named: {error}");
        }
        // Six seconds, and some for a busy machine; it was 45.
        assert!(took < Duration::from_secs(15), "{time}: {took:?}: {error}");
        // A dial that a background check began may end at once; no longer wait is without a word.
        let is_short = took < Duration::from_secs(2);
        assert!(
            is_short || silences.contains(&OtherNodes::Silent(2)),
            "{time}: {took:?}: {silences:?}: {error}"
        );
    }
    assert!(client.session(session).info().await.unwrap().pending, "the message is kept");
    client.shutdown(Duration::from_secs(2)).await;
    network.stop().await.unwrap();
}
