//! Recomputes every answer of the conversation, whichever node generated it, from data that the client can
//! disclose.

use std::path::Path;

use anyhow::{Context as _, ensure};
use baton_keys::files::write_private;
use baton_proto::export::ExportMemory;
use serde_json::Value;
use tokio::process::Command;

use super::Demo;
use crate::{output, process::sibling};

impl Demo {
    /// Uses the engine of a new process: it has other batches, no cached keys and values, and no other node's
    /// prefix.
    pub(super) async fn recompute(&mut self, folder: &Path) -> anyhow::Result<()> {
        output::note("every answer computed again by another process, from the export");
        let history = self.client.session(self.session).history().await?.into_iter();
        let memory: Vec<ExportMemory> =
            history.map(|view| ExportMemory { seq: view.turn.link.seq, items: view.memory }).collect();
        let items = folder.join("memory.json");
        write_private(&items, &serde_json::to_vec(&memory)?)?;
        let mut command = Command::new(sibling("baton-node")?);
        command.args(["replay", "--json", "--export"]).arg(folder.join("export.json"));
        command.arg("--memory").arg(&items).arg("--data-dir").arg(folder.join("replay"));
        if let Some(models) = &self.network.options.model_dir {
            command.arg("--model-dir").arg(models);
        }
        let done = command.kill_on_drop(true).output().await.context("cannot run baton-node replay")?;
        let wanted = if self.echo { "not-replayable" } else { "same" };
        let said = String::from_utf8_lossy(&done.stdout);
        let mut turns = 0;
        for line in said.lines() {
            let turn: Value = serde_json::from_str(line)?;
            ensure!(turn["result"] == wanted, "a turn that is {wanted} was expected: {turn}");
            turns += 1;
        }
        let errors = String::from_utf8_lossy(&done.stderr);
        ensure!(turns == self.turns, "{turns} of {} turns: {errors}", self.turns);
        output::note(&format!("  {turns} turns are {wanted}"));
        Ok(())
    }
}
