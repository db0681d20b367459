//! The stored features of an item.

use baton_proto::codec;
use serde::{Deserialize, Serialize};

use super::{Features, QuantisedVector};
use crate::limits::MAX_TEXT_BYTES;

/// Largest encoded record: an item of the largest text has fewer bytes of terms than of text.
const MAX_RECORD_BYTES: usize = MAX_TEXT_BYTES + 64 * 1024;

/// The stored features of an item, with the embedder of its vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FeatureRecord {
    /// The embedder; empty without a vector.
    pub(crate) embedder: String,
    pub(crate) dimensions: u32,
    /// BLAKE3 of the vector's codes (C6).
    pub(crate) checksum: [u8; 32],
    pub(crate) features: Features,
}

impl FeatureRecord {
    pub(crate) fn new(features: Features, embedder: &str) -> Self {
        let (dimensions, checksum) = features.vector.as_ref().map_or((0, [0; 32]), |vector| {
            (u32::try_from(vector.codes.len()).unwrap_or(u32::MAX), checksum(vector))
        });
        let embedder = if dimensions == 0 { String::new() } else { embedder.to_owned() };
        Self { embedder, dimensions, checksum, features }
    }

    /// Decodes a record; `None` for other bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        codec::decode(bytes, MAX_RECORD_BYTES).ok()
    }

    /// Whether its vector comes from this embedder and is intact.
    pub(crate) fn is_of(&self, embedder: &str, dimensions: usize) -> bool {
        let vector = self.features.vector.as_ref();
        self.embedder == embedder
            && vector
                .is_some_and(|vector| vector.codes.len() == dimensions && checksum(vector) == self.checksum)
    }
}

fn checksum(vector: &QuantisedVector) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&vector.scale.to_le_bytes());
    for code in &vector.codes {
        hasher.update(&code.to_le_bytes());
    }
    hasher.finalize().into()
}
