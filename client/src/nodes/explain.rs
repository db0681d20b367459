//! Why a node would be chosen, or not: the choice's own reckoning, told.

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

/// An offer of a node, or a node as a whole where it is excluded as such, and what the choice makes of it.
#[derive(Debug, Clone)]
pub struct NodeExplanation {
    /// The node.
    pub node: NodeId,
    /// The offer; none where the node as a whole is excluded.
    pub offer: Option<ModelOffer>,
    /// What the choice makes of it.
    pub verdict: Verdict,
    /// What this client saw of the node.
    pub evidence: Evidence,
    /// Its last failure, by name; it may be long ago.
    pub last_fault: Option<&'static str>,
    /// When it was last heard of, in milliseconds since the Unix epoch; 0 is never.
    pub heard_ms: u64,
    /// Whether nothing is heard of it.
    pub gone: bool,
    /// Turns of this client that it serves now.
    pub in_flight: u32,
    /// Turns at once, as it claims.
    pub slots: u32,
}

impl Directory {
    /// Weighs all nodes that are known for a wish.
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
                last_fault: reputation.last_fault(row.record.node).map(crate::reputation::Fault::name),
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
    /// Why each node that is known would be chosen for a turn, or not, in the order of their ids. With a session, as its
    /// next turn would see it.
    ///
    /// # Errors
    /// As [`Client::session`], where one is named.
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
            let session = self.opened(id).await?;
            (wish.last_model, wish.warm) = session.read(|state| {
                let last = state.last().and_then(|(_, meta)| Some(meta.receipt.as_ref()?.model));
                (last, self.warm_node(state))
            });
        }
        Ok(self.inner.directory.explain(&wish).await)
    }

    /// Whose clock is wrong, where every node that answers gives a record that is out of time by this machine's.
    pub async fn clock_difference(&self) -> Option<ClockDifference> {
        self.inner.directory.clock_difference(None).await
    }

    /// What a model was called that served a turn of this home, as its node said.
    #[must_use]
    pub fn model_name(&self, model: ModelId) -> Option<String> {
        self.inner.directory.model_name(model)
    }
}
