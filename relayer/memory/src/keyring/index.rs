//! The keys of a database's index rows. They are separate from the owner's keys and are replaced after
//! deletions. Then guessed words cannot be tested against deleted rows on old pages.

use baton_keys::master::{OwnerSecret, OwnerUse};
use zeroize::Zeroizing;

/// The keys of one generation of an owner's index rows.
pub struct IndexKeys {
    generation: u64,
    class_tag: Zeroizing<[u8; 32]>,
    rotation: Zeroizing<[u8; 32]>,
    /// `None` for rows under the owner's own secret: their terms are the owner's term hashes.
    terms: Option<Zeroizing<[u8; 32]>>,
}

impl IndexKeys {
    pub(crate) fn of(generation: u64, secret: &OwnerSecret) -> Self {
        Self { terms: Some(secret.derive(OwnerUse::TermHash)), ..Self::derived(generation, secret) }
    }

    /// The keys of rows that are older than the index's own keys.
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

    /// The generation; no number is used twice.
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

    /// A row's name for the owner's hash of a term. Both keys are needed to find the word.
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
