//! `baton-testnet flood --relayer`: the service that honest clients get while a relayer is attacked.
//!
//! Store, node, relayer and attacker are processes. Honest clients come from ::1, and the attacks from 127.0.0.0/8, which
//! is one subnet. Limits are the defaults.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, NewSession, TurnInput};
use baton_keys::account::AccountKey;
use baton_mesh::Multiaddr;
use futures::future::join_all;
use reqwest::Method;
use serde::Serialize;
use serde_json::json;

use super::{
    FloodOptions, FloodReport, SLOW_RATIO,
    attacker::{AttackPlan, AttackReport, Attacker},
    clients::{Honest, HonestPace, TURN_EVERY, Until},
    relayer_attack::{RelayerAttack, RelayerAttackKind},
};
use crate::{
    network::{Network, NodeOptions, RelayerProcess},
    output,
};

/// Time between two honest requests of a client.
const REQUEST_EVERY: Duration = Duration::from_millis(300);
/// Time of the warm-up.
const WARM_UP: Duration = Duration::from_secs(3);

/// Results of one part.
#[derive(Debug, Clone, Serialize)]
pub struct RelayerPart {
    /// Recalls over HTTP.
    pub http: Honest,
    /// Turns through the sealed endpoint.
    pub sealed: Honest,
    /// Outcomes of the attacker's attempts.
    pub attacker: AttackReport,
}

impl RelayerPart {
    fn endpoints(&mut self) -> [(&'static str, &mut Honest); 2] {
        [("HTTP", &mut self.http), ("sealed", &mut self.sealed)]
    }
}

/// Runs all parts in a folder.
///
/// # Errors
/// When a process does not start, or the warm-up fails.
pub async fn run(folder: &Path, options: &FloodOptions) -> anyhow::Result<FloodReport<RelayerPart>> {
    let node_options = NodeOptions { echo_delay_ms: 2, ..NodeOptions::echo() };
    let network = Network::start(folder, 1, node_options).await?;
    let mut flooded = FloodedRelayer::start(&network, options.clients).await?;
    output::note("warming up");
    for (endpoint, calls) in flooded.part(None, WARM_UP).await?.endpoints() {
        let failures = &calls.failures;
        ensure!(failures.is_empty(), "honest calls fail without an attack ({endpoint}): {failures:?}");
    }
    let span = Duration::from_secs(options.seconds);
    let mut parts = BTreeMap::from([("quiet", flooded.part(None, span).await?)]);
    for (name, attack, subnet) in RelayerAttackKind::ALL {
        if options.has(name) {
            output::note(name);
            parts.insert(name, flooded.part(Some((attack, subnet)), span).await?);
        }
    }
    flooded.running.process.terminate().await?;
    network.stop().await?;
    let mut report = FloodReport::of(options, parts);
    let quiet = report.parts.get_mut("quiet").context("the quiet part ran")?;
    let quiet = quiet.endpoints().map(|(_, calls)| calls.turn_ms.p99);
    for (name, part) in &mut report.parts {
        for ((endpoint, calls), quiet) in part.endpoints().into_iter().zip(quiet) {
            calls.p99_over_quiet = calls.turn_ms.p99 / quiet;
            let (failed, ratio) = (calls.failed, calls.p99_over_quiet);
            if failed > 0 {
                let breach = format!("{name}: {failed} honest calls failed at the {endpoint} endpoint");
                report.breaches.push(breach);
            }
            if ratio >= SLOW_RATIO {
                let slow =
                    format!("{name}: the slowest honest calls of {endpoint} took {ratio:.2} times as long");
                report.slow.push(slow);
            }
        }
    }
    Ok(report)
}

/// The relayer, and its honest clients.
struct FloodedRelayer<'a> {
    network: &'a Network,
    /// With the addresses for honest clients.
    running: RelayerProcess,
    /// Addresses for the attacker.
    attacked: Vec<Multiaddr>,
    accounts: Vec<AccountKey>,
}

impl<'a> FloodedRelayer<'a> {
    async fn start(network: &'a Network, clients: usize) -> anyhow::Result<Self> {
        let places = ["--http", "[::]:0", "--listen", "/ip6/::1/tcp/0", "--embedder", "hashing"];
        let extra = [&places[..], &["--owners", "open"]].concat();
        let mut running = RelayerProcess::start(&network.folder, &network.addresses(), &extra).await?;
        let (honest, attacked) = std::mem::take(&mut running.relayer.addrs)
            .into_iter()
            .partition(|address| address.to_string().starts_with("/ip6/"));
        running.relayer.addrs = honest;
        Ok(Self {
            network,
            running,
            attacked,
            accounts: (0..clients).map(|_| AccountKey::generate()).collect(),
        })
    }

    /// Runs the honest clients for a time, and an attack beside them.
    async fn part(
        &self,
        attack: Option<(RelayerAttackKind, u8)>,
        span: Duration,
    ) -> anyhow::Result<RelayerPart> {
        // A client of its own: one with the sessions of the parts before is slower.
        let home = tempfile::tempdir_in(&self.network.folder)?.keep();
        let client = self.network.client(&home).await?;
        let attacker = match attack {
            Some((kind, network)) => {
                let http: SocketAddr = self.running.url.trim_start_matches("http://").parse()?;
                let plan = AttackPlan::Relayer(RelayerAttack {
                    kind,
                    http: SocketAddr::from((Ipv4Addr::LOCALHOST, http.port())),
                    relayer: self.running.relayer.node,
                    sealed: self.attacked.clone(),
                    network,
                    seconds: span.as_secs(),
                });
                Some(Attacker::start(&plan, &self.network.folder).await?)
            }
            None => None,
        };
        let (http, sealed) = tokio::join!(self.recalls(span), self.turns(&client, span));
        client.shutdown(Duration::from_secs(5)).await;
        let attacker = match attacker {
            Some(attacker) => attacker.report().await?,
            None => AttackReport::default(),
        };
        Ok(RelayerPart { http: http?, sealed: sealed?, attacker })
    }

    async fn recalls(&self, span: Duration) -> anyhow::Result<Honest> {
        let question = &json!({ "query": "favourite fruit" });
        let clients = self.accounts.iter().map(|account| async move {
            let mut pace = HonestPace::begin(REQUEST_EVERY, Until::Passed(span));
            while pace.goes_on() {
                let recall = self.running.call(account, Method::POST, "/api/recall", question);
                pace.call(async { recall.await.map(drop) }).await;
            }
            pace.calls
        });
        Honest::of(join_all(clients).await.concat(), BTreeMap::new())
    }

    async fn turns(&self, client: &Client, span: Duration) -> anyhow::Result<Honest> {
        let mut pace = HonestPace::begin(TURN_EVERY, Until::Passed(span));
        while pace.goes_on() {
            let turn = async {
                let session = client.new_session(NewSession::default()).await?;
                let input = TurnInput { max_output_tokens: 8, ..TurnInput::user("honest words") };
                let input = input.with_route(|route| {
                    (route.allow_echo, route.relayer) = (true, Some(self.running.relayer.clone()));
                });
                client.session(session).turn(input, |_| {}).await?;
                Ok(())
            };
            pace.call(turn).await;
        }
        Honest::of(pace.calls, BTreeMap::new())
    }
}
