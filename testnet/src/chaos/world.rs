//! The network of one trial, with its clients and the ledger of their messages: a store and a node with a conversation, or
//! a relayer with memory.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use baton_proto::ids::BlobId;
use baton_walrus_client::http_client;
use serde_json::Value;

use super::{
    call::{CallOutcome, Conditions, HANG, call},
    plan::{Kill, Program},
    report::{FindingKind, TrialFindings},
};
use crate::{
    draws::Draws,
    network::{Network, NodeOptions, RelayerProcess, SHARDS},
    process::{DiskSpace, Process},
    trial::{
        free_ports,
        ledger::{Exchange, LedgerVerdict, TurnLedger},
        retried,
    },
};

/// The node's pause before each token, so that answers last long enough for kills to hit them.
const ECHO_DELAY_MS: u64 = 10;
/// How long a session may take to reach the store and the index after all faults end.
const SETTLE: Duration = Duration::from_secs(60);
/// How long a valid call may fail after its fault ends.
pub(super) const RECOVERY: Duration = Duration::from_secs(25);
/// Timeout of a health request.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a message repeats its padding; its answer then takes a third of a second.
const REPEATS: usize = 8;

/// A client's home and its session.
#[derive(Clone, Debug)]
pub(super) struct ClientHome {
    pub(super) home: PathBuf,
    session: Option<String>,
    /// The ledger's lane for messages from here.
    pub(super) lane: usize,
}

impl ClientHome {
    /// The session's ID.
    ///
    /// # Errors
    /// When no turn was acknowledged yet.
    pub(super) fn session(&self) -> anyhow::Result<&str> {
        self.session.as_deref().context("the device has no session yet")
    }

    /// A copy for another lane of the same session.
    pub(super) fn in_lane(&self, lane: usize) -> Self {
        Self { lane, ..self.clone() }
    }
}

/// Runs clients with the network's addresses. Clones may run them concurrently.
#[derive(Clone, Debug)]
pub(super) struct TrialClients {
    folder: PathBuf,
    /// The arguments that name the servers.
    servers: Vec<String>,
    /// Whether messages are additions to a relayer's memory, in place of turns.
    of_memory: bool,
}

impl TrialClients {
    /// Runs `baton` with a home.
    pub(super) async fn call(
        &self,
        home: &Path,
        words: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<CallOutcome> {
        let home = home.to_string_lossy();
        let mut args = [words, &["--json", "--home", &home]].concat();
        args.extend(self.servers.iter().map(String::as_str));
        call(&self.folder, "baton", &args, conditions).await
    }

    /// Sends one message, with optional further arguments.
    pub(super) async fn say(
        &self,
        device: &ClientHome,
        text: &str,
        more: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<CallOutcome> {
        let words = if self.of_memory {
            vec!["memory", "add", text]
        } else {
            let message = ["--message", text, "--allow-echo"];
            ["chat"].into_iter().chain(device.session.as_deref()).chain(message).collect()
        };
        self.call(&device.home, &[&words[..], more].concat(), conditions).await
    }

    /// Whether the client printed that the message is there for good.
    fn is_acknowledged(&self, outcome: &CallOutcome) -> bool {
        let is_verified = |turn: Value| turn["verified"] == true && turn["seq"].is_u64();
        if self.of_memory { outcome.is_ok() } else { outcome.json().is_some_and(is_verified) }
    }
}

/// The state of a trial.
pub(super) struct TrialWorld {
    pub(super) folder: PathBuf,
    /// The program that the trial is about.
    pub(super) program: Program,
    pub(super) draws: Draws,
    pub(super) network: Network,
    pub(super) findings: TrialFindings,
    /// The clients of the running servers.
    pub(super) clients: TrialClients,
    ledger: TurnLedger,
    relayer: Option<RelayerProcess>,
    port: u16,
    homes: usize,
}

impl TrialWorld {
    /// Starts a store with a node in a folder, or a relayer with an account.
    ///
    /// # Errors
    /// When they do not start.
    pub(super) async fn start(folder: &Path, program: Program, mut draws: Draws) -> anyhow::Result<Self> {
        let options = NodeOptions { echo_delay_ms: ECHO_DELAY_MS, ..NodeOptions::echo() };
        let mut network = Network::start(folder, 0, options).await?;
        // A fixed port, so that clients find the node or relayer after a restart.
        let ports = free_ports(1, &mut draws)?;
        let port = ports.first().copied().context("there is a port")?;
        network.use_ports(ports);
        network.nodes.push(None);
        let of_memory = program == Program::Relayer;
        let servers = vec!["--relayer-url".to_owned(), format!("http://127.0.0.1:{port}")];
        let mut world = Self {
            folder: folder.to_owned(),
            program,
            draws,
            network,
            findings: TrialFindings::default(),
            clients: TrialClients { folder: folder.to_owned(), servers, of_memory },
            ledger: TurnLedger::default(),
            relayer: None,
            port,
            homes: 0,
        };
        if !of_memory {
            world.start_node(&[]).await?;
            return Ok(world);
        }
        world.start_again(Program::Relayer).await?;
        let home = folder.join("account");
        let made = world.clients.call(&home, &["account", "new"], Conditions::default()).await?;
        ensure!(made.is_ok(), "no account: {}", made.brief());
        Ok(world)
    }

    /// Starts the node again, with optional further arguments.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start_node(&mut self, extra: &[&str]) -> anyhow::Result<()> {
        self.network.start_node(0, extra).await?;
        let address = self.network.addresses().first().map(ToString::to_string);
        let (address, shards) = (address.context("the node has an address")?, SHARDS.to_string());
        let store = self.network.store_url();
        let servers = ["--publisher", store, "--shards", &shards, "--node", &address];
        self.clients.servers = servers.map(str::to_owned).to_vec();
        Ok(())
    }

    /// Starts a server that was stopped or killed.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start_again(&mut self, program: Program) -> anyhow::Result<()> {
        match program {
            Program::Node => self.start_node(&[]).await?,
            Program::Store => self.network.restart_store().await?,
            Program::Relayer => {
                let http = format!("127.0.0.1:{}", self.port);
                let extra = ["--http", &http, "--embedder", "hashing"];
                self.relayer = Some(RelayerProcess::start(&self.folder, &[], &extra).await?);
            }
            Program::Client => {}
        }
        Ok(())
    }

    /// Takes a server's process, in order to end it.
    fn take(&mut self, program: Program) -> Option<Process> {
        match program {
            Program::Node => self.network.nodes.first_mut()?.take().map(|node| node.process),
            Program::Store => self.network.store.take().map(|store| store.process),
            Program::Relayer => self.relayer.take().map(|relayer| relayer.process),
            Program::Client => None,
        }
    }

    /// Sends SIGTERM to a server.
    ///
    /// # Errors
    /// When it does not end.
    pub(super) async fn stop(&mut self, program: Program) -> anyhow::Result<()> {
        match self.take(program) {
            Some(mut process) => process.terminate().await,
            None => Ok(()),
        }
    }

    /// Kills a server after a while, and starts it again. A client is killed with its call instead.
    ///
    /// # Errors
    /// When it does not start again.
    pub(super) async fn kill(&mut self, kill: Option<Kill>) -> anyhow::Result<()> {
        let Some(Kill { program, after_ms }) = kill else { return Ok(()) };
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        if let Some(mut process) = self.take(program) {
            process.kill().await?;
        }
        self.start_again(program).await
    }

    /// Fills or frees a server's disk. A server may exit when its disk is full; then its disk needs no change.
    ///
    /// # Errors
    /// When the disk cannot be filled.
    pub(super) fn set_disk(&self, program: Program, disk: DiskSpace) -> anyhow::Result<()> {
        let process = match program {
            Program::Node => self.network.running().next().map(|node| &node.process),
            Program::Store => self.network.store.as_ref().map(|store| &store.process),
            Program::Relayer => self.relayer.as_ref().map(|relayer| &relayer.process),
            Program::Client => return Ok(()),
        };
        match process.context("the server runs")?.set_disk(disk) {
            Err(_) if disk == DiskSpace::Roomy => Ok(()),
            set => set,
        }
    }

    /// Restarts a server. Returns whether it had ended, or had reported itself unhealthy.
    ///
    /// # Errors
    /// When it does not start again.
    pub(super) async fn restart_if_unwell(&mut self, program: Program) -> anyhow::Result<bool> {
        let health = match program {
            Program::Node => {
                let admin = self.network.running().next().and_then(|node| node.admin.as_deref());
                admin.map(|admin| format!("http://{admin}/readyz"))
            }
            Program::Store => Some(format!("{}/status", self.network.store_url())),
            Program::Relayer => Some(format!("{}/readyz", self.url(program))),
            Program::Client => return Ok(false),
        };
        let Some(mut process) = self.take(program) else { return Ok(true) };
        let is_well = is_well(&health.context("the server reports its health")?).await;
        let is_named = process.has_ended() || !is_well;
        process.kill().await?;
        self.start_again(program).await?;
        Ok(is_named)
    }

    /// URL of the store's or the relayer's HTTP interface.
    pub(super) fn url(&self, program: Program) -> String {
        match program {
            Program::Store => self.network.store_url().to_owned(),
            _ => format!("http://127.0.0.1:{}", self.port),
        }
    }

    /// A server's data folder.
    pub(super) fn data(&self, program: Program) -> PathBuf {
        self.folder.join(file_name(program))
    }

    /// A server's log.
    pub(super) fn log(&self, program: Program) -> PathBuf {
        self.folder.join(format!("{}.log", file_name(program)))
    }

    /// A device with a new home, which its first call creates; of memory, the account's one.
    pub(super) fn device(&mut self) -> ClientHome {
        self.homes += 1;
        let name = if self.clients.of_memory { "account".to_owned() } else { format!("home-{}", self.homes) };
        ClientHome { home: self.folder.join(name), session: None, lane: 0 }
    }

    /// A unique text, recorded in the ledger.
    pub(super) fn next_text(&mut self, device: &ClientHome) -> String {
        let (number, lane) = (self.ledger.next_number(), device.lane);
        let text = if self.clients.of_memory {
            format!("item {number} of the list is a thing of its own")
        } else {
            format!("message {number} of lane {lane}:{}", " and so on".repeat(REPEATS))
        };
        self.ledger.say(lane, &text);
        text
    }

    /// Checks a result for panics and hangs, and records an acknowledgement. Returns whether there was one.
    pub(super) fn took(&mut self, device: &mut ClientHome, text: &str, outcome: &CallOutcome) -> bool {
        self.findings.inspect(outcome);
        let is_acknowledged = self.clients.is_acknowledged(outcome);
        if is_acknowledged {
            self.ledger.acknowledge(text);
            let named = outcome.json().and_then(|turn| turn["session"].as_str().map(str::to_owned));
            device.session = device.session.take().or(named);
        }
        is_acknowledged
    }

    /// Sends one message under conditions. Returns whether it was acknowledged.
    pub(super) async fn say(
        &mut self,
        device: &mut ClientHome,
        more: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<(bool, CallOutcome)> {
        let text = self.next_text(device);
        let outcome = self.clients.say(device, &text, more, conditions).await?;
        Ok((self.took(device, &text, &outcome), outcome))
    }

    /// Sends one message after the faults have ended. It retries for a while, and records a finding if no try
    /// succeeds.
    pub(super) async fn say_surely(&mut self, device: &mut ClientHome) -> anyhow::Result<bool> {
        let said = retried(RECOVERY, async || {
            let (acknowledged, outcome) = self.say(device, &[], Conditions::default()).await?;
            Ok(if acknowledged { Ok(()) } else { Err(outcome) })
        });
        let said = said.await?;
        Ok(self.findings.served(said).is_some())
    }

    /// Sends messages; each must succeed.
    pub(super) async fn say_turns(&mut self, device: &mut ClientHome, turns: u64) -> anyhow::Result<()> {
        for _ in 0..turns {
            ensure!(self.say_surely(device).await?, "a message to a sound network was not served");
        }
        Ok(())
    }

    /// Runs a command about the device's session, and inspects its result.
    pub(super) async fn session(
        &mut self,
        device: &ClientHome,
        command: &str,
        more: &[&str],
    ) -> anyhow::Result<CallOutcome> {
        self.call(&device.home, &[&["session", command, device.session()?], more].concat()).await
    }

    /// Runs a command with a home, and inspects its result.
    pub(super) async fn call(&mut self, home: &Path, words: &[&str]) -> anyhow::Result<CallOutcome> {
        let outcome = self.clients.call(home, words, Conditions::default()).await?;
        self.findings.inspect(&outcome);
        Ok(outcome)
    }

    /// Waits until store and index match the device's session, and records a finding if they never do.
    pub(super) async fn settle(&mut self, device: &ClientHome) -> anyhow::Result<()> {
        if self.clients.of_memory {
            return Ok(());
        }
        let settled = retried(SETTLE, async || {
            let synced = self.session(device, "sync", &[]).await?;
            let verified = self.session(device, "verify", &["--full", "--fix"]).await?;
            let failed = [synced, verified].into_iter().find(|outcome| !outcome.is_ok());
            Ok(failed.map_or(Ok(()), Err))
        });
        if let Err(failed) = settled.await? {
            let what = format!("the session did not settle: {}", failed.brief());
            self.findings.found(FindingKind::Unserved, what);
        }
        Ok(())
    }

    /// Writes the session's recovery words to a file.
    pub(super) async fn words(&mut self, device: &ClientHome) -> anyhow::Result<PathBuf> {
        self.homes += 1;
        let file = self.folder.join(format!("words-{}", self.homes));
        let outcome = self.session(device, "backup", &["--out", &file.to_string_lossy()]).await?;
        ensure!(outcome.is_ok(), "no words: {}", outcome.brief());
        Ok(file)
    }

    /// Restores the session on a new device from its words alone, in a single try.
    pub(super) async fn restore_once(
        &mut self,
        words: &Path,
        of: &ClientHome,
    ) -> anyhow::Result<Result<ClientHome, CallOutcome>> {
        let fresh = ClientHome { session: of.session.clone(), ..self.device() };
        let call = ["session", "restore", "--words-file", &words.to_string_lossy()];
        let outcome = self.call(&fresh.home, &call).await?;
        Ok(outcome.or_failed(fresh))
    }

    /// Restores the session on a new device from its words alone. If no try succeeds, returns `None` and
    /// records a finding.
    pub(super) async fn restore(
        &mut self,
        words: &Path,
        of: &ClientHome,
    ) -> anyhow::Result<Option<ClientHome>> {
        let restored = retried(RECOVERY, async || self.restore_once(words, of).await).await?;
        Ok(self.findings.served(restored))
    }

    /// The session's history as a device shows it, or the texts that memory lists, with the call's result.
    pub(super) async fn history(
        &mut self,
        device: &ClientHome,
    ) -> anyhow::Result<(Vec<Exchange>, CallOutcome)> {
        let outcome = if self.clients.of_memory {
            self.call(&device.home, &["memory", "list", "--all", "--limit", "200"]).await?
        } else {
            self.session(device, "show", &[]).await?
        };
        Ok((exchanges(outcome.json().as_ref()), outcome))
    }

    /// The violations in a history.
    pub(super) fn judge(&self, history: &[Exchange]) -> LedgerVerdict {
        self.ledger.judge(history)
    }

    /// Checks that every acknowledged message is there once and in order: from the words alone, then after a
    /// fix on the device and on a new one. Of memory, it checks the list alone.
    pub(super) async fn check(&mut self, device: &ClientHome) -> anyhow::Result<()> {
        if self.clients.of_memory {
            let (listed, outcome) = self.history(device).await?;
            if let Some(listed) = self.findings.served(outcome.or_failed(listed)) {
                self.findings.judge(self.judge(&listed));
            }
            return Ok(());
        }
        let words = self.words(device).await?;
        let mut verdict = self.restored_alone(&words, device).await?;
        self.settle(device).await?;
        let (own, _) = self.history(device).await?;
        verdict.and(self.judge(&own));
        verdict.and(self.restored(&words, device).await?);
        self.findings.judge(verdict);
        Ok(())
    }

    /// The same check when the device itself is unusable.
    pub(super) async fn check_by_words(&mut self, words: &Path, of: &ClientHome) -> anyhow::Result<()> {
        let verdict = self.restored(words, of).await?;
        self.findings.judge(verdict);
        Ok(())
    }

    /// Restores from the words with the node down, and before the device can fix the store. The node may
    /// take a while to store the turns that it signed.
    async fn restored_alone(&mut self, words: &Path, of: &ClientHome) -> anyhow::Result<LedgerVerdict> {
        let verdict = retried(RECOVERY, async || {
            self.stop(Program::Node).await?;
            let history = match self.restore_once(words, of).await? {
                Ok(fresh) => self.history(&fresh).await?.0,
                Err(_) => Vec::new(),
            };
            self.start_node(&[]).await?;
            let verdict = self.judge(&history);
            Ok(if verdict.is_good() { Ok(verdict) } else { Err(verdict) })
        });
        Ok(verdict.await?.unwrap_or_else(|verdict| verdict))
    }

    async fn restored(&mut self, words: &Path, of: &ClientHome) -> anyhow::Result<LedgerVerdict> {
        let history = match self.restore(words, of).await? {
            Some(fresh) => self.history(&fresh).await?.0,
            None => Vec::new(),
        };
        Ok(self.judge(&history))
    }

    /// Waits until the store lists a blob that only the node can store.
    pub(super) async fn await_blob(&mut self, id: BlobId) -> anyhow::Result<bool> {
        let listed = retried(RECOVERY, async || {
            Ok(if self.network.list_blobs().await?.contains(&id) { Ok(()) } else { Err(()) })
        });
        Ok(listed.await?.is_ok())
    }

    /// The ID of the blob with the session's newest turn, once the device has computed it.
    pub(super) async fn newest_blob(&mut self, device: &ClientHome) -> anyhow::Result<BlobId> {
        let shown = self.session(device, "show", &[]).await?;
        let listed = shown.json().with_context(|| format!("no list of blobs: {}", shown.brief()))?;
        let newest = listed["blobs"].as_array().and_then(|blobs| blobs.last()).context("there is a blob")?;
        Ok(newest["blob_id"].as_str().context("the newest blob has an ID")?.parse()?)
    }

    /// Stops the network, and hands its findings on.
    pub(super) async fn end(mut self, findings: &mut TrialFindings) {
        let relayer = self.stop(Program::Relayer).await;
        if let Err(error) = relayer.and(self.network.stop().await) {
            self.findings.found(FindingKind::Unserved, format!("the end: {error:#}"));
        }
        findings.acknowledged += self.ledger.acknowledged();
        findings.found.append(&mut self.findings.found);
    }
}

impl TrialFindings {
    /// Records a panic, and a call that took too long.
    pub(super) fn inspect(&mut self, outcome: &CallOutcome) {
        self.find_panic(outcome);
        if outcome.took > HANG {
            self.found(FindingKind::Hangs, outcome.brief());
        }
    }

    /// Records a panic.
    pub(super) fn find_panic(&mut self, outcome: &CallOutcome) {
        if outcome.has_panicked() {
            self.found(FindingKind::Panics, outcome.brief());
        }
    }

    /// Records a valid call that failed.
    pub(super) fn served<T>(&mut self, outcome: Result<T, CallOutcome>) -> Option<T> {
        outcome.inspect_err(|failed| self.found(FindingKind::Unserved, failed.brief())).ok()
    }

    /// Searches the logs of a folder's processes for panics.
    pub(super) fn search_logs(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // The output of calls was checked before.
            if name.ends_with(".log") && name != "calls.log" {
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                for line in text.lines().filter(|line| line.contains("panicked at")) {
                    self.found(FindingKind::Panics, format!("{name}: {line}"));
                }
            }
        }
    }
}

/// The name of a server's folder and of its log.
fn file_name(program: Program) -> &'static str {
    match program {
        Program::Node => "node-0",
        Program::Store => "store",
        Program::Relayer => "relayer",
        Program::Client => "account",
    }
}

/// Whether a program reports itself healthy: status 200, and any JSON `status` is `ok`.
async fn is_well(url: &str) -> bool {
    let Ok(client) = http_client::builder_for(url).timeout(HEALTH_TIMEOUT).build() else { return false };
    let Ok(answer) = client.get(url).send().await else { return false };
    if !answer.status().is_success() {
        return false;
    }
    let body: Value = answer.json().await.unwrap_or_default();
    body["status"].as_str().is_none_or(|status| status == "ok")
}

/// Parses turns from the output of `baton session show --json`, with those of branches, or facts from that of
/// `baton memory list --json`. Items that a relayer adds itself, such as the user as an entity, are left out.
fn exchanges(shown: Option<&Value>) -> Vec<Exchange> {
    let Some(shown) = shown else { return Vec::new() };
    let text = |turn: &Value, role: &str| {
        let messages = turn["messages"].as_array().into_iter().flatten();
        let texts = messages.filter(|message| message["role"] == role);
        texts.filter_map(|message| message["text"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let turns = shown["turns"].as_array().into_iter().flatten().map(|turn| Exchange {
        said: text(turn, "you"),
        answer: text(turn, "model"),
        is_beside: turn["branch"].is_string(),
    });
    let items = shown["items"].as_array().into_iter().flatten().filter(|item| item["kind"] == "fact");
    turns.chain(items.filter_map(|item| item["text"].as_str()).map(Exchange::of_list)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn turns_and_facts_are_read_from_what_a_client_shows() {
        let message = |role: &str, text: &str| json!({ "role": role, "text": text });
        let shown = json!({ "turns": [
            { "messages": [message("system", "s"), message("you", "a"), message("model", "echo: a")] },
            { "messages": [message("you", "b"), message("model", "echo: b")] },
            { "branch": "4f0c81d2", "messages": [message("you", "c"), message("model", "echo: c")] },
        ] });
        let turns = exchanges(Some(&shown));
        let said = turns.iter().map(|turn| (turn.said.as_str(), turn.answer.as_str(), turn.is_beside));
        let expected = [("a", "echo: a", false), ("b", "echo: b", false), ("c", "echo: c", true)];
        assert_eq!(said.collect::<Vec<_>>(), expected);
        let listed = json!({ "items": [
            { "kind": "fact", "text": "d" }, { "kind": "entity", "text": "the user" }, { "kind": "fact" },
        ] });
        let facts = exchanges(Some(&listed));
        assert_eq!(facts.iter().map(|fact| fact.said.as_str()).collect::<Vec<_>>(), ["d"]);
        assert!(exchanges(Some(&json!({ "error": "x" }))).is_empty() && exchanges(None).is_empty());
    }
}
