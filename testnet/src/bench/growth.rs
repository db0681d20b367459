//! Bytes, blobs and time of one turn in a short session and in a long one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, NewSession, TurnEvent, TurnInput};
use baton_proto::{
    ids::{NodeId, SessionId},
    limits::SEGMENT_TURNS,
};
use serde::Serialize;

use super::{
    Quantiles, SETTLE_TIMEOUT,
    proxy::{self, ByteCounts},
    settle, unlimited,
};
use crate::{
    network::{EngineChoice, Network},
    output,
    process::cpu_seconds,
};

/// Characters of a message; the echo engine answers with as many, so a record has about 2 KiB.
const MESSAGE_BYTES: usize = 900;
/// Turns between two lines about the progress.
const REPORT_TURNS: u64 = 1000;

/// Store traffic of one turn, mean over the sixteen turns around it, so that every place in a segment counts once.
///
/// Each turn begins when the previous turn is stored and published, as between people. The request carries no
/// blob, so a node that did not write the last blob gets it from the store.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) turn: u64,
    pub(crate) bytes_up: f64,
    pub(crate) bytes_down: f64,
    pub(crate) blobs: f64,
    /// Time of one turn up to its acceptance, in milliseconds: the median.
    pub(crate) turn_ms: f64,
    /// Processor time of a client that opens its home, goes on with the session by one turn and ends, in milliseconds:
    /// the mean of sixteen, the last of which make a snapshot.
    pub(crate) start_ms: f64,
}

/// Attempts that may fail while the session grows, such as at a node that still holds it. More failures mean that
/// the benchmark measures the nodes' limits.
const MAX_FAILED_ATTEMPTS: u64 = 100;

/// A session that grows.
struct GrowingSession {
    network: Network,
    config: ClientConfig,
    client: Client,
    session: SessionId,
    nodes: [NodeId; 2],
    counted: Arc<ByteCounts>,
    /// Failed attempts. Their cost must not be part of the measurement.
    failed: AtomicU64,
}

/// The counts up to a turn.
#[derive(Clone, Copy)]
struct StoreTraffic {
    up: u64,
    down: u64,
    blobs: u64,
    failed: u64,
}

/// Runs a session up to the greatest length, on two echo nodes in turn, through a counting proxy of the store.
pub(super) async fn measure(at: &[u64]) -> anyhow::Result<Vec<Cost>> {
    let half = SEGMENT_TURNS as u64 / 2;
    let apart = at.windows(2).all(|pair| matches!(pair, [one, next] if one + 4 * half <= *next));
    ensure!(
        apart && at.first().is_some_and(|first| *first >= half),
        "--at must rise by 32 or more, from 8 on"
    );
    let folder = tempfile::tempdir()?;
    let mut network = Network::start(folder.path(), 0, unlimited(EngineChoice::Echo, None)).await?;
    let (url, counted, forwarding) = proxy::start(network.store_url()).await?;
    network.reach_store_by(&url);
    let nodes = [network.add_node(&[]).await?, network.add_node(&[]).await?];
    let config = network.client_config(Some(&folder.path().join("client")))?;
    let client = Client::open(config.clone()).await?;
    let session = client.new_session(NewSession::default()).await?;
    let failed = AtomicU64::new(0);
    let growing = GrowingSession { network, config, client, session, nodes, counted, failed };

    let begun = Instant::now();
    let mut costs = Vec::new();
    let mut turn = 0;
    for length in at {
        while turn < length - half {
            growing.say(&growing.client, turn).await?;
            turn += 1;
            if turn.is_multiple_of(REPORT_TURNS) {
                output::note(&format!("  {turn} turns after {:.1} s", begun.elapsed().as_secs_f64()));
            }
        }
        costs.push(growing.around(*length, &mut turn).await?);
    }
    let GrowingSession { network, client, failed, .. } = growing;
    output::note(&format!(
        "  {} attempts failed and were repeated, none in the turns measured",
        failed.into_inner()
    ));
    client.shutdown(Duration::from_secs(5)).await;
    forwarding.abort();
    network.stop().await?;
    Ok(costs)
}

impl GrowingSession {
    /// Counts and times the turns of one segment's length around a turn.
    async fn around(&self, length: u64, turn: &mut u64) -> anyhow::Result<Cost> {
        settle(&self.client, self.session).await?;
        let before = self.counts().await?;
        let mut times = Vec::new();
        for _ in 0..SEGMENT_TURNS {
            times.push(self.say(&self.client, *turn).await?.as_secs_f64() * 1000.0);
            settle(&self.client, self.session).await?;
            *turn += 1;
        }
        let now = self.counts().await?;
        ensure!(now.failed == before.failed, "attempts failed in the turns around {length}");
        let start_ms = self.starts(turn).await?;
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let mean = |before: u64, now: u64| (now - before) as f64 / SEGMENT_TURNS as f64;
        Ok(Cost {
            turn: length,
            bytes_up: mean(before.up, now.up),
            bytes_down: mean(before.down, now.down),
            blobs: mean(before.blobs, now.blobs),
            turn_ms: Quantiles::of(&times).p50,
            start_ms,
        })
    }

    /// Processor time of one of sixteen clients that each go on with the session by one turn, in milliseconds.
    async fn starts(&self, turn: &mut u64) -> anyhow::Result<f64> {
        self.client.session(self.session).release();
        let before = cpu_seconds(std::process::id())?;
        for _ in 0..SEGMENT_TURNS {
            let client = Client::open(self.config.clone()).await?;
            self.say(&client, *turn).await?;
            settle(&client, self.session).await?;
            client.shutdown(SETTLE_TIMEOUT).await;
            *turn += 1;
        }
        #[expect(clippy::cast_precision_loss, reason = "there are sixteen")]
        let turns = SEGMENT_TURNS as f64;
        Ok((cpu_seconds(std::process::id())? - before) * 1000.0 / turns)
    }

    async fn counts(&self) -> anyhow::Result<StoreTraffic> {
        let (up, down) = (self.counted.up.load(Relaxed), self.counted.down.load(Relaxed));
        let failed = self.failed.load(Relaxed);
        Ok(StoreTraffic { up, down, blobs: self.network.blob_count().await?, failed })
    }

    /// One turn, on each node in turn; returns its time up to the acceptance.
    async fn say(&self, client: &Client, turn: u64) -> anyhow::Result<Duration> {
        let text: String =
            format!("turn {turn} ").chars().chain("word ".chars().cycle()).take(MESSAGE_BYTES).collect();
        let [even, odd] = self.nodes;
        let node = if turn.is_multiple_of(2) { even } else { odd };
        let input =
            TurnInput::user(text).with_route(|route| (route.node, route.allow_echo) = (Some(node), true));
        let begun = Instant::now();
        let on_event = |event: TurnEvent| {
            if let TurnEvent::AttemptFailed { reason, .. } = event {
                // The first failures tell the cause.
                if self.failed.fetch_add(1, Relaxed) < 3 {
                    output::note(&format!("  turn {turn}: an attempt failed: {reason}"));
                }
            }
        };
        let session = client.session(self.session);
        session.turn(input, on_event).await.with_context(|| format!("turn {turn}"))?;
        let failed = self.failed.load(Relaxed);
        ensure!(failed <= MAX_FAILED_ATTEMPTS, "{failed} attempts failed: the nodes' limits are in the way");
        Ok(begun.elapsed())
    }
}
