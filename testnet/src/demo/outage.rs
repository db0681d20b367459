//! The store goes away for two turns: they are served all the same, and stored afterwards.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use baton_proto::store::BlobStore as _;
use baton_walrus_client::{HttpStore, ShardCount};

use super::{Demo, open_client};
use crate::output;

/// How long the demo waits for background work: a node's retries end after a minute, then the client stores.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);

impl Demo {
    /// Two turns without a store, then the store again.
    pub(super) async fn store_outage(&mut self) -> anyhow::Result<()> {
        output::note("the store is stopped for two turns");
        self.network.stop_store().await?;
        for question in ["Are you still there?", "And now?"] {
            let outcome = self.say(Self::ask(question)).await?;
            let history = self.client.history(self.session).await?;
            let pending = history.iter().any(|view| view.turn.link.seq == outcome.seq && !view.stored);
            ensure!(pending, "turn {} counts as stored without a store", outcome.seq);
        }
        self.network.restart_store().await?;
        self.settle().await?;
        let export = self.export().await?;
        let store = self.http_store()?;
        let last = export.turns.last().and_then(|turn| turn.blob_id);
        ensure!(store.exists(last.context("the head blob's ID is known")?).await?, "the head is not stored");
        self.client.verify(self.session, true).await?;
        output::note("  caught up");
        self.report.store_outage_survived = true;
        Ok(())
    }

    /// Waits until everything the client knows of is stored and published.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        let settled = self.client.wait_settled(self.session, SETTLE_TIMEOUT).await?;
        ensure!(settled, "background work was not done within {SETTLE_TIMEOUT:?}");
        Ok(())
    }

    /// Opens the client again, which then knows the nodes that run now.
    pub(super) async fn reopen_client(&mut self) -> anyhow::Result<()> {
        self.client.shutdown(Duration::from_secs(5)).await;
        self.client = open_client(&self.network, &self.network.folder.join("client")).await?;
        Ok(())
    }

    /// The store, as anybody sees it.
    pub(super) fn http_store(&self) -> anyhow::Result<Arc<HttpStore>> {
        let url = self.network.store_url();
        let shards = ShardCount::new(self.network.options.shards)?;
        Ok(Arc::new(HttpStore::builder(url, url, shards).build()?))
    }

    /// The node that served the last turn.
    pub(super) fn last_author(
        &self,
        export: &baton_proto::export::Export,
    ) -> anyhow::Result<baton_proto::ids::NodeId> {
        use baton_proto::{Signed, receipt::Receipt};
        let receipt = export.turns.last().and_then(|turn| turn.receipt.as_ref());
        let receipt = Signed::<Receipt>::verify_encoded(receipt.context("the last turn has a receipt")?)?;
        Ok(receipt.node)
    }
}
