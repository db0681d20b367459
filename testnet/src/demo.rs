//! `baton-testnet demo`: it shows the product's promises one by one, on real processes. A broken promise
//! fails the step with an error.

mod attacks;
mod checks;
mod conversation;
mod memory;
mod outage;
mod recompute;
mod stolen;

use std::{
    collections::BTreeSet,
    fmt::Display,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{
    Client, ClientConfig, NewSession, RouteOptions, TurnEvent, TurnInput, TurnOutcome, VerifyReport,
};
use baton_keys::files::write_private;
use baton_proto::{
    export::Export,
    ids::{NodeId, SessionId},
    turn::Sampling,
};
use clap::Args;
use serde_json::{Map, Value};

use crate::{
    network::{EngineChoice, ModelFolder, Network, NodeOptions},
    output, trial,
};

/// Arguments of `baton-testnet demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Engine of the nodes
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) engine: EngineChoice,
    #[command(flatten)]
    pub(crate) models: ModelFolder,
    /// Inject random faults of the store during the whole demo: errors, lost answers, and late or cut bytes
    #[arg(long, value_name = "WHAT", value_parser = ["store"])]
    pub(crate) faults: Option<String>,
    /// Keep the network's folder here, with export.json and the logs
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
}

/// Most tokens of an ordinary answer: enough for some content, few enough for a small machine.
const ANSWER_TOKENS: u32 = 48;

/// How long the client waits for a node to open a substream. Nodes are on this machine, or were just killed.
const OPEN_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the client leaves storing to a turn's author. The default of a minute is too long for a demo.
const AUTHOR_STORES: Duration = Duration::from_secs(5);

/// The promise of each step: its name in the report, and in words. A broken promise ends the demo.
const PROMISES: [(&str, &str); 12] = [
    ("verified", "every turn verified, offline and from the store"),
    ("recovered_after_kill", "a node killed in the middle of an answer: completed elsewhere"),
    ("found_by_session_id", "a turn without any locator: found by session id"),
    ("tamper_refused", "a flipped byte and an old blob in the store: refused, fixed"),
    ("rollback_refused", "an older head record: refused"),
    ("replay_refused", "an old authorisation, late, elsewhere, twice: refused or answered alike"),
    (
        "memory_injected",
        "a fact told in one session: recalled in another by another node, and in sealed mode",
    ),
    ("store_outage_survived", "the store down for two turns: survived, caught up"),
    ("export_verified", "export verified from the file alone"),
    ("recomputed", "every answer computed again from the export: the same tokens"),
    ("false_answer_named", "an answer drawn by another seed: named by the next two nodes"),
    (
        "stolen_device_locked_out",
        "a stolen device: the conversation goes on under new keys, which the thief lacks",
    ),
];

/// The shared state of the steps.
pub(crate) struct Demo {
    network: Network,
    client: Client,
    session: SessionId,
    /// Whether the nodes have the test engine, whose answers come from no model.
    echo: bool,
    turns: u64,
    nodes_used: BTreeSet<NodeId>,
    /// The promises that held so far, by name.
    held: BTreeSet<&'static str>,
    lap: Instant,
}

/// Runs all steps.
pub(crate) async fn run(args: DemoArgs, json: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (_temporary, folder) = trial::folder(args.keep.as_deref())?;
    let mut demo = Demo::start(&args, &folder).await?;
    demo.steps(&folder).await?;
    let Demo { network, client, turns, nodes_used, held, .. } = demo;
    client.shutdown(Duration::from_secs(5)).await;
    network.stop().await?;
    let (nodes_used, seconds) = (nodes_used.len(), trial::tenths(begun.elapsed()));
    if json {
        let mut report = Map::from_iter([("turns".to_owned(), turns.into())]);
        report.insert("nodes_used".to_owned(), nodes_used.into());
        // Two steps need a model.
        let flag = |name: &str| if held.contains(name) { Value::Bool(true) } else { Value::Null };
        report.extend(PROMISES.map(|(name, _)| (name.to_owned(), flag(name))));
        report.insert("seconds".to_owned(), seconds.into());
        output::line(&Value::Object(report).to_string());
        return Ok(());
    }
    output::line(&format!("\n{turns} turns on {nodes_used} nodes in {seconds} s"));
    let shown = PROMISES.into_iter().filter(|(name, _)| held.contains(name));
    shown.for_each(|(_, text)| output::line(&format!("  ✓ {text}")));
    Ok(())
}

impl Demo {
    async fn start(args: &DemoArgs, folder: &Path) -> anyhow::Result<Self> {
        output::note("starting a store and three nodes, each a process of its own");
        let options = NodeOptions {
            store_faults: args.faults.clone(),
            echo_delay_ms: 20,
            model_dir: args.models.model_dir.clone(),
            ..NodeOptions::new(args.engine)
        };
        let network = Network::start(folder, 3, options).await?;
        let client = open_client(&network, &folder.join("client")).await?;
        let session = client.new_session(NewSession::with_system("You are a helpful assistant.")).await?;
        output::note(&format!("session {session}"));
        Ok(Self {
            network,
            client,
            session,
            echo: args.engine == EngineChoice::Echo,
            turns: 0,
            nodes_used: BTreeSet::new(),
            held: BTreeSet::new(),
            lap: Instant::now(),
        })
    }

    async fn steps(&mut self, folder: &Path) -> anyhow::Result<()> {
        self.conversation().await?;
        self.done("conversation");
        // Early, for two reasons: the authorisation expires during the other steps, and the serving node
        // holds none of the blobs that are damaged later. (It would serve the intact ones to its peers.) No
        // node running now is stopped for good.
        let late = self.replays().await?;
        self.done("replays");
        self.kill_mid_answer().await?;
        self.done("recovered_after_kill");
        self.without_locator().await?;
        self.done("found_by_session_id");
        self.tampered_store().await?;
        self.done("tamper_refused");
        self.rolled_back_head().await?;
        self.done("rollback_refused");
        self.memory_through_relayer().await?;
        self.done("memory_injected");
        self.store_outage().await?;
        self.done("store_outage_survived");
        self.late_replay(&late).await?;
        self.done("replay_refused");
        self.verify_all(folder).await?;
        self.recompute(folder).await?;
        if !self.echo {
            self.done("recomputed");
            self.checked_answers(folder).await?;
            self.done("false_answer_named");
        }
        self.stolen_device(folder).await?;
        self.done("stolen_device_locked_out");
        Ok(())
    }

    /// Notes that a step's promise held, and prints the step's duration.
    fn done(&mut self, step: &'static str) {
        self.held.insert(step);
        output::note(&format!("  ({step}: {} s)", trial::tenths(self.lap.elapsed())));
        self.lap = Instant::now();
    }

    /// Verifies the whole session from the store alone: nothing is wrong or missing there.
    async fn verify_stored(&self) -> anyhow::Result<VerifyReport> {
        self.settle().await?;
        let report = self.client.session(self.session).verify(true).await?;
        ensure!(report.is_good(), "verification found {:?}", report.problems);
        ensure!(report.turns == self.turns, "{} turns of {} verified", report.turns, self.turns);
        let (own, stored) = (report.from_own, report.from_store);
        ensure!(
            own == 0 && stored == report.segments,
            "{own} segments are not in the store as they should be"
        );
        ensure!(report.receipts_missing == 0, "{} receipts are missing", report.receipts_missing);
        Ok(report)
    }

    /// Runs one turn and prints it.
    async fn say(&mut self, input: TurnInput) -> anyhow::Result<TurnOutcome> {
        let input = input.with_route(|route| route.allow_echo = self.echo);
        if let Some(message) = input.messages.last() {
            output::note(&format!("  you:  {}", message.text));
        }
        let outcome = self.client.session(self.session).turn(input, |_: TurnEvent| {}).await?;
        self.accepted(&outcome);
        Ok(outcome)
    }

    /// The options of a turn that this node alone serves.
    fn only_by(&self, node: NodeId) -> RouteOptions {
        RouteOptions { node: Some(node), allow_echo: self.echo, ..RouteOptions::default() }
    }

    fn accepted(&mut self, outcome: &TurnOutcome) {
        self.turns = self.turns.max(outcome.seq + 1);
        self.nodes_used.insert(outcome.node);
        let answer = outcome.text.split_whitespace().collect::<Vec<_>>().join(" ");
        output::note(&format!("  {}: {answer}  [turn {} verified]", short(outcome.node), outcome.seq + 1));
    }

    fn ask(text: &str) -> TurnInput {
        // Without a penalty, a small model repeats itself.
        let sampling = Sampling { repetition_penalty: 1.1, ..Sampling::default() };
        TurnInput { max_output_tokens: ANSWER_TOKENS, sampling, ..TurnInput::user(text) }
    }

    fn node_at(&self, index: usize) -> anyhow::Result<NodeId> {
        let running: Vec<NodeId> = self.network.running().map(|node| node.node).collect();
        running.get(index % running.len().max(1)).copied().context("no node is running")
    }

    /// The current session, exported.
    async fn export(&self) -> anyhow::Result<Export> {
        Ok(serde_json::from_str(&self.client.session(self.session).export(false).await?)?)
    }

    async fn verify_all(&mut self, folder: &Path) -> anyhow::Result<()> {
        output::note("export, and verification from the file alone");
        let report = self.verify_stored().await?;
        output::note(&format!(
            "  {} turns verified: {} receipts, {} blobs, {} of {} segments from the store",
            report.turns, report.receipts_checked, report.blobs_checked, report.from_store, report.segments
        ));
        self.done("verified");
        let text = self.client.session(self.session).export(false).await?;
        let checked = baton_proto::export::verify(&serde_json::from_str(&text)?)?;
        ensure!(checked.turns as u64 == self.turns, "the export has {} turns", checked.turns);
        write_private(&folder.join("export.json"), text.as_bytes())?;
        self.done("export_verified");
        Ok(())
    }
}

/// The beginning of an ID, as people see it.
fn short(id: impl Display) -> String {
    id.to_string().chars().take(8).collect()
}

/// A client with an empty home, bootstrapped with the running nodes.
pub(crate) async fn open_client(network: &Network, home: &Path) -> anyhow::Result<Client> {
    Ok(Client::open(client_config(network, home)?).await?)
}

/// The settings of such a client.
fn client_config(network: &Network, home: &Path) -> anyhow::Result<ClientConfig> {
    let mut config = network.client_config(Some(home))?;
    config.timeouts.open = OPEN_TIMEOUT;
    config.timeouts.author_stores = AUTHOR_STORES;
    Ok(config)
}
