//! The manifest of a loaded model. What identifies a model is [`ModelManifest`], which is the protocol's: this
//! module never hashes one itself.

pub use baton_fetch::WeightsHash;
use baton_proto::{limits::VERSION, node_record::ModelManifest};

/// A model's manifest, with its weights' hash in the type that catalogues compare it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedManifest {
    /// Hash of the weights file, as `protocol` has it.
    pub weights: WeightsHash,
    /// What the model id is the hash of.
    pub protocol: ModelManifest,
}

impl From<ModelManifest> for LoadedManifest {
    fn from(protocol: ModelManifest) -> Self {
        Self { weights: WeightsHash(protocol.weights_sha256), protocol }
    }
}

/// The manifest of a model of which only a name is known: all hashes are zero.
pub(crate) fn unseen(architecture: String) -> ModelManifest {
    ModelManifest {
        version: VERSION,
        architecture,
        weights_sha256: [0; 32],
        tokenizer_hash: [0; 32],
        template_hash: [0; 32],
    }
}
