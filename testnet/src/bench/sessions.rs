//! Processor time of a client's turn while few sessions are open, and while many are.
//!
//! The node and the store are processes of their own, so the processor time of this process is the client's.

use std::time::Duration;

use anyhow::Context as _;
use baton_client::{Client, NewSession, TurnInput};
use baton_proto::ids::SessionId;
use serde::Serialize;

use super::{settle, unlimited};
use crate::{
    network::{EngineChoice, Network},
    output,
    process::cpu_seconds,
};

/// Sessions of the comparison with few: more than have a network identity at a time, so that each turn makes one, as among
/// many.
const FEW: usize = 16;
/// Sessions that are open in the end.
const MANY: usize = 500;
/// Turns of each measurement.
const TURNS: u32 = 200;

/// Milliseconds of processor time for a turn with its background work.
#[derive(Debug, Serialize)]
pub(super) struct SessionsCost {
    /// Sessions that are open in the end.
    open: usize,
    /// Of a turn in one session, while few are open.
    one_of_few_ms: f64,
    /// Of a turn in the same session, while all are open.
    one_of_many_ms: f64,
    /// Of turns in few sessions, one after the other.
    around_few_ms: f64,
    /// Of turns in all sessions, one after the other.
    around_many_ms: f64,
    /// The greater of both costs with many over that with few.
    ratio: f64,
}

/// Measures on one echo node.
pub(super) async fn measure() -> anyhow::Result<SessionsCost> {
    let folder = tempfile::tempdir()?;
    let network = Network::start(folder.path(), 1, unlimited(EngineChoice::Echo, None)).await?;
    let client = network.client(&folder.path().join("client")).await?;
    let mut sessions = Vec::new();
    open(&client, &mut sessions, FEW).await?;
    let first = sessions.first().copied().into_iter().collect::<Vec<_>>();
    let one_of_few_ms = per_turn(&client, &first).await?;
    let around_few_ms = per_turn(&client, &sessions).await?;
    open(&client, &mut sessions, MANY).await?;
    let one_of_many_ms = per_turn(&client, &first).await?;
    let around_many_ms = per_turn(&client, &sessions).await?;
    client.shutdown(Duration::from_secs(5)).await;
    network.stop().await?;
    let ratio = (one_of_many_ms / one_of_few_ms).max(around_many_ms / around_few_ms);
    Ok(SessionsCost {
        open: sessions.len(),
        one_of_few_ms,
        one_of_many_ms,
        around_few_ms,
        around_many_ms,
        ratio,
    })
}

/// Opens further sessions, each with a turn.
async fn open(client: &Client, sessions: &mut Vec<SessionId>, count: usize) -> anyhow::Result<()> {
    while sessions.len() < count {
        let session = client.new_session(NewSession::default()).await?;
        say(client, session).await?;
        sessions.push(session);
    }
    output::note(&format!("  {count} sessions are open"));
    Ok(())
}

/// Milliseconds of processor time of a turn, over turns in these sessions by turns.
async fn per_turn(client: &Client, sessions: &[SessionId]) -> anyhow::Result<f64> {
    let before = cpu_seconds(std::process::id())?;
    let mut next = sessions.iter().cycle();
    for _ in 0..TURNS {
        say(client, *next.next().context("a session is open")?).await?;
    }
    Ok((cpu_seconds(std::process::id())? - before) * 1000.0 / f64::from(TURNS))
}

/// One turn with its background work.
async fn say(client: &Client, session: SessionId) -> anyhow::Result<()> {
    let input = TurnInput::user("a few words").with_route(|route| route.allow_echo = true);
    client.session(session).turn(input, |_| {}).await?;
    settle(client, session).await
}
