//! The honest clients of a flood: their sessions, their turns, and the times that they wait.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, ClientConfig, NewSession, QuotaHolder, TurnEvent, TurnInput};
use baton_keys::{SecretSigningKey, secret::random_bytes};
use baton_proto::{SignedObject, ids::QuotaSerial, limits::VERSION, quota::QuotaGrant};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{bench::Quantiles, network::Network};

/// Time between the starts of two honest turns: a hundred a minute, below a peer's limit of a hundred and
/// twenty.
const TURN_EVERY: Duration = Duration::from_millis(600);
/// Turns of an honest session before the next session starts.
const SESSION_TURNS: usize = 6;
/// Slowest turns of a part in the report.
pub(super) const SHOWN_SLOWEST: usize = 6;
/// Time limit of an honest turn; a longer turn counts as failed.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// Results of the honest clients in one part.
#[derive(Debug, Clone, Serialize)]
pub struct Honest {
    /// Turns that were answered and verified.
    pub turns: usize,
    /// Turns that failed.
    pub failed: usize,
    /// The reasons.
    pub failures: Vec<String>,
    /// Milliseconds from sending to the accepted turn, or to the failure.
    pub turn_ms: Quantiles,
    /// Attempts that failed before a turn was answered, by error code or reason.
    pub again: BTreeMap<String, u64>,
    /// The slowest turns, slowest first: they show what delays a turn.
    pub slowest: Vec<SlowTurn>,
}

/// A slow turn of an honest client.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SlowTurn {
    /// Seconds from the part's beginning to the turn's.
    pub at_s: f64,
    /// Milliseconds from sending to the accepted turn, or to the failure.
    pub ms: f64,
}

/// A grant of a hundred turns a minute, and its key.
pub(super) fn granted_quota(issuer: &SecretSigningKey) -> anyhow::Result<Arc<QuotaHolder>> {
    let holder = SecretSigningKey::generate();
    let grant = QuotaGrant {
        version: VERSION,
        grantor: issuer.public_key(),
        serial: QuotaSerial(random_bytes()),
        parent: None,
        holder: holder.public_key(),
        nodes: Vec::new(),
        models: Vec::new(),
        turns_per_hour: 10_000,
        tokens_per_hour: 1_000_000,
        concurrent: 2,
        from_ms: 0,
        until_ms: u64::MAX,
        depth: 0,
    };
    let chain = [SignedObject::sign(grant, issuer).bytes().clone()];
    Ok(Arc::new(QuotaHolder::new(&chain, holder)?))
}

pub(super) async fn open_client(
    network: &Network,
    folder: &Path,
    number: usize,
    quota: Option<Arc<QuotaHolder>>,
) -> anyhow::Result<Client> {
    let (url, home) = (network.store_url(), folder.join(format!("client-{number}")));
    let mut config = ClientConfig::with_http(Some(&home), url, url, Some(url), network.options.shards)?;
    let node = network.running().next().context("the node runs")?;
    let others = node.addresses.iter().filter(|address| address.to_string().starts_with("/ip6/"));
    config.bootstrap = others.cloned().collect();
    ensure!(!config.bootstrap.is_empty(), "the node listens on no IPv6 address");
    config.quota = quota;
    Ok(Client::open(config).await?)
}

/// When honest clients stop.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Turns(usize),
    Passed(Duration),
}

pub(super) async fn honest(clients: &[Arc<Client>], until: Until) -> anyhow::Result<Honest> {
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        // Staggered, so that their turns do not wait for each other.
        let offset = TURN_EVERY * u32::try_from(number)? / u32::try_from(clients.len())?;
        tasks.spawn(talk(client.clone(), offset, until));
    }
    let (mut slowest, mut failures, mut again) = (Vec::new(), Vec::new(), BTreeMap::new());
    while let Some(talked) = tasks.join_next().await {
        let (turns, reasons) = talked??;
        reasons.into_iter().for_each(|reason| *again.entry(reason).or_default() += 1);
        for (turn, answered) in turns {
            slowest.push(turn);
            failures.extend(answered.err());
        }
    }
    ensure!(!slowest.is_empty(), "no honest turn was begun");
    let times: Vec<f64> = slowest.iter().map(|turn| turn.ms).collect();
    let (turns, failed) = (times.len() - failures.len(), failures.len());
    slowest.sort_by(|one, other| other.ms.total_cmp(&one.ms));
    slowest.truncate(SHOWN_SLOWEST);
    Ok(Honest { turns, failed, failures, turn_ms: Quantiles::of(&times), again, slowest })
}

/// Each turn's time and failure, and the reasons of failed attempts.
type ClientTurns = (Vec<(SlowTurn, Result<(), String>)>, Vec<String>);

/// Runs one honest client.
async fn talk(client: Arc<Client>, offset: Duration, until: Until) -> anyhow::Result<ClientTurns> {
    tokio::time::sleep(offset).await;
    let began = Instant::now();
    let (mut times, mut again) = (Vec::new(), Vec::new());
    let mut session = None;
    let goes_on = |turns: usize| match until {
        Until::Turns(most) => turns < most,
        Until::Passed(span) => began.elapsed() < span,
    };
    while goes_on(times.len()) {
        let begun = Instant::now();
        if times.len().is_multiple_of(SESSION_TURNS) {
            session = Some(client.new_session(NewSession::default()).await?);
        }
        let id = session.context("a session was begun")?;
        let text = format!("honest words of turn {}", times.len());
        let input = TurnInput { allow_echo: true, max_output_tokens: 16, ..TurnInput::user(text) };
        let handle = client.session(id);
        let turn = handle.turn(input, |event: TurnEvent| {
            if let TurnEvent::AttemptFailed { code, reason, .. } = event {
                again.push(code.map_or(reason, |code| code.name().to_owned()));
            }
        });
        let answered = match tokio::time::timeout(TURN_TIMEOUT, turn).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", TURN_TIMEOUT.as_secs())),
        };
        let failed = answered.is_err();
        let at_s = begun.duration_since(began).as_secs_f64() + offset.as_secs_f64();
        times.push((SlowTurn { at_s, ms: begun.elapsed().as_secs_f64() * 1000.0 }, answered));
        if failed {
            // Resuming the failed turn would come first in the old session.
            session = Some(client.new_session(NewSession::default()).await?);
        }
        tokio::time::sleep(TURN_EVERY.saturating_sub(begun.elapsed())).await;
    }
    Ok((times, again))
}
