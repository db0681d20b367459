//! A trial's relayer with its memory, and an account that adds facts to it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    call::{Answer, Caller, Conditions},
    ledger::Ledger,
    plan::Trial,
    report::Findings,
    world::{RECOVERY, find_panics, inspect},
};
use crate::{churn::free_ports, draws::Draws, process::Process};

/// The first lane of draws for ports; plans use lower lanes.
const PORT_LANES: u64 = 2000;
const PAUSE: Duration = Duration::from_millis(250);

/// A relayer and an account.
pub(super) struct TrialMemory {
    folder: PathBuf,
    caller: Caller,
    port: u16,
    /// The relayer, unless it is down.
    pub(super) process: Option<Process>,
    pub(super) ledger: Ledger,
    pub(super) findings: Findings,
}

impl TrialMemory {
    /// Starts a relayer in a folder, and creates an account.
    ///
    /// # Errors
    /// When either fails.
    pub(super) async fn start(folder: &Path, trial: &Trial) -> anyhow::Result<Self> {
        let mut draws = Draws::of(trial.seed, PORT_LANES + trial.scenario as u64);
        let port = free_ports(1, &mut draws)?.first().copied().context("there is a port")?;
        let mut memories = Self {
            folder: folder.to_owned(),
            caller: Caller::new(folder),
            port,
            process: None,
            ledger: Ledger::default(),
            findings: Findings::default(),
        };
        memories.run().await?;
        let made = memories.call(&["account", "new"], Conditions::default()).await?;
        ensure!(made.is_ok(), "no account: {}", made.brief());
        Ok(memories)
    }

    /// Starts or restarts the relayer.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        let args = run_args(&self.data(), self.port);
        self.process = Some(Process::start("relayer", "baton-relayer", &args, &self.folder).await?);
        Ok(())
    }

    /// Sends SIGTERM to the relayer.
    ///
    /// # Errors
    /// When it does not end.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        match self.process.take() {
            Some(mut process) => process.terminate().await,
            None => Ok(()),
        }
    }

    /// The relayer's data folder.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("relayer")
    }

    /// The relayer's log.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("relayer.log")
    }

    /// URL of the relayer's HTTP interface.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    async fn call(&mut self, words: &[&str], conditions: Conditions) -> anyhow::Result<Answer> {
        let answer = call(&self.caller, &self.folder, &self.url(), words, conditions).await?;
        inspect(&mut self.findings, &answer);
        Ok(answer)
    }

    /// Adds one fact to memory, while the relayer may be killed and restarted.
    pub(super) async fn add(&mut self, kill_after_ms: Option<u64>) -> anyhow::Result<(bool, Answer)> {
        let text = format!("item {} of the list is a thing of its own", self.ledger.next_number());
        self.ledger.say(0, &text);
        let (caller, folder, url) = (self.caller.clone(), self.folder.clone(), self.url());
        let words = ["memory", "add", &text];
        let adding = call(&caller, &folder, &url, &words, Conditions::default());
        let killing = async {
            if let Some(ms) = kill_after_ms {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                if let Some(mut process) = self.process.take() {
                    process.kill().await?;
                }
                self.run().await?;
            }
            anyhow::Ok(())
        };
        let (answer, killed) = tokio::join!(adding, killing);
        let answer = answer?;
        killed?;
        inspect(&mut self.findings, &answer);
        if answer.is_ok() {
            self.ledger.acknowledge(&text);
        }
        Ok((answer.is_ok(), answer))
    }

    /// Adds one fact after the faults have ended. It retries for a while; returns the last failure if no try
    /// succeeds.
    pub(super) async fn add_surely(&mut self) -> anyhow::Result<Result<(), Answer>> {
        let until = Instant::now() + RECOVERY;
        loop {
            let (kept, answer) = self.add(None).await?;
            if kept {
                return Ok(Ok(()));
            }
            if Instant::now() >= until {
                return Ok(Err(answer));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Searches memory, as a turn does.
    pub(super) async fn search(&mut self) -> anyhow::Result<Answer> {
        self.call(&["memory", "search", "item"], Conditions::default()).await
    }

    /// The texts that memory lists, if the call succeeds.
    pub(super) async fn list(&mut self) -> anyhow::Result<(Option<Vec<String>>, Answer)> {
        let answer = self.call(&["memory", "list", "--all", "--limit", "200"], Conditions::default()).await?;
        let listed = answer.json().filter(|_| answer.is_ok());
        Ok((listed.map(|listed| texts(&listed)), answer))
    }

    /// Checks that every acknowledged fact is listed once. A refused listing is a finding.
    pub(super) async fn check(&mut self) -> anyhow::Result<()> {
        match self.list().await? {
            (Some(listed), _) => {
                let verdict = self.ledger.count(listed.iter().map(String::as_str));
                self.findings.judge(&verdict);
            }
            (None, answer) => self.findings.unserved(&answer.brief()),
        }
        Ok(())
    }

    /// Stops the relayer and searches its log.
    pub(super) async fn end(mut self) -> Findings {
        if let Err(error) = self.stop().await {
            self.findings.unserved(&format!("the end: {error:#}"));
        }
        let Self { folder, ledger, mut findings, .. } = self;
        findings.tally.acknowledged += ledger.acknowledged();
        find_panics(&folder, &mut findings);
        findings
    }
}

/// Arguments that run a relayer with its data in a folder; port 0 means any.
pub(super) fn run_args(data: &Path, port: u16) -> Vec<String> {
    let (data, http) = (data.to_string_lossy(), format!("127.0.0.1:{port}"));
    let args = [
        "--data-dir",
        &data,
        "run",
        "--json",
        "--mdns",
        "false",
        "--embedder",
        "hashing",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--http",
        &http,
    ];
    args.map(str::to_owned).to_vec()
}

/// Runs `baton` as the folder's account.
async fn call(
    caller: &Caller,
    folder: &Path,
    url: &str,
    words: &[&str],
    conditions: Conditions,
) -> anyhow::Result<Answer> {
    let home = folder.join("account").to_string_lossy().into_owned();
    let settings = ["--json", "--home", &home, "--relayer-url", url];
    let args: Vec<String> = words.iter().chain(&settings).map(|word| (*word).to_owned()).collect();
    caller.call("baton", &args, conditions).await
}

/// The texts of listed facts. Items that a relayer adds itself, such as the user as an entity, are left out.
fn texts(listed: &Value) -> Vec<String> {
    let items = listed["items"].as_array().into_iter().flatten().filter(|item| item["kind"] == "fact");
    items.filter_map(|item| item["text"].as_str()).map(str::to_owned).collect()
}
