//! A fact given through the relayer: used in a turn, and afterwards nowhere on disk.

use std::path::Path;

use anyhow::{Context as _, ensure};
use baton_client::{Relayer, TurnInput};
use baton_proto::record::Role;

use super::Demo;
use crate::{network::EngineChoice, output, process::Process};

/// Marks in the fact's source and in its text, unlikely enough that finding one anywhere means that it was stored.
const SOURCE_MARK: &str = "zx81-quagga-7719";
const FACT_MARK: &str = "vq46-okapi-3302";
const MARKS: [&str; 2] = [SOURCE_MARK, FACT_MARK];

impl Demo {
    /// Starts a relayer with one fact, sends a turn through it, and looks for the fact everywhere.
    pub(super) async fn memory_through_relayer(&mut self) -> anyhow::Result<()> {
        output::note("a fact given through a relayer that cannot read the turn");
        let folder = self.network.folder.join("relayer");
        let relayer = self.start_relayer(&folder).await?;
        let (mut process, relayer) = relayer;
        let outcome = self
            .say(TurnInput {
                relayer: Some(relayer),
                ..Self::ask("Which fruit do I like best, by what you know of me?")
            })
            .await?;
        ensure!(outcome.receipt.memory_items == 1, "{} items were used", outcome.receipt.memory_items);
        ensure!(outcome.receipt.commitments.memory.is_some(), "the receipt does not commit to the memory");
        self.settle().await?;
        process.terminate().await?;
        self.nowhere_stored().await?;
        output::note("  used, committed to in the receipt, and stored nowhere");
        self.report.memory_injected = true;
        Ok(())
    }

    async fn start_relayer(&self, folder: &Path) -> anyhow::Result<(Process, Relayer)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let add = tokio::process::Command::new(crate::process::sibling("baton-relayer")?)
            .args(["--data-dir", &text(folder), "facts", "add"])
            .arg(format!("The user's favourite fruit is the mango {FACT_MARK}."))
            .args(["--source", SOURCE_MARK])
            .stdout(std::process::Stdio::null())
            .status()
            .await?;
        ensure!(add.success(), "the fact could not be added");
        let mut args: Vec<String> =
            ["--data-dir", &text(folder), "run", "--json", "--mdns", "false"].map(str::to_owned).to_vec();
        args.extend(["--listen".to_owned(), "/ip4/127.0.0.1/tcp/0".to_owned()]);
        for address in self.network.addresses() {
            args.extend(["--bootstrap".to_owned(), address.to_string()]);
        }
        let process = Process::start("relayer", "baton-relayer", &args, &self.network.folder).await?;
        let ready = &process.ready;
        let node = ready["relayer"].as_str().context("the ready line names the relayer")?.parse()?;
        let addresses = ready["listen"].as_array().context("the ready line lists addresses")?;
        let addrs = addresses.iter().filter_map(|address| address.as_str()?.parse().ok()).collect();
        Ok((process, Relayer { node, addrs }))
    }

    /// Looks for the fact's mark in every stored blob, sealed and opened, and in every file of every node.
    async fn nowhere_stored(&self) -> anyhow::Result<()> {
        for (id, bytes) in self.network.all_blobs().await? {
            ensure!(!holds_mark(&bytes), "blob {id} holds the fact");
        }
        for turn in self.client.history(self.session).await? {
            let record = turn.turn.record.as_ref().context("the client has every text")?;
            let seq = turn.turn.link.seq;
            for message in &record.messages {
                let text = message.text.as_bytes();
                let answer = message.role == Role::Assistant;
                // An answer may quote the fact, which it was given for, and the echo engine repeats the whole prompt.
                // Where it is from belongs into no text of a real model.
                let from = !(answer && self.engine == EngineChoice::Echo) && contains(text, SOURCE_MARK);
                let fact = !answer && contains(text, FACT_MARK);
                ensure!(!from && !fact, "the record of turn {seq} holds the fact");
            }
        }
        let mut files = 0;
        for entry in std::fs::read_dir(&self.network.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("node-") || name.starts_with("store") || name == "relayer.log" {
                files += search(&entry.path())?;
            }
        }
        ensure!(files > 0, "no files of nodes were found to look through");
        Ok(())
    }
}

/// Looks through a file, or all files of a folder; returns how many there were.
fn search(path: &Path) -> anyhow::Result<usize> {
    if !path.is_dir() {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(!holds_mark(&bytes), "{} holds the fact", path.display());
        return Ok(1);
    }
    let mut files = 0;
    for entry in std::fs::read_dir(path)? {
        files += search(&entry?.path())?;
    }
    Ok(files)
}

fn holds_mark(bytes: &[u8]) -> bool {
    MARKS.iter().any(|mark| contains(bytes, mark))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
