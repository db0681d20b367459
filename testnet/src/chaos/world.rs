//! The network of one trial: a store, a node, devices with a session, and the ledger of its messages.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use baton_proto::ids::BlobId;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    call::{Answer, Caller, Conditions, HANG},
    ledger::{Exchange, Ledger, Verdict},
    plan::Trial,
    report::Findings,
};
use crate::{
    churn::free_ports,
    draws::Draws,
    network::{EngineChoice, Network, NodeOptions},
};

/// Shard count of the store: that of Walrus's local testbed.
const SHARDS: u16 = 10;
/// The node's pause before each token, so that answers last long enough for kills to hit them.
const ECHO_DELAY_MS: u64 = 10;
/// How long a session may take to reach the store and the index after all faults end.
const SETTLE: Duration = Duration::from_secs(60);
/// How long a valid call may fail after its fault ends.
pub(super) const RECOVERY: Duration = Duration::from_secs(25);
/// How often a message repeats its padding; its answer then takes a third of a second.
const REPEATS: usize = 8;
/// Pause between two tries of a call.
const PAUSE: Duration = Duration::from_millis(250);
/// The first lane of draws for ports; plans use lower lanes.
const PORT_LANES: u64 = 1000;

/// A client's home and its session.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) home: PathBuf,
    session: Option<String>,
    /// The ledger's lane for messages from here.
    pub(super) lane: usize,
}

impl Device {
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
pub(super) struct Clients {
    caller: Caller,
    store: String,
    node: String,
}

impl Clients {
    /// Runs `baton` with a home.
    pub(super) async fn call(
        &self,
        home: &Path,
        words: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<Answer> {
        let home = home.to_string_lossy();
        let shards = SHARDS.to_string();
        let settings = [
            "--json",
            "--home",
            &home,
            "--publisher",
            &self.store,
            "--shards",
            &shards,
            "--node",
            &self.node,
        ];
        let args: Vec<String> = words.iter().chain(&settings).map(|word| (*word).to_owned()).collect();
        self.caller.call("baton", &args, conditions).await
    }

    /// Runs one turn, with optional further arguments.
    pub(super) async fn chat(
        &self,
        device: &Device,
        text: &str,
        more: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<Answer> {
        let mut words = vec!["chat"];
        words.extend(device.session.as_deref());
        words.extend(["--message", text, "--allow-echo"]);
        words.extend(more);
        self.call(&device.home, &words, conditions).await
    }

    /// Runs a command about the device's session.
    pub(super) async fn session(
        &self,
        device: &Device,
        command: &str,
        more: &[&str],
    ) -> anyhow::Result<Answer> {
        let words = [&["session", command, device.session()?], more].concat();
        self.call(&device.home, &words, Conditions::default()).await
    }
}

/// The state of a trial.
pub(super) struct World {
    pub(super) folder: PathBuf,
    pub(super) network: Network,
    pub(super) caller: Caller,
    pub(super) ledger: Ledger,
    pub(super) findings: Findings,
    /// The node's address, even while it is down.
    node: String,
    homes: usize,
}

impl World {
    /// Starts a store and a node in a folder.
    ///
    /// # Errors
    /// When they do not start.
    pub(super) async fn start(folder: &Path, trial: &Trial) -> anyhow::Result<Self> {
        let options = NodeOptions {
            engine: EngineChoice::Echo,
            shards: SHARDS,
            store_faults: None,
            context_tokens: None,
            echo_delay_ms: ECHO_DELAY_MS,
            model_dir: None,
            extra: Vec::new(),
        };
        let mut network = Network::start(folder, 0, options).await?;
        // A fixed port, so that clients find the node after a restart.
        let mut draws = Draws::of(trial.seed, PORT_LANES + trial.scenario as u64);
        network.use_ports(free_ports(1, &mut draws)?);
        network.add_node(&[]).await?;
        let mut world = Self {
            folder: folder.to_owned(),
            network,
            caller: Caller::new(folder),
            ledger: Ledger::default(),
            findings: Findings::default(),
            node: String::new(),
            homes: 0,
        };
        world.find_node()?;
        Ok(world)
    }

    /// Stores the running node's address.
    fn find_node(&mut self) -> anyhow::Result<()> {
        let address = self.network.addresses().first().map(ToString::to_string);
        self.node = address.context("the node has an address")?;
        Ok(())
    }

    /// Starts the node again, with optional further arguments.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start_node(&mut self, extra: &[&str]) -> anyhow::Result<()> {
        let extra: Vec<String> = extra.iter().map(|word| (*word).to_owned()).collect();
        self.network.start_node(0, &extra).await?;
        self.find_node()
    }

    /// Sends SIGTERM to the node.
    ///
    /// # Errors
    /// When it does not end.
    pub(super) async fn stop_node(&mut self) -> anyhow::Result<()> {
        let running = self.network.running().next().map(|node| node.node);
        self.network.stop_node(running.context("the node runs")?).await
    }

    /// The runner of clients, for the current network.
    pub(super) fn clients(&self) -> Clients {
        Clients {
            caller: self.caller.clone(),
            store: self.network.store_url().to_owned(),
            node: self.node.clone(),
        }
    }

    /// A device with a new home, which its first call creates.
    pub(super) fn device(&mut self) -> Device {
        self.homes += 1;
        let home = self.folder.join(format!("home-{}", self.homes));
        Device { home, session: None, lane: 0 }
    }

    /// A unique text, recorded in the ledger.
    pub(super) fn next_text(&mut self, device: &Device) -> String {
        let (number, lane) = (self.ledger.next_number(), device.lane);
        let text = format!("message {number} of lane {lane}:{}", " and so on".repeat(REPEATS));
        self.ledger.say(device.lane, &text);
        text
    }

    /// Checks a result for panics and hangs, and records an acknowledgement. Returns whether there was one.
    pub(super) fn take(&mut self, device: &mut Device, text: &str, answer: &Answer) -> bool {
        self.inspect(answer);
        let Some(turn) = answer.verified() else { return false };
        self.ledger.acknowledge(text);
        if device.session.is_none() {
            device.session = turn["session"].as_str().map(str::to_owned);
        }
        true
    }

    /// Records a panic, and a call that took too long.
    pub(super) fn inspect(&mut self, answer: &Answer) {
        inspect(&mut self.findings, answer);
    }

    /// Runs one turn under conditions.
    pub(super) async fn say(
        &mut self,
        device: &mut Device,
        more: &[&str],
        conditions: Conditions,
    ) -> anyhow::Result<(bool, Answer)> {
        let text = self.next_text(device);
        let answer = self.clients().chat(device, &text, more, conditions).await?;
        Ok((self.take(device, &text, &answer), answer))
    }

    /// Runs one turn after the faults have ended. It retries for a while, and records a finding if no try
    /// succeeds.
    pub(super) async fn say_surely(&mut self, device: &mut Device) -> anyhow::Result<bool> {
        let until = Instant::now() + RECOVERY;
        loop {
            let (acknowledged, answer) = self.say(device, &[], Conditions::default()).await?;
            if acknowledged {
                return Ok(true);
            }
            if Instant::now() >= until {
                self.findings.unserved(&answer.brief());
                return Ok(false);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Runs `turns` turns; each must succeed.
    pub(super) async fn say_turns(&mut self, device: &mut Device, turns: u64) -> anyhow::Result<()> {
        for _ in 0..turns {
            anyhow::ensure!(self.say_surely(device).await?, "a turn of a sound network was not served");
        }
        Ok(())
    }

    /// Waits until store and index match the device's session, and records a finding if they never do.
    pub(super) async fn settle(&mut self, device: &Device) -> anyhow::Result<()> {
        let until = Instant::now() + SETTLE;
        let clients = self.clients();
        loop {
            let synced = clients.session(device, "sync", &[]).await?;
            self.inspect(&synced);
            let verified = clients.session(device, "verify", &["--full", "--fix"]).await?;
            self.inspect(&verified);
            if synced.is_ok() && verified.is_ok() {
                return Ok(());
            }
            if Instant::now() >= until {
                let failed = if synced.is_ok() { verified } else { synced };
                self.findings.unserved(&format!("the session did not settle: {}", failed.brief()));
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Writes the session's recovery words to a file.
    pub(super) async fn words(&mut self, device: &Device) -> anyhow::Result<PathBuf> {
        self.homes += 1;
        let file = self.folder.join(format!("words-{}", self.homes));
        let out = file.to_string_lossy().into_owned();
        let answer = self.clients().session(device, "backup", &["--out", &out]).await?;
        anyhow::ensure!(answer.is_ok(), "no words: {}", answer.brief());
        Ok(file)
    }

    /// Restores the session on a new device from its words alone, in a single try.
    pub(super) async fn restore_once(&mut self, words: &Path, of: &Device) -> anyhow::Result<Option<Device>> {
        let (fresh, answer) = self.try_restore(words, of).await?;
        Ok(answer.is_ok().then_some(fresh))
    }

    async fn try_restore(&mut self, words: &Path, of: &Device) -> anyhow::Result<(Device, Answer)> {
        let words = words.to_string_lossy().into_owned();
        let fresh = Device { session: of.session.clone(), ..self.device() };
        let call = ["session", "restore", "--words-file", &words];
        let answer = self.clients().call(&fresh.home, &call, Conditions::default()).await?;
        self.inspect(&answer);
        Ok((fresh, answer))
    }

    /// Restores the session on a new device from its words alone. If no try succeeds, returns `None` and
    /// records a finding.
    pub(super) async fn restore(&mut self, words: &Path, of: &Device) -> anyhow::Result<Option<Device>> {
        let until = Instant::now() + RECOVERY;
        loop {
            let (fresh, answer) = self.try_restore(words, of).await?;
            if answer.is_ok() {
                return Ok(Some(fresh));
            }
            if Instant::now() >= until {
                self.findings.unserved(&answer.brief());
                return Ok(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The session's history as a device shows it.
    pub(super) async fn history(&mut self, device: &Device) -> anyhow::Result<(Vec<Exchange>, Answer)> {
        let answer = self.clients().session(device, "show", &[]).await?;
        self.inspect(&answer);
        Ok((exchanges(answer.json().as_ref()), answer))
    }

    /// Checks that every acknowledged turn is there once and in order: from the words alone, then after a
    /// `--fix` on the device and on a new one.
    pub(super) async fn check(&mut self, device: &Device) -> anyhow::Result<()> {
        let words = self.words(device).await?;
        let mut verdict = self.restored_alone(&words, device).await?;
        self.settle(device).await?;
        let (own, _) = self.history(device).await?;
        verdict.and(self.ledger.judge(&own));
        verdict.and(self.restored(&words, device).await?);
        self.findings.judge(&verdict);
        Ok(())
    }

    /// The same check when the device itself is unusable.
    pub(super) async fn check_by_words(&mut self, words: &Path, of: &Device) -> anyhow::Result<()> {
        let verdict = self.restored(words, of).await?;
        self.findings.judge(&verdict);
        Ok(())
    }

    /// Restores from the words with the node down, and before the device can fix the store. The node may
    /// take a while to store the turns that it signed.
    async fn restored_alone(&mut self, words: &Path, of: &Device) -> anyhow::Result<Verdict> {
        let until = Instant::now() + RECOVERY;
        loop {
            self.stop_node().await?;
            let history = match self.restore_once(words, of).await? {
                Some(fresh) => self.history(&fresh).await?.0,
                None => Vec::new(),
            };
            self.start_node(&[]).await?;
            let verdict = self.ledger.judge(&history);
            if verdict.is_good() || Instant::now() >= until {
                return Ok(verdict);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the store lists a blob that only the node can store.
    pub(super) async fn await_blob(&mut self, id: BlobId) -> anyhow::Result<bool> {
        let until = Instant::now() + RECOVERY;
        loop {
            let is_there = self.network.list_blobs().await?.contains(&id);
            if is_there || Instant::now() >= until {
                return Ok(is_there);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The ID of the blob with the session's newest turn, once the device has computed it.
    pub(super) async fn newest_blob(&mut self, device: &Device) -> anyhow::Result<BlobId> {
        let storage = self.clients().session(device, "storage", &[]).await?;
        self.inspect(&storage);
        let listed = storage.json().with_context(|| format!("no list of blobs: {}", storage.brief()))?;
        let newest = listed["blobs"].as_array().and_then(|blobs| blobs.last()).context("there is a blob")?;
        Ok(newest["blob_id"].as_str().context("the newest blob has an ID")?.parse()?)
    }

    async fn restored(&mut self, words: &Path, of: &Device) -> anyhow::Result<Verdict> {
        let history = match self.restore(words, of).await? {
            Some(fresh) => self.history(&fresh).await?.0,
            None => Vec::new(),
        };
        Ok(self.ledger.judge(&history))
    }

    /// Stops the network and searches the logs.
    pub(super) async fn end(self) -> Findings {
        let Self { folder, network, ledger, mut findings, .. } = self;
        if let Err(error) = network.stop().await {
            findings.unserved(&format!("the end: {error:#}"));
        }
        findings.tally.acknowledged += ledger.acknowledged();
        find_panics(&folder, &mut findings);
        findings
    }
}

/// Records a panic, and a call that took too long.
pub(super) fn inspect(findings: &mut Findings, answer: &Answer) {
    find_panic(findings, answer);
    if answer.took > HANG {
        findings.hang(&answer.brief());
    }
}

/// Records a panic.
pub(super) fn find_panic(findings: &mut Findings, answer: &Answer) {
    if answer.has_panicked() {
        findings.panic(&answer.brief());
    }
}

/// Searches the logs of a folder's processes for panics.
pub(super) fn find_panics(folder: &Path, findings: &mut Findings) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // The output of calls was checked before.
        if name.ends_with(".log") && name != "calls.log" {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for line in text.lines().filter(|line| line.contains("panicked at")) {
                findings.panic(&format!("{name}: {line}"));
            }
        }
    }
}

/// Parses turns from the output of `baton session show --json`, with those of branches.
fn exchanges(shown: Option<&Value>) -> Vec<Exchange> {
    let Some(shown) = shown else { return Vec::new() };
    let text = |turn: &Value, role: &str| {
        let messages = turn["messages"].as_array().into_iter().flatten();
        let texts = messages.filter(|message| message["role"] == role);
        texts.filter_map(|message| message["text"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let turns = shown["turns"].as_array().into_iter().flatten();
    turns
        .map(|turn| Exchange {
            said: text(turn, "you"),
            answer: text(turn, "model"),
            is_beside: turn["branch"].is_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn turns_are_read_from_what_a_client_shows() {
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
        assert!(exchanges(Some(&json!({ "error": "x" }))).is_empty() && exchanges(None).is_empty());
    }
}
