//! Explains why a node would be chosen or not, from the choice's own calculation.

use std::sync::Arc;

use baton_proto::{
    ids::{ModelId, NodeId, SessionId},
    node_record::ModelOffer,
};

use super::Directory;
use crate::{
    choose::{Evidence, Verdict, Wish, weigh},
    client::Client,
    clocks::ClockDifference,
    error::ClientError,
    event::{DEFAULT_OUTPUT_TOKENS, ResumeOptions},
};

/// The choice's verdict on a node's offer, or on the node as a whole if it is excluded.
#[derive(Debug, Clone)]
pub struct NodeExplanation {
    /// The node.
    pub node: NodeId,
    /// The offer; none if the node as a whole is excluded.
    pub offer: Option<ModelOffer>,
    /// The choice's verdict.
    pub verdict: Verdict,
    /// This client's experience with the node.
    pub evidence: Evidence,
    /// Its last failure, by name; it may be long ago.
    pub last_fault: Option<&'static str>,
    /// When it was last heard of, in milliseconds since the Unix epoch; 0 for never.
    pub heard_ms: u64,
    /// Whether it gives no sign of life.
    pub gone: bool,
    /// Turns of this client that it serves now.
    pub in_flight: u32,
    /// Its claimed number of simultaneous turns.
    pub slots: u32,
}

impl Directory {
    /// Weighs all known nodes for a wish.
    pub(crate) async fn explain(self: &Arc<Self>, wish: &Wish<'_>) -> Vec<NodeExplanation> {
        self.refresh().await;
        let known = self.lock();
        let candidates = self.candidates(&known, wish.now_ms);
        let reputation = self.reputation();
        let explained = weigh(&candidates, wish).into_iter().filter_map(|row| {
            let candidate = candidates.iter().find(|candidate| candidate.record.node == row.record.node)?;
            Some(NodeExplanation {
                node: row.record.node,
                offer: row.offer.cloned(),
                verdict: row.verdict,
                evidence: candidate.evidence,
                last_fault: reputation.last_fault(row.record.node).map(crate::reputation::NodeFailure::name),
                heard_ms: known.get(&row.record.node)?.presence.heard_ms(),
                gone: candidate.gone,
                in_flight: candidate.in_flight,
                slots: candidate.record.limits.slots,
            })
        });
        explained.collect()
    }
}

impl Client {
    /// Explains for each known node why it would be chosen for a turn or not, ordered by id. With a session,
    /// for its next turn.
    ///
    /// # Errors
    /// As [`Client::session`], if a session is named.
    pub async fn explain(
        &self,
        session: Option<SessionId>,
        options: &ResumeOptions,
    ) -> Result<Vec<NodeExplanation>, ClientError> {
        let mut wish = Wish {
            model: options.model.as_deref(),
            node: options.node,
            allow_echo: options.allow_echo,
            output_tokens: DEFAULT_OUTPUT_TOKENS,
            max_price: Some(self.inner.config.max_price),
            now_ms: self.now_ms(),
            ..Wish::default()
        };
        if let Some(id) = session {
            let session = self.open_session(id).await?;
            (wish.last_model, wish.warm) = session.read(|state| {
                let last = state.last().and_then(|(_, meta)| Some(meta.receipt.as_ref()?.model));
                (last, self.warm_node(state))
            });
        }
        Ok(self.inner.directory.explain(&wish).await)
    }

    /// The wrong clock, if every node that answers gives a record that is out of time by this machine's.
    pub async fn clock_difference(&self) -> Option<ClockDifference> {
        self.inner.directory.clock_difference(None).await
    }

    /// The name of a model that served a turn of this home, as its node said.
    #[must_use]
    pub fn model_name(&self, model: ModelId) -> Option<String> {
        self.inner.directory.model_name(model)
    }
}
