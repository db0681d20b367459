//! A stolen device: its owner goes on under a new root, which the thief can neither read nor continue.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, bail, ensure};
use baton_client::{Client, ClientError, NewSession, TurnEvent, TurnInput};
use baton_keys::session::SessionRoot;
use baton_proto::{
    link::BranchPoint,
    record::{Message, Role},
    segment::{Segment, blob_salt},
};

use super::{Demo, open_client};
use crate::output;

impl Demo {
    /// The steps of `baton session rekey`, and what a thief with all keys of the old session can do.
    pub(super) async fn stolen_device(&mut self, folder: &Path) -> anyhow::Result<()> {
        output::note("a stolen device: the conversation goes on under new keys");
        self.settle().await?;
        let old = self.session;
        let root = self.client.session(old).backup().await?;
        let thief = open_client(&self.network, &folder.join("thief")).await?;
        ensure!(thief.recover(&root).await? == old, "the thief has the session");

        let conversation = self.client.session(old).conversation().await?;
        let last = conversation.turns.last().context("the session has turns")?;
        let branch = Some(BranchPoint { session_id: old, link_hash: last.link_hash });
        let system = self.client.session(old).system().await?;
        let mut input = Self::ask("We go on here.");
        let history = conversation.turns.iter().flat_map(|turn| turn.messages.clone());
        drop(input.messages.splice(..0, history));
        self.session =
            self.client.new_session(NewSession { system, branch, ..NewSession::default() }).await?;
        self.say(input).await?;
        self.settle().await?;
        let deletion = self.client.session(old).delete().await?;
        ensure!(deletion.unpublished.is_none(), "the index does not know that the old session is deleted");
        output::note(&format!("  the new session {}; the old one is deleted", self.session));

        // A client looks at the index now and then; this one does so at once, and remembers the deletion.
        let looked = thief.session(old).check_head().await;
        ensure!(looked.is_err(), "the index shows the thief no deletion");
        self.thief_is_refused(&thief, &root).await?;
        self.thief_reads_nothing(&root).await?;
        thief.shutdown(Duration::ZERO).await;
        Ok(())
    }

    /// Nobody continues or restores the old session.
    async fn thief_is_refused(&self, thief: &Client, root: &SessionRoot) -> anyhow::Result<()> {
        let input = TurnInput::user("This is mine now.").with_route(|route| route.allow_echo = self.echo);
        let old = root.session_id();
        match thief.session(old).turn(input, |_: TurnEvent| {}).await {
            Err(ClientError::Deleted) => output::note("  the thief's next message: refused as Deleted"),
            Err(other) => bail!("the thief was refused as something else: {other}"),
            Ok(_) => bail!("the thief continued the session"),
        }
        ensure!(self.client.recover(root).await.is_err(), "the old words restore the deleted session");
        let known = thief.session_ids().await?;
        ensure!(!known.contains(&self.session), "the thief's device knows the new session");
        Ok(())
    }

    /// No key of the old session opens a blob of the new one.
    async fn thief_reads_nothing(&self, root: &SessionRoot) -> anyhow::Result<()> {
        let export = self.export().await?;
        let turn = export.turns.last().context("the new session has a turn")?;
        let blob = self.network.read_blob(turn.blob_id.context("the blob's ID is known")?).await?;
        let own = self.client.session(self.session).backup().await?;
        let salt = blob_salt(&blob)?;
        let open = |root: &SessionRoot| Segment::open(&blob, &root.blob_key(0, &salt), &self.session, 0);
        ensure!(open(&own).is_ok(), "the new session's own key opens its blob");
        ensure!(open(root).is_err(), "a key of the old session opens the new one's blob");
        let carried = self.client.session(self.session).conversation().await?;
        let first = carried.turns.first().and_then(|turn| turn.messages.first());
        ensure!(
            first.is_some_and(|message: &Message| message.role == Role::User),
            "the new session begins with the old one's messages"
        );
        Ok(())
    }
}
