//! Bytes and blobs of one turn when the session is short and when it is long.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use anyhow::{Context as _, ensure};
use baton_client::{ClientConfig, NewSession, TurnEvent, TurnInput};
use baton_proto::{ids::NodeId, limits::SEGMENT_TURNS};
use serde::Serialize;

use super::proxy;
use crate::{
    network::{EngineChoice, Network, NodeOptions},
    output,
};

/// Characters of a message; the echo engine answers with as many, so a record has about 2 KiB.
const MESSAGE_BYTES: usize = 900;

/// Store traffic of one turn, mean over the sixteen turns around it, so that every place in a segment counts once.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) turn: u64,
    pub(crate) bytes_up: f64,
    pub(crate) bytes_down: f64,
    pub(crate) blobs: f64,
}

/// Runs a session up to the greatest length, on two echo nodes in turn, through a counting proxy of the store.
pub(super) async fn measure(at: &[u64]) -> anyhow::Result<Vec<Cost>> {
    let half = SEGMENT_TURNS as u64 / 2;
    ensure!(at.is_sorted() && at.first().is_some_and(|first| *first >= half), "--at must rise, from 8 on");
    let folder = tempfile::tempdir()?;
    let options = NodeOptions {
        engine: EngineChoice::Echo,
        shards: 10,
        context_tokens: None,
        echo_delay_ms: 0,
        model_dir: None,
        extra: ["--turns-per-minute", "1000000"].map(str::to_owned).to_vec(),
    };
    let mut network = Network::start(folder.path(), 0, options).await?;
    let (url, counted, forwarding) = proxy::start(network.store_url()).await?;
    network.reach_store_by(&url);
    let nodes = [network.add_node(&[]).await?, network.add_node(&[]).await?];
    let mut config =
        ClientConfig::with_http(Some(&folder.path().join("client")), &url, &url, Some(&url), 10)?;
    config.bootstrap = network.addresses();
    let client = baton_client::Client::open(config).await?;
    let session = client.new_session(NewSession::default()).await?;

    let mut costs = Vec::new();
    let mut before = (0, 0, 0);
    let last = at.last().copied().unwrap_or_default() + half;
    for turn in 0..last {
        let edge = at.iter().find(|length| turn == **length - half || turn == **length + half);
        if let Some(length) = edge {
            settle(&client, session).await?;
            let now = (counted.up.load(Relaxed), counted.down.load(Relaxed), network.blob_count().await?);
            if turn == *length + half {
                costs.push(cost(*length, before, now));
            }
            before = now;
        }
        one(&client, session, turn, nodes).await.with_context(|| format!("turn {turn}"))?;
        if turn % 1000 == 999 {
            output::note(&format!("  {} turns", turn + 1));
        }
    }
    settle(&client, session).await?;
    let now = (counted.up.load(Relaxed), counted.down.load(Relaxed), network.blob_count().await?);
    costs.push(cost(last - half, before, now));
    client.shutdown(Duration::from_secs(5)).await;
    forwarding.abort();
    network.stop().await?;
    Ok(costs)
}

async fn settle(client: &baton_client::Client, session: baton_proto::ids::SessionId) -> anyhow::Result<()> {
    ensure!(client.wait_settled(session, Duration::from_secs(120)).await?, "background work did not end");
    Ok(())
}

async fn one(
    client: &baton_client::Client,
    session: baton_proto::ids::SessionId,
    turn: u64,
    nodes: [NodeId; 2],
) -> anyhow::Result<()> {
    let text: String =
        format!("turn {turn} ").chars().chain("word ".chars().cycle()).take(MESSAGE_BYTES).collect();
    let node = if turn.is_multiple_of(2) { nodes[0] } else { nodes[1] };
    let input = TurnInput { node: Some(node), allow_echo: true, ..TurnInput::user(text) };
    client.turn(session, input, |_: TurnEvent| {}).await?;
    Ok(())
}

fn cost(turn: u64, before: (u64, u64, u64), now: (u64, u64, u64)) -> Cost {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let mean = |before: u64, now: u64| (now - before) as f64 / SEGMENT_TURNS as f64;
    Cost {
        turn,
        bytes_up: mean(before.0, now.0),
        bytes_down: mean(before.1, now.1),
        blobs: mean(before.2, now.2),
    }
}
