//! Memory across conversations.
//!
//! A fact told in one session is recalled in another, by another node, through the relayer. It is also
//! recalled in sealed mode, in which the relayer cannot read the turn. Afterwards no node and no store holds
//! the fact, and the relayer holds no text of the sealed turn.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use baton_client::MemoryHint;
use baton_keys::account::AccountKey;
use baton_proto::record::Role;
use baton_walrus_client::http_client;
use reqwest::Method;
use serde_json::{Value, json};

use super::Demo;
use crate::{
    network::{EngineChoice, RelayerProcess, signed_call},
    output,
};

/// A mark in the fact, so unlikely that any occurrence means that the fact was stored there.
const FACT_MARK: &str = "vq46-okapi-3302";
/// A mark in the message of the sealed turn.
const PROMPT_MARK: &str = "zx81-quagga-7719";
/// Time for a session on another node than the one that was told the fact. A new relayer may know one node
/// only, and a busy machine takes time to introduce the others.
const OTHER_NODE_WAIT: Duration = Duration::from_secs(60);
/// Pause between two such sessions.
const OTHER_NODE_PAUSE: Duration = Duration::from_millis(250);

/// A running relayer, and an account with memory there.
struct DemoRelayer {
    running: RelayerProcess,
    account: AccountKey,
    client: reqwest::Client,
}

impl DemoRelayer {
    /// Sends a signed request.
    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let url = (Method::POST, self.running.url.as_str(), path);
        signed_call(&self.client, &self.account, url, body).await
    }

    /// Runs one turn of a new session, with the relayer as the client for this request.
    async fn chat(&self, text: &str) -> anyhow::Result<Value> {
        let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 24, "seed": 7 });
        self.post("/v1/chat", &body).await
    }
}

impl Demo {
    /// Tells a fact in one session, recalls it in others, and searches every place that must not hold it.
    pub(super) async fn memory_through_relayer(&mut self) -> anyhow::Result<()> {
        output::note("a fact told in one session, recalled in another through a relayer");
        let mut memories = self.start_relayer().await?;
        let told = memories.chat(&format!("My favourite fruit is the mango {FACT_MARK}.")).await?;
        let node = told["node"].as_str().context("the answer names its node")?.to_owned();
        output::note(&format!("  told in session {}", short(&told["session_id"])));
        self.recall_elsewhere(&memories, &node).await?;
        let outcome = self
            .say(Self::ask(&format!("Which fruit do I like best? {PROMPT_MARK}")).with_route(|route| {
                (route.relayer, route.hint) = (
                    Some(memories.running.relayer.clone()),
                    Some(MemoryHint::new(memories.account.clone(), "favourite fruit")),
                )
            }))
            .await?;
        ensure!(outcome.receipt.memory_items > 0, "no item was used in sealed mode");
        ensure!(outcome.receipt.commitments.memory.is_some(), "the receipt does not commit to the memory");
        ensure!(
            outcome.memory.iter().any(|item| item.text.contains(FACT_MARK)),
            "the fact is not among the items that the relayer told of"
        );
        self.settle().await?;
        let list = json!({ "everything": true, "limit": 200 });
        let kept = memories.post("/api/list", &list).await?.to_string();
        ensure!(kept.contains(FACT_MARK), "the fact is not in memory");
        ensure!(!kept.contains(PROMPT_MARK), "the relayer's memory holds what was said in sealed mode");
        memories.running.process.terminate().await?;
        self.nowhere_stored().await?;
        output::note(
            "  sealed mode: used, committed to in the receipt, and what was said is nowhere at the relayer",
        );
        self.report.memory_injected = true;
        Ok(())
    }

    /// Asks in new sessions until another node serves one; each session must recall the fact.
    async fn recall_elsewhere(&self, memories: &DemoRelayer, first: &str) -> anyhow::Result<()> {
        let give_up = Instant::now() + OTHER_NODE_WAIT;
        let mut sessions = 0;
        while Instant::now() < give_up {
            let asked = memories.chat("What is my favourite fruit?").await?;
            let facts = asked["recalled_facts"].as_array().context("the answer lists what was recalled")?;
            ensure!(
                facts.iter().any(|fact| fact.to_string().contains(FACT_MARK)),
                "the fact was not recalled: {asked}"
            );
            let node = asked["node"].as_str().context("the answer names its node")?;
            if node != first {
                let items = asked["receipt"]["memory_items"].as_u64();
                ensure!(items.is_some_and(|items| items > 0), "the other node used no item: {asked}");
                output::note(&format!(
                    "  recalled in session {} by another node",
                    short(&asked["session_id"])
                ));
                return Ok(());
            }
            sessions += 1;
            tokio::time::sleep(OTHER_NODE_PAUSE).await;
        }
        bail!("{sessions} sessions in a row were served by one node of three")
    }

    async fn start_relayer(&self) -> anyhow::Result<DemoRelayer> {
        let (url, shards) = (self.network.store_url(), self.network.options.shards.to_string());
        let echo = if self.engine == EngineChoice::Echo { "true" } else { "false" };
        let store = ["--publisher", url, "--aggregator", url, "--heads", url, "--shards", &shards];
        let rest = ["--http", "127.0.0.1:0", "--allow-echo", echo];
        let running = self.network.start_relayer(&[&store[..], &rest].concat()).await?;
        let client = http_client::builder_for(&running.url).timeout(Duration::from_secs(120)).build()?;
        Ok(DemoRelayer { running, account: AccountKey::generate(), client })
    }

    /// Searches for the marks in every stored blob, sealed and opened, and in every file of every node.
    async fn nowhere_stored(&self) -> anyhow::Result<()> {
        for id in self.network.list_blobs().await? {
            ensure!(!holds_mark(&self.network.read_blob(id).await?), "blob {id} holds what was said");
        }
        for turn in self.client.session(self.session).history().await? {
            let record = turn.turn.record.as_ref().context("the client has every text")?;
            let seq = turn.turn.link.seq;
            for message in &record.messages {
                let text = message.text.as_bytes();
                let answer = message.role == Role::Assistant;
                // An answer may quote the fact that it received.
                ensure!(answer || !contains(text, FACT_MARK), "the record of turn {seq} holds the fact");
            }
        }
        let mut files = 0;
        for entry in std::fs::read_dir(&self.network.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("node-") || name.starts_with("store") || name.starts_with("relayer") {
                files += search(&entry.path())?;
            }
        }
        ensure!(files > 0, "no files of nodes were found to look through");
        Ok(())
    }
}

/// Searches a file, or all files of a folder; returns the number of files.
fn search(path: &Path) -> anyhow::Result<usize> {
    if !path.is_dir() {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(!holds_mark(&bytes), "{} holds what was said", path.display());
        return Ok(1);
    }
    let mut files = 0;
    for entry in std::fs::read_dir(path)? {
        files += search(&entry?.path())?;
    }
    Ok(files)
}

fn holds_mark(bytes: &[u8]) -> bool {
    [FACT_MARK, PROMPT_MARK].iter().any(|mark| contains(bytes, mark))
}

/// The first characters of an ID, for display.
fn short(id: &Value) -> String {
    id.as_str().unwrap_or_default().chars().take(8).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
