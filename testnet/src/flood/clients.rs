//! The honest clients of a flood: their sessions, their turns, and the times that they wait.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, NewSession, QuotaHolder, TurnEvent, TurnInput};
use baton_keys::SecretSigningKey;
use baton_proto::right::{Right, RightChain, RightScope, TurnQuota};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{bench::Quantiles, network::Network};

/// Time between the starts of two honest turns: a hundred a minute, so that five clients stay below a subnet's limit.
pub(super) const TURN_EVERY: Duration = Duration::from_millis(600);
/// Turns of an honest session before the next session starts.
const SESSION_TURNS: usize = 6;
/// Slowest turns of a part in the report.
const SHOWN_SLOWEST: usize = 6;
/// Time limit of an honest call; a longer one counts as failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Results of honest clients in one part; their calls may be other than turns.
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
    /// The 99th percentile over that of the quiet part.
    pub p99_over_quiet: f64,
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
    let quota =
        TurnQuota { models: Vec::new(), turns_per_hour: 10_000, tokens_per_hour: 1_000_000, concurrent: 2 };
    let grant = Right::new(issuer.public_key(), holder.public_key(), RightScope::Turns(quota), 0..u64::MAX);
    Ok(Arc::new(QuotaHolder::new(RightChain::issue(grant, issuer)?, holder)?))
}

pub(super) async fn open_client(
    network: &Network,
    number: usize,
    quota: Option<Arc<QuotaHolder>>,
) -> anyhow::Result<Client> {
    let mut config = network.client_config(Some(&network.folder.join(format!("client-{number}"))))?;
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

/// The time of an honest call, and its failure.
pub(super) type TimedCall = (SlowTurn, Result<(), String>);

/// The calls of one honest client, at an even pace.
pub(super) struct HonestPace {
    began: Instant,
    every: Duration,
    until: Until,
    pub(super) calls: Vec<TimedCall>,
}

impl HonestPace {
    pub(super) fn begin(every: Duration, until: Until) -> Self {
        Self { began: Instant::now(), every, until, calls: Vec::new() }
    }

    /// Whether another call is to be made.
    pub(super) fn goes_on(&self) -> bool {
        match self.until {
            Until::Turns(most) => self.calls.len() < most,
            Until::Passed(span) => self.began.elapsed() < span,
        }
    }

    /// Makes a call, and waits until the next one is due. Returns whether it was answered.
    pub(super) async fn call(&mut self, call: impl Future<Output = anyhow::Result<()>>) -> bool {
        let begun = Instant::now();
        let answered = match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(answered) => answered.map_err(|error| format!("{error:#}")),
            Err(_) => Err(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
        };
        let (is_answered, at_s) = (answered.is_ok(), begun.duration_since(self.began).as_secs_f64());
        self.calls.push((SlowTurn { at_s, ms: begun.elapsed().as_secs_f64() * 1000.0 }, answered));
        tokio::time::sleep(self.every.saturating_sub(begun.elapsed())).await;
        is_answered
    }
}

impl Honest {
    /// The results of calls, and the reasons of failed attempts.
    pub(super) fn of(calls: Vec<TimedCall>, again: BTreeMap<String, u64>) -> anyhow::Result<Self> {
        ensure!(!calls.is_empty(), "no honest call was begun");
        let mut slowest: Vec<SlowTurn> = calls.iter().map(|(turn, _)| *turn).collect();
        let times: Vec<f64> = slowest.iter().map(|turn| turn.ms).collect();
        let failures: Vec<String> = calls.into_iter().filter_map(|(_, answered)| answered.err()).collect();
        let (turns, failed) = (times.len() - failures.len(), failures.len());
        slowest.sort_by(|one, other| other.ms.total_cmp(&one.ms));
        slowest.truncate(SHOWN_SLOWEST);
        let turn_ms = Quantiles::of(&times);
        Ok(Self { turns, failed, failures, turn_ms, p99_over_quiet: 1.0, again, slowest })
    }
}

/// Runs the honest clients.
pub(super) async fn honest(clients: &[Arc<Client>], until: Until) -> anyhow::Result<Honest> {
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        // Staggered, so that their turns do not wait for each other.
        let offset = TURN_EVERY * u32::try_from(number)? / u32::try_from(clients.len())?;
        tasks.spawn(talk(client.clone(), offset, until));
    }
    let (mut calls, mut again) = (Vec::new(), BTreeMap::new());
    while let Some(talked) = tasks.join_next().await {
        let (turns, reasons) = talked??;
        reasons.into_iter().for_each(|reason| *again.entry(reason).or_default() += 1);
        calls.extend(turns);
    }
    Honest::of(calls, again)
}

/// Runs one honest client. Returns its turns, and the reasons of failed attempts.
async fn talk(
    client: Arc<Client>,
    offset: Duration,
    until: Until,
) -> anyhow::Result<(Vec<TimedCall>, Vec<String>)> {
    tokio::time::sleep(offset).await;
    let (mut pace, mut again, mut session) = (HonestPace::begin(TURN_EVERY, until), Vec::new(), None);
    while pace.goes_on() {
        let number = pace.calls.len();
        let id = match session.filter(|_| !number.is_multiple_of(SESSION_TURNS)) {
            Some(id) => id,
            None => client.new_session(NewSession::default()).await?,
        };
        let input = TurnInput::user(format!("honest words of turn {number}"));
        let input = TurnInput { max_output_tokens: 16, ..input }.with_route(|route| route.allow_echo = true);
        let on_event = |event: TurnEvent| {
            if let TurnEvent::AttemptFailed { code, reason, .. } = event {
                again.push(code.map_or(reason, |code| code.name().to_owned()));
            }
        };
        let handle = client.session(id);
        let answered = pace.call(async { Ok(handle.turn(input, on_event).await.map(drop)?) }).await;
        // Resuming a failed turn would come first in the old session.
        session = answered.then_some(id);
    }
    Ok((pace.calls, again))
}
