//! Counts and hashes an answer's tokens, for progress notes and the receipt.

use baton_keys::session::RecordKey;
use baton_proto::{
    ids::{AuthHash, RunningHash},
    limits::PROGRESS_TOKENS,
    receipt::{running_hash_start, running_hash_step},
};

/// Counts and hashes tokens as they arrive.
pub(crate) struct Tally {
    auth_hash: AuthHash,
    hash: RunningHash,
    count: u32,
}

impl Tally {
    /// A tally without tokens.
    pub(crate) fn new(record_key: &RecordKey, auth_hash: AuthHash) -> Self {
        Self { auth_hash, hash: running_hash_start(record_key, &auth_hash), count: 0 }
    }

    /// The answer's authorisation.
    pub(crate) const fn auth_hash(&self) -> AuthHash {
        self.auth_hash
    }

    /// Tokens so far.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// The running hash over them.
    pub(crate) const fn hash(&self) -> RunningHash {
        self.hash
    }

    /// Adds one token. Returns count and hash when a progress note is due.
    pub(crate) fn step(&mut self, token: u32) -> Option<(u32, RunningHash)> {
        self.hash = running_hash_step(&self.hash, token);
        self.count += 1;
        self.count.is_multiple_of(PROGRESS_TOKENS).then_some((self.count, self.hash))
    }
}
