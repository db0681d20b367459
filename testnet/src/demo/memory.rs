//! Memory across conversations.
//!
//! A fact told in one session is recalled in another, by another node, through the relayer. It is also
//! recalled in sealed mode, in which the relayer cannot read the turn. Afterwards no node and no store holds
//! the fact, and the relayer holds no text of the sealed turn.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use baton_client::MemoryHint;
use baton_keys::account::AccountKey;
use baton_proto::record::Role;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Demo, short};
use crate::{
    chaos::files,
    network::{RelayerProcess, SHARDS},
    output,
    trial::retried,
};

/// A mark in the fact, so unlikely that any occurrence means that the fact was stored there.
const FACT_MARK: &str = "vq46-okapi-3302";
/// A mark in the message of the sealed turn.
const PROMPT_MARK: &str = "zx81-quagga-7719";
/// Time for a session on another node than the one that was told the fact. A new relayer may know one node
/// only, and a busy machine takes time to introduce the others.
const OTHER_NODE_WAIT: Duration = Duration::from_secs(60);
/// A running relayer, and an account with memory there.
struct DemoRelayer {
    running: RelayerProcess,
    account: AccountKey,
}

impl DemoRelayer {
    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.running.call(&self.account, Method::POST, path, body).await
    }

    /// Runs one turn of a new session, with the relayer as the client for this request. Prints these words
    /// with the session, and returns the answer with its node.
    async fn chat(&self, text: &str, what: &str) -> anyhow::Result<(Value, String)> {
        let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 24, "seed": 7 });
        let said = self.post("/v1/chat", &body).await?;
        let node = said["node"].as_str().context("the answer names its node")?.to_owned();
        output::note(&format!("  {what} {}", short(said["session_id"].as_str().unwrap_or_default())));
        Ok((said, node))
    }
}

impl Demo {
    /// Tells a fact in one session, recalls it in others, and searches every place that must not hold it.
    pub(super) async fn memory_through_relayer(&mut self) -> anyhow::Result<()> {
        output::note("a fact told in one session, recalled in another through a relayer");
        let mut memories = self.start_relayer().await?;
        let told = format!("My favourite fruit is the mango {FACT_MARK}.");
        let (_, node) = memories.chat(&told, "told in session").await?;
        recall_elsewhere(&memories, &node).await?;
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
        Ok(())
    }

    async fn start_relayer(&self) -> anyhow::Result<DemoRelayer> {
        let (url, shards) = (self.network.store_url(), SHARDS.to_string());
        let echo = if self.echo { "true" } else { "false" };
        let store = ["--publisher", url, "--aggregator", url, "--heads", url, "--shards", &shards];
        let rest = ["--http", "127.0.0.1:0", "--embedder", "hashing", "--allow-echo", echo];
        let (folder, nodes) = (&self.network.folder, self.network.addresses());
        let running = RelayerProcess::start(folder, &nodes, &[&store[..], &rest].concat()).await?;
        Ok(DemoRelayer { running, account: AccountKey::generate() })
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
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.network.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["node-", "store", "relayer"].iter().any(|server| name.starts_with(server)) {
                files.extend(if path.is_dir() { files::list(&path)? } else { vec![path] });
            }
        }
        ensure!(!files.is_empty(), "no files of nodes were found to look through");
        for file in files {
            let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            ensure!(!holds_mark(&bytes), "{} holds what was said", file.display());
        }
        Ok(())
    }
}

/// Asks in new sessions until another node serves one; each session must recall the fact.
async fn recall_elsewhere(memories: &DemoRelayer, first: &str) -> anyhow::Result<()> {
    let recalled = retried(OTHER_NODE_WAIT, async || {
        let (asked, node) = memories.chat("What is my favourite fruit?", "recalled in session").await?;
        let facts = asked["recalled_facts"].as_array().context("the answer lists what was recalled")?;
        ensure!(
            facts.iter().any(|fact| fact.to_string().contains(FACT_MARK)),
            "the fact was not recalled: {asked}"
        );
        if node == first {
            return Ok(Err("every session was served by one node of three"));
        }
        let items = asked["receipt"]["memory_items"].as_u64();
        ensure!(items.is_some_and(|items| items > 0), "the other node used no item: {asked}");
        output::note("  there by another node");
        Ok(Ok(()))
    });
    recalled.await?.map_err(anyhow::Error::msg)
}

fn holds_mark(bytes: &[u8]) -> bool {
    [FACT_MARK, PROMPT_MARK].iter().any(|mark| contains(bytes, mark))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
