//! An owner's decision on how its memory is written, and the model that may read its exchanges.

use super::Memory;
use crate::{
    api::{Result, SettingsView, WrittenBy},
    events::Event,
    extraction::{self, MessagePair, ModelWriter, SummaryMessage},
    ids::OwnerId,
    owner::Plan,
};

/// A model that may read exchanges of an owner.
#[derive(Clone)]
pub(crate) struct OwnerWriter {
    writer: ModelWriter,
    /// Whether the model runs at a third party, unknown to owner and operator.
    third_party: bool,
}

impl OwnerWriter {
    /// The model, if it may read this exchange. No model reads an off-the-record exchange; no third-party
    /// model reads passwords, keys and the like.
    pub(crate) fn for_pair(&self, pair: &MessagePair<'_>) -> Option<&ModelWriter> {
        let off_record = extraction::gate(pair).has(extraction::flag::OFF_RECORD);
        let secret =
            self.third_party && (extraction::is_secret(pair.user) || extraction::is_secret(pair.assistant));
        (!off_record && !secret).then_some(&self.writer)
    }

    /// The model, if it may read these messages.
    pub(crate) fn for_messages(&self, messages: &[SummaryMessage<'_>]) -> Option<&ModelWriter> {
        let secret = self.third_party && messages.iter().any(|message| extraction::is_secret(message.text));
        (!secret).then_some(&self.writer)
    }
}

impl Memory {
    /// An owner's decision, and its effect here.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`](crate::api::MemoryError::Unavailable) and similar ones.
    pub async fn settings(&self, owner: OwnerId) -> Result<SettingsView> {
        let extract_through_nodes = self.read(owner, |owner| Ok(owner.state.nodes_allowed)).await?;
        let parts = &self.inner.parts;
        let written_by = match (&parts.writer, &parts.node_writer) {
            (Some(_), _) => WrittenBy::Endpoint,
            (None, Some(_)) if extract_through_nodes => WrittenBy::Nodes,
            _ => WrittenBy::Rules,
        };
        Ok(SettingsView { extract_through_nodes, nodes_offered: parts.node_writer.is_some(), written_by })
    }

    /// Allows third-party nodes to read exchanges, or forbids it. Durable on return; it holds for the next job.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`](crate::api::MemoryError::Unavailable) and similar ones.
    pub async fn allow_nodes(&self, owner: OwnerId, allowed: bool) -> Result<SettingsView> {
        let at_ms = self.now_ms();
        self.write(owner, |owner| {
            let changes = owner.state.nodes_allowed != allowed;
            let events = changes.then_some(Event::NodesAllowed { allowed, at_ms });
            Ok((Plan::of(events.into_iter().collect()).quiet(), ()))
        })
        .await?;
        self.settings(owner).await
    }

    /// The model that reads an owner's exchanges now. The operator's endpoint comes first, since it is one
    /// reader and not many; then nodes, if the owner allows them; else `None`.
    pub(crate) async fn writer_of(&self, owner: OwnerId) -> Result<Option<OwnerWriter>> {
        let parts = &self.inner.parts;
        if let Some(writer) = &parts.writer {
            return Ok(Some(OwnerWriter { writer: writer.for_owner(owner), third_party: false }));
        }
        let Some(writer) = &parts.node_writer else { return Ok(None) };
        let allowed = self.read(owner, |owner| Ok(owner.state.nodes_allowed)).await?;
        Ok(allowed.then(|| OwnerWriter { writer: writer.clone(), third_party: true }))
    }

    /// Whether contents are kept on Walrus, so that a restore is possible.
    #[must_use]
    pub fn keeps_contents(&self) -> bool {
        self.inner.parts.contents.is_some()
    }
}
