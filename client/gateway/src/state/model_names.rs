//! The names of the models that nodes offered.

use std::collections::HashMap;

use baton_client::NodeInfo;
use baton_proto::ids::ModelId;

/// Most remembered names of models: more than the nodes of a home offer.
const MAX_MODEL_NAMES: usize = 1_000;

/// The models' names by id. A receipt has the id alone, and its node may be gone.
#[derive(Debug, Default)]
pub(crate) struct ModelNames(HashMap<ModelId, String>);

impl ModelNames {
    /// Remembers the names that these nodes offer. Beyond the limit, new names are not remembered.
    pub(crate) fn learn(&mut self, nodes: &[NodeInfo]) {
        for offer in nodes.iter().flat_map(|node| &node.record.models) {
            if self.0.len() < MAX_MODEL_NAMES || self.0.contains_key(&offer.model) {
                self.0.insert(offer.model, offer.name.clone());
            }
        }
    }

    /// The name of a model, if a node offered it.
    pub(crate) fn name(&self, model: &ModelId) -> Option<&str> {
        self.0.get(model).map(String::as_str)
    }
}
