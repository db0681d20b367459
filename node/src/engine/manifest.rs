//! What identifies a model: the hashes of everything that decides its output. [`model_id`] is the only
//! place that turns a manifest into an id.

use baton_keys::byte_id;
use baton_proto::ids::ModelId;

byte_id!(
    /// SHA-256 of a weights file, as catalogues and `sha256sum` state it.
    WeightsHash, 32
);
byte_id!(
    /// BLAKE3 over a tokenizer's vocabulary, types, merges and settings.
    TokenizerHash, 32
);
byte_id!(
    /// BLAKE3 of a chat template's source text.
    TemplateHash, 32
);

/// BLAKE3 `derive_key` context of [`model_id`].
const MODEL_MANIFEST_CONTEXT: &str = "baton 2026-11-21 model-manifest v1";

/// Everything that decides what a model answers, apart from the arithmetic's rounding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelManifest {
    /// Hash of the weights file. All zero where the weights cannot be seen (proxied) or do not exist (echo).
    pub weights: WeightsHash,
    /// Hash of the tokenizer, all zero where it cannot be seen.
    pub tokenizer: TokenizerHash,
    /// Hash of the chat template, all zero where it cannot be seen.
    pub template: TemplateHash,
    /// Architecture by its GGUF name; `proxied/<model>` or `echo` for the other kinds.
    pub architecture: String,
    /// Context that the model was made for, in tokens; an operator's lower limit is not part of identity.
    pub context_tokens: u32,
}

/// The model's identity: BLAKE3 `derive_key("baton 2026-11-21 model-manifest v1", bytes)`, where `bytes` are
/// the fields in order (weights 32 bytes, tokenizer 32, template 32, architecture as UTF-8, context as
/// u32 little-endian), each preceded by its length in bytes as u64 little-endian.
#[must_use]
pub fn model_id(manifest: &ModelManifest) -> ModelId {
    let mut hasher = blake3::Hasher::new_derive_key(MODEL_MANIFEST_CONTEXT);
    for field in [
        manifest.weights.as_ref(),
        manifest.tokenizer.as_ref(),
        manifest.template.as_ref(),
        manifest.architecture.as_bytes(),
        &manifest.context_tokens.to_le_bytes(),
    ] {
        update_field(&mut hasher, field);
    }
    ModelId(*hasher.finalize().as_bytes())
}

/// Feeds one field with its length before it, so that no two field lists give the same bytes.
pub(crate) fn update_field(hasher: &mut blake3::Hasher, field: &[u8]) {
    hasher.update(&(field.len() as u64).to_le_bytes());
    hasher.update(field);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> ModelManifest {
        ModelManifest {
            weights: WeightsHash([1; 32]),
            tokenizer: TokenizerHash([2; 32]),
            template: TemplateHash([3; 32]),
            architecture: "llama".into(),
            context_tokens: 8192,
        }
    }

    #[test]
    fn layout_is_length_prefixed_fields_in_order() {
        let mut bytes = Vec::new();
        for fill in [1u8, 2, 3] {
            bytes.extend_from_slice(&32u64.to_le_bytes());
            bytes.extend_from_slice(&[fill; 32]);
        }
        bytes.extend_from_slice(&5u64.to_le_bytes());
        bytes.extend_from_slice(b"llama");
        bytes.extend_from_slice(&4u64.to_le_bytes());
        bytes.extend_from_slice(&8192u32.to_le_bytes());
        let expected = blake3::derive_key("baton 2026-11-21 model-manifest v1", &bytes);
        assert_eq!(model_id(&manifest()).as_bytes(), &expected);
    }

    #[test]
    fn every_field_changes_the_id() {
        let id = model_id(&manifest());
        let changes: [fn(&mut ModelManifest); 5] = [
            |m| m.weights.0[0] ^= 1,
            |m| m.tokenizer.0[31] ^= 1,
            |m| m.template.0[7] ^= 1,
            |m| m.architecture.push('x'),
            |m| m.context_tokens += 1,
        ];
        for change in changes {
            let mut changed = manifest();
            change(&mut changed);
            assert_ne!(model_id(&changed), id);
        }
    }
}
