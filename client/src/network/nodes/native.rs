//! The nodes that decoys can check: those that compute a model by their own engine, which gives the same bits
//! everywhere.

use baton_proto::{
    ids::{ModelId, NodeId},
    limits::VERSION,
    receipt::EngineKind,
};

use super::Directory;

/// A node that computes a model by its own engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NativeNode {
    /// The node.
    pub(crate) node: NodeId,
    /// Most tokens that it gives in one answer; 0 if it names no limit.
    pub(crate) max_output_tokens: u32,
    /// Tokens of the model's context there.
    pub(crate) context_tokens: u32,
}

impl Directory {
    /// The nodes with a current record that offer a model on their own engine, and are not avoided now.
    pub(crate) fn native_nodes(&self, model: ModelId) -> Vec<NativeNode> {
        let now_ms = self.now_ms();
        let usable = self.usable();
        let reputation = self.reputation();
        let native = usable.iter().filter_map(|info| {
            let record = &info.record;
            let evidence = reputation.evidence(record.node, now_ms);
            let avoided = evidence.lied_until_ms.max(evidence.paused_until_ms) > now_ms;
            let mut offers = record.models.iter();
            let offer = offers.find(|offer| offer.model == model && offer.engine == EngineKind::Native)?;
            (!avoided && record.versions.contains(&VERSION)).then_some(NativeNode {
                node: record.node,
                max_output_tokens: record.limits.max_output_tokens,
                context_tokens: offer.context_tokens,
            })
        });
        native.collect()
    }
}
