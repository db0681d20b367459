//! The store is down for two turns, which nodes serve all the same and store afterwards.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use baton_proto::store::{BlobStore as _, StoreError};

use super::{Demo, open_client};
use crate::output;

/// Time for background work: a node's retries end after a minute, then the client stores.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);
/// Time to try settling during the outage; a PUT to a running store takes milliseconds.
const OUTAGE_LOOK: Duration = Duration::from_secs(2);

impl Demo {
    /// Runs two turns without a store, then starts it again.
    pub(super) async fn store_outage(&mut self) -> anyhow::Result<()> {
        output::note("the store is stopped for two turns");
        self.settle().await?;
        self.network.stop_store().await?;
        let mut unstored = Vec::new();
        for question in ["Are you still there?", "And now?"] {
            let outcome = self.say(Self::ask(question)).await?;
            unstored.push(outcome.seq);
        }
        self.still_unstored(&unstored).await?;
        self.network.restart_store().await?;
        self.settle().await?;
        // Not checked by turn: the later of the two blobs holds both.
        let left = self.client.session(self.session).info().await?.unstored;
        ensure!(left == 0, "{left} turns are not stored");
        let export = self.export().await?;
        let last = export.turns.last().and_then(|turn| turn.blob_id);
        let store = self.network.http_store()?;
        ensure!(store.exists(last.context("the head blob's ID is known")?).await?, "the head is not stored");
        self.verify_stored().await?;
        output::note("  caught up");
        Ok(())
    }

    /// Checks that these turns do not count as stored while the store is down, even after time for running
    /// work.
    async fn still_unstored(&self, turns: &[u64]) -> anyhow::Result<()> {
        let probe = self.export().await?.turns.first().and_then(|turn| turn.blob_id);
        let asked = self.network.http_store()?.exists(probe.context("the first blob's ID is known")?).await;
        ensure!(matches!(asked, Err(StoreError::Unavailable { .. })), "the store still answers: {asked:?}");
        let settled = self.client.session(self.session).wait_settled(OUTAGE_LOOK).await?;
        ensure!(!settled, "everything counts as stored without a store");
        for view in self.client.session(self.session).history().await? {
            let seq = view.turn.link.seq;
            let is_wrong = view.stored && turns.contains(&seq);
            ensure!(!is_wrong, "turn {} counts as stored without a store", seq + 1);
        }
        Ok(())
    }

    /// Waits until every turn that the client knows of is stored and published.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        let settled = self.client.session(self.session).wait_settled(SETTLE_TIMEOUT).await?;
        ensure!(settled, "background work was not done within {SETTLE_TIMEOUT:?}");
        Ok(())
    }

    /// Reopens the client, bootstrapped with the running nodes.
    pub(super) async fn reopen_client(&mut self) -> anyhow::Result<()> {
        self.client.shutdown(Duration::from_secs(5)).await;
        self.client = open_client(&self.network, &self.network.folder.join("client")).await?;
        Ok(())
    }
}
