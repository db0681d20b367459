//! Counts and hashes an answer's tokens, for progress notes and the receipt's audit root.

use baton_keys::session::RecordKey;
use baton_proto::{
    ids::{AuthHash, RunningHash},
    limits::PROGRESS_TOKENS,
    receipt::{AuditLeaf, running_hash_start, running_hash_step},
};

/// Counts and hashes tokens as they arrive.
pub(crate) struct Tally {
    auth_hash: AuthHash,
    hash: RunningHash,
    count: u32,
    leaf_from: u32,
    leaves: Vec<AuditLeaf>,
}

impl Tally {
    /// A tally without tokens.
    pub(crate) fn new(record_key: &RecordKey, auth_hash: AuthHash) -> Self {
        Self {
            auth_hash,
            hash: running_hash_start(record_key, &auth_hash),
            count: 0,
            leaf_from: 0,
            leaves: Vec::new(),
        }
    }

    /// The answer's authorisation.
    pub(crate) const fn auth_hash(&self) -> AuthHash {
        self.auth_hash
    }

    /// Tokens so far.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// The number of tokens, and the leaves of the audit tree.
    pub(crate) fn finish(mut self) -> (u32, Vec<AuditLeaf>) {
        self.close_leaf();
        (self.count, self.leaves)
    }

    /// Adds one token. Returns count and hash for a progress note when a leaf is full.
    pub(crate) fn step(&mut self, token: u32) -> Option<(u32, RunningHash)> {
        self.hash = running_hash_step(&self.hash, token);
        self.count += 1;
        if self.count - self.leaf_from < PROGRESS_TOKENS {
            return None;
        }
        self.close_leaf();
        Some((self.count, self.hash))
    }

    fn close_leaf(&mut self) {
        if self.count > self.leaf_from {
            self.leaves.push(AuditLeaf {
                first_token: self.leaf_from,
                count: self.count - self.leaf_from,
                running_hash: self.hash,
                // The engines here do not attest logits.
                logits_hash: [0; 32],
            });
            self.leaf_from = self.count;
        }
    }
}
