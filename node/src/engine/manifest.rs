//! The manifest of a loaded model. The protocol's [`ModelManifest`] identifies a model; this module never
//! hashes one itself.

pub(crate) use baton_models::WeightsHash;
use baton_proto::{limits::MODEL_MANIFEST_VERSION, node_record::ModelManifest};

/// A model's manifest, with its weights' hash in the catalogue's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedManifest {
    /// Hash of the weights file, as in `protocol`.
    pub weights: WeightsHash,
    /// The manifest behind the model ID.
    pub protocol: ModelManifest,
}

impl From<ModelManifest> for LoadedManifest {
    fn from(protocol: ModelManifest) -> Self {
        Self { weights: WeightsHash(protocol.weights_sha256), protocol }
    }
}

/// The manifest of a model that is known only by name: all hashes are zero.
pub(crate) fn unseen(architecture: String) -> ModelManifest {
    ModelManifest {
        version: MODEL_MANIFEST_VERSION,
        architecture,
        weights_sha256: [0; 32],
        tokenizer_hash: [0; 32],
        template_hash: [0; 32],
        engine_revision: 0,
    }
}
