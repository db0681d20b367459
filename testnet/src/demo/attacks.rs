//! A store with false blobs, an index with an old head, and replayed requests: each is refused by name, then
//! fixed.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use baton_client::{ClientError, HeadStatus, InlinePolicy, TurnEvent, system_clock};
use baton_keys::session::SessionRoot;
use baton_mesh::Multiaddr;
use baton_proto::{
    ErrorCode, SignedObject,
    export::Export,
    head::{HeadRecord, head_period},
    ids::NodeId,
    receipt::Receipt,
    store::HeadIndex as _,
};

use super::Demo;
use crate::{output, raw};

/// Lifetime of an authorisation that is to expire during the demo.
const SHORT_LIFE_MS: u64 = 25_000;
/// Time limit for publishing a head.
const PUBLISHING_GRACE: Duration = Duration::from_secs(30);

/// A served turn, to be sent again after its authorisation expired.
pub(super) struct LateReplay {
    turn: raw::RawTurn,
    node: NodeId,
    expires_ms: u64,
}

impl Demo {
    /// Flips one byte of the head blob, then replaces the blob with an older one. A new node must refuse
    /// both. The client then restores its own copy, and the conversation goes on.
    pub(super) async fn tampered_store(&mut self) -> anyhow::Result<()> {
        output::note("a store that changes the head blob, with its author stopped and nothing inlined");
        for attack in ["one byte flipped", "an older blob"] {
            self.settle().await?;
            let export = self.export().await?;
            self.network.stop_node(last_author(&export)?).await?;
            let fresh = self.network.add_node(&[]).await?;
            self.reopen_client().await?;
            let last = export.turns.last().context("the session has turns")?;
            let head = last.blob_id.context("the head blob's ID is known")?;
            let whole = self.network.read_blob(head).await?;
            let bytes = if attack == "an older blob" {
                let older = export.turns.iter().rev().nth(1).and_then(|turn| turn.blob_id);
                self.network.read_blob(older.context("an older blob's ID is known")?).await?
            } else {
                let mut bytes = whole.clone();
                let middle = bytes.len() / 2;
                *bytes.get_mut(middle).context("a blob has bytes")? ^= 1;
                bytes
            };
            ensure!(bytes != whole, "{attack}: nothing was changed");
            self.network.replace_blob(head, bytes).await?;
            self.refused_then_fixed(fresh, attack).await?;
            let fixed = self.network.read_blob(head).await?;
            ensure!(fixed == whole, "{attack}: the store does not have the blob as it was");
        }
        Ok(())
    }

    async fn refused_then_fixed(&mut self, node: NodeId, attack: &str) -> anyhow::Result<()> {
        let input = Self::ask("Tell me something about dogs.").with_route(|route| {
            *route = self.only_by(node);
            route.inline = InlinePolicy::Never;
            route.max_attempts = 1;
        });
        match self.client.session(self.session).turn(input, |_: TurnEvent| {}).await {
            Err(ClientError::TurnFailed { code: Some(ErrorCode::BlobHashMismatch), .. }) => {
                output::note(&format!("  {attack}: refused as BlobHashMismatch"));
            }
            Err(other) => bail!("{attack}: refused as something else: {other}"),
            Ok(_) => bail!("{attack}: the node accepted it"),
        }
        let session = self.client.session(self.session);
        let resumed = session.resume(self.only_by(node), |_: TurnEvent| {}).await?;
        let outcome = resumed.context("the refused turn was pending")?;
        self.accepted(&outcome);
        self.settle().await?;
        self.verify_stored().await?;
        output::note("  fixed from the client's copy, and continued");
        Ok(())
    }

    /// The head index returns an older record.
    pub(super) async fn rolled_back_head(&mut self) -> anyhow::Result<()> {
        output::note("a head index that answers with an older record");
        self.settle().await?;
        let root = self.client.session(self.session).backup().await?;
        let key = root.head_secret(head_period(system_clock()())).index_key();
        let store = self.network.http_store()?;
        let older = store.resolve(key).await?.context("the head is published")?;
        self.say(Self::ask("Thank you.")).await?;
        self.settle().await?;
        let newer = store.resolve(key).await?.context("the head is published")?;
        let [before, after] =
            [&older, &newer].map(|record| SignedObject::<HeadRecord>::verify_encoded(record));
        ensure!(after?.sequence > before?.sequence, "the head did not move");
        self.network.force_head(older).await?;
        match self.client.session(self.session).check_head().await {
            Err(ClientError::Protocol(ErrorCode::RollbackDetected)) => {
                output::note("  refused as RollbackDetected");
            }
            Err(other) => bail!("the older head was refused as something else: {other}"),
            Ok(_) => bail!("the older head was accepted"),
        }
        // The client still has the record that the index lost, and publishes it again.
        let session = self.client.session(self.session);
        ensure!(session.wait_published(PUBLISHING_GRACE).await?, "the head was not published again");
        let status = session.check_head().await?;
        ensure!(status == HeadStatus::Current, "then the index shows {status:?}");
        output::note("  and given the newest record again");
        Ok(())
    }

    /// Sends the same authorisation twice, and to another node. Returns it for the late replay.
    pub(super) async fn replays(&mut self) -> anyhow::Result<LateReplay> {
        output::note("an authorisation replayed: twice, and to another node; later on, late");
        self.settle().await?;
        let (first, second) = (self.node_at(0)?, self.node_at(1)?);
        let record = raw::node_record(self.client.mesh(), first, &self.addresses_of(first)).await?;
        let issued = system_clock()();
        let window = (issued, issued + SHORT_LIFE_MS);
        let turn = raw::RawTurn::first(&SessionRoot::generate(), &record, "Say yes.", window)?;

        let once = self.send(&turn, first).await?;
        let committed = once.committed.with_context(|| format!("refused as {:?}", once.refused))?;
        ensure!(once.token_chunks > 0, "the first sending generated nothing");
        let again = self.send(&turn, first).await?;
        ensure!(again.refused.is_none(), "the second sending was refused as {:?}", again.refused);
        ensure!(again.committed.as_ref() == Some(&committed), "the second sending has another receipt");
        ensure!(again.token_chunks == 0, "the second sending generated again");
        output::note("  twice: the same receipt, one generation");

        let elsewhere = self.send(&turn, second).await?;
        ensure!(elsewhere.refused == Some(ErrorCode::WrongAudience), "elsewhere: {:?}", elsewhere.refused);
        output::note("  to another node: WrongAudience");
        Ok(LateReplay { turn, node: first, expires_ms: window.1 })
    }

    /// Sends the same authorisation again after it expired.
    pub(super) async fn late_replay(&mut self, late: &LateReplay) -> anyhow::Result<()> {
        output::note("the authorisation from before, now expired, once more");
        let left = (late.expires_ms + 200).saturating_sub(system_clock()());
        tokio::time::sleep(Duration::from_millis(left)).await;
        let reply = self.send(&late.turn, late.node).await?;
        ensure!(reply.refused == Some(ErrorCode::Expired), "late: {:?}", reply.refused);
        output::note("  late: Expired");
        Ok(())
    }

    async fn send(&self, turn: &raw::RawTurn, node: NodeId) -> anyhow::Result<raw::RawReply> {
        turn.send(self.client.mesh(), node, &self.addresses_of(node)).await
    }

    fn addresses_of(&self, node: NodeId) -> Vec<Multiaddr> {
        let running = self.network.running().find(|running| running.node == node);
        running.map(|running| running.addresses.clone()).unwrap_or_default()
    }
}

/// The node that served the last turn.
fn last_author(export: &Export) -> anyhow::Result<NodeId> {
    let receipt = export.turns.last().and_then(|turn| turn.receipt.as_ref());
    let receipt = SignedObject::<Receipt>::verify_encoded(receipt.context("the last turn has a receipt")?)?;
    Ok(receipt.node)
}
