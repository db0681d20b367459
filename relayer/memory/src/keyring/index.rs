//! The keys of the rows by which a database searches. They are not the owner's: they are replaced after deletions, so that
//! what old pages keep of deleted rows cannot be tested against guessed words.

use baton_keys::master::{OwnerSecret, OwnerUse};
use zeroize::Zeroizing;

/// The keys of one generation of an owner's index rows.
pub struct IndexKeys {
    generation: u64,
    class_tag: Zeroizing<[u8; 32]>,
    rotation: Zeroizing<[u8; 32]>,
    /// `None` for rows under the owner's own secret, whose terms are the owner's term hashes.
    terms: Option<Zeroizing<[u8; 32]>>,
}

impl IndexKeys {
    pub(crate) fn of(generation: u64, secret: &OwnerSecret) -> Self {
        Self { terms: Some(secret.derive(OwnerUse::TermHash)), ..Self::derived(generation, secret) }
    }

    /// Those of rows that were written before the index had keys of its own.
    pub(crate) fn of_owner(secret: &OwnerSecret) -> Self {
        Self::derived(0, secret)
    }

    fn derived(generation: u64, secret: &OwnerSecret) -> Self {
        Self {
            generation,
            class_tag: secret.derive(OwnerUse::ClassTag),
            rotation: secret.derive(OwnerUse::Rotation),
            terms: None,
        }
    }

    /// Which generation it is; none has the number of an earlier one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Keyed tag of a class of items.
    #[must_use]
    pub fn class_tag(&self, class: &[u8]) -> [u8; 16] {
        *blake3::keyed_hash(&self.class_tag, class).as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// The seed of [`rotate`](crate::rotation::rotate).
    #[must_use]
    pub fn rotation_seed(&self) -> &[u8; 32] {
        &self.rotation
    }

    /// How a row names the owner's hash of a term. Both keys are needed to tell which word it is.
    #[must_use]
    pub fn term(&self, hash: u64) -> u64 {
        let Some(key) = &self.terms else { return hash };
        let named = blake3::keyed_hash(key, &hash.to_le_bytes());
        u64::from_le_bytes(*named.as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }
}

impl std::fmt::Debug for IndexKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexKeys").field("generation", &self.generation).finish_non_exhaustive()
    }
}
