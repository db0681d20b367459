//! Explains why a node would be chosen or not, from the choice's own calculation.

use std::sync::Arc;

use baton_proto::{ids::NodeId, node_record::ModelOffer};

use super::Directory;
use crate::network::choose::{Evidence, Verdict, Wish, weigh};

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
                last_fault: reputation
                    .last_fault(row.record.node)
                    .map(crate::network::reputation::NodeFailure::name),
                heard_ms: known.get(&row.record.node)?.presence.heard_ms(),
                gone: candidate.gone,
                in_flight: candidate.in_flight,
                slots: candidate.record.limits.slots,
            })
        });
        explained.collect()
    }
}
