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
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use baton_client::{Client, NewSession, TurnEvent, TurnInput, TurnOutcome, VerifyReport};
use baton_keys::files::write_private;
use baton_proto::{
    export::Export,
    ids::{NodeId, SessionId},
    turn::Sampling,
};
use clap::Args;
use serde::Serialize;

use crate::{
    network::{EngineChoice, Network, NodeOptions},
    output, trial,
};

/// Arguments of `baton-testnet demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Print the report as one JSON line at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Engine of the nodes
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) engine: EngineChoice,
    /// Shard count of the store
    #[arg(long, default_value_t = 10)]
    pub(crate) shards: u16,
    /// Folder of downloaded models
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
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

/// The demo's results. Every flag is true at the end, or the demo failed before.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DemoReport {
    turns: u64,
    nodes_used: usize,
    verified: bool,
    recovered_after_kill: bool,
    found_by_session_id: bool,
    tamper_refused: bool,
    rollback_refused: bool,
    replay_refused: bool,
    memory_injected: bool,
    store_outage_survived: bool,
    export_verified: bool,
    /// `None` with the test engine, whose answers come from no model.
    recomputed: Option<bool>,
    /// `None` with the test engine as well.
    false_answer_named: Option<bool>,
    stolen_device_locked_out: bool,
    seconds: f64,
}

/// The shared state of the steps.
pub(crate) struct Demo {
    network: Network,
    client: Client,
    session: SessionId,
    engine: EngineChoice,
    report: DemoReport,
    nodes_used: std::collections::BTreeSet<NodeId>,
    lap: Instant,
}

/// Runs all steps.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (_temporary, folder) = trial::folder(args.keep.as_deref())?;
    let mut demo = Demo::start(&args, &folder).await?;
    demo.steps(&folder).await?;
    demo.report.seconds = trial::tenths(begun.elapsed());
    demo.report.nodes_used = demo.nodes_used.len();
    let Demo { network, client, report, .. } = demo;
    client.shutdown(Duration::from_secs(5)).await;
    network.stop().await?;
    summarise(&report, args.json)
}

impl Demo {
    async fn start(args: &DemoArgs, folder: &Path) -> anyhow::Result<Self> {
        output::note("starting a store and three nodes, each a process of its own");
        let options = NodeOptions {
            shards: args.shards,
            store_faults: args.faults.clone(),
            echo_delay_ms: 20,
            model_dir: args.model_dir.clone(),
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
            engine: args.engine,
            report: DemoReport::default(),
            nodes_used: std::collections::BTreeSet::new(),
            lap: Instant::now(),
        })
    }

    async fn steps(&mut self, folder: &Path) -> anyhow::Result<()> {
        self.conversation().await?;
        self.lap("conversation");
        // Early, for two reasons: the authorisation expires during the other steps, and the serving node
        // holds none of the blobs that are damaged later. (It would serve the intact ones to its peers.) No
        // node running now is stopped for good.
        let late = self.replays().await?;
        self.lap("replays");
        self.kill_mid_answer().await?;
        self.lap("kill");
        self.without_locator().await?;
        self.lap("no locator");
        self.tampered_store().await?;
        self.lap("tampered store");
        self.rolled_back_head().await?;
        self.lap("rolled-back head");
        self.memory_through_relayer().await?;
        self.lap("memory");
        self.store_outage().await?;
        self.lap("store outage");
        self.late_replay(&late).await?;
        self.lap("late replay");
        self.verify_all(folder).await?;
        self.lap("export");
        self.recompute(folder).await?;
        self.lap("recompute");
        self.checked_answers(folder).await?;
        self.lap("checked answers");
        self.stolen_device(folder).await?;
        self.lap("stolen device");
        Ok(())
    }

    /// Prints the duration of a step.
    fn lap(&mut self, step: &'static str) {
        let seconds = trial::tenths(self.lap.elapsed());
        self.lap = Instant::now();
        output::note(&format!("  ({step}: {seconds} s)"));
    }

    /// Verifies the whole session from the store alone: nothing is wrong or missing there.
    async fn verify_stored(&self) -> anyhow::Result<VerifyReport> {
        self.settle().await?;
        let report = self.client.session(self.session).verify(true).await?;
        ensure!(report.is_good(), "verification found {:?}", report.problems);
        ensure!(
            report.turns == self.report.turns,
            "{} turns of {} verified",
            report.turns,
            self.report.turns
        );
        let (own, stored) = (report.from_own, report.from_store);
        ensure!(
            own == 0 && stored == report.segments,
            "{own} segments are not in the store as they should be"
        );
        ensure!(report.receipts_missing == 0, "{} receipts are missing", report.receipts_missing);
        Ok(report)
    }

    /// Runs one turn and prints it.
    async fn say(&mut self, mut input: TurnInput) -> anyhow::Result<TurnOutcome> {
        input.route.allow_echo = self.engine == EngineChoice::Echo;
        if let Some(message) = input.messages.last() {
            output::note(&format!("  you:  {}", message.text));
        }
        let outcome = self.client.session(self.session).turn(input, |_: TurnEvent| {}).await?;
        self.accepted(&outcome);
        Ok(outcome)
    }

    fn accepted(&mut self, outcome: &TurnOutcome) {
        self.report.turns = self.report.turns.max(outcome.seq + 1);
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
        self.report.verified = true;
        output::note(&format!(
            "  {} turns verified: {} receipts, {} blobs, {} of {} segments from the store",
            report.turns, report.receipts_checked, report.blobs_checked, report.from_store, report.segments
        ));
        let text = self.client.session(self.session).export(false).await?;
        let export: Export = serde_json::from_str(&text)?;
        let checked = baton_proto::export::verify(&export)?;
        ensure!(checked.turns as u64 == self.report.turns, "the export has {} turns", checked.turns);
        let path: PathBuf = folder.join("export.json");
        write_private(&path, text.as_bytes())?;
        self.report.export_verified = true;
        Ok(())
    }
}

/// The beginning of a node's id, as people see it.
fn short(node: NodeId) -> String {
    node.to_string().chars().take(8).collect()
}

/// A client with an empty home, bootstrapped with the running nodes.
pub(crate) async fn open_client(network: &Network, home: &Path) -> anyhow::Result<Client> {
    let mut config = network.client_config(Some(home))?;
    config.timeouts.open = OPEN_TIMEOUT;
    config.timeouts.author_stores = AUTHOR_STORES;
    Ok(Client::open(config).await?)
}

fn summarise(report: &DemoReport, json: bool) -> anyhow::Result<()> {
    let mut flags = vec![
        ("every turn verified, offline and from the store", report.verified),
        ("a node killed in the middle of an answer: completed elsewhere", report.recovered_after_kill),
        ("a turn without any locator: found by session id", report.found_by_session_id),
        ("a flipped byte and an old blob in the store: refused, fixed", report.tamper_refused),
        ("an older head record: refused", report.rollback_refused),
        ("an old authorisation, late, elsewhere, twice: refused or answered alike", report.replay_refused),
        (
            "a fact told in one session: recalled in another by another node, and in sealed mode",
            report.memory_injected,
        ),
        ("the store down for two turns: survived, caught up", report.store_outage_survived),
        ("export verified from the file alone", report.export_verified),
    ];
    flags.extend(
        report.recomputed.map(|held| ("every answer computed again from the export: the same tokens", held)),
    );
    flags.extend(
        report
            .false_answer_named
            .map(|held| ("an answer drawn by another seed: named by the next two nodes", held)),
    );
    flags.push((
        "a stolen device: the conversation goes on under new keys, which the thief lacks",
        report.stolen_device_locked_out,
    ));
    output::report(json, report, || {
        let DemoReport { turns, nodes_used, seconds, .. } = report;
        let flag = |(text, held): &(&str, bool)| format!("  {} {text}", if *held { "✓" } else { "✗" });
        let heading = format!("\n{turns} turns on {nodes_used} nodes in {seconds} s");
        std::iter::once(heading).chain(flags.iter().map(flag)).collect()
    })?;
    ensure!(flags.iter().all(|(_, held)| *held), "not every promise held");
    Ok(())
}
