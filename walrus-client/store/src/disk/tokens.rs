//! The IDs of used publisher tokens, until the tokens expire.

use super::{
    super::error::OperationError,
    Disk,
    record::{Entry, EntryKey},
};

/// Most IDs: some 10 MB, ten times the limit of Walrus's publisher. When full of unexpired IDs, the store
/// accepts no token.
const MAX_TOKENS: usize = 100_000;

impl Disk {
    /// Notes that a token is used, if it was not yet. It is on disk when this returns.
    pub(crate) fn use_token(&self, id: &str, expires_s: u64, now_s: u64) -> Result<(), OperationError> {
        let key = key_of(id);
        {
            let index = self.writable()?;
            let (is_used, expired) = {
                let table = &self.state().table;
                let is_full = table.tokens.len() >= MAX_TOKENS;
                let expired = if is_full { table.expired_tokens(now_s) } else { Vec::new() };
                (table.tokens.contains_key(&key), expired)
            };
            if is_used {
                return Err(OperationError::TokenUsed);
            }
            self.forget(&index, &expired)?;
            if self.state().table.tokens.len() >= MAX_TOKENS {
                return Err(OperationError::TokensFull);
            }
            self.write(&index, &[Entry::Token { key, expires_s }.put(self.next_number())])?;
            self.state().table.tokens.insert(key, expires_s);
        }
        self.flush()
    }

    /// Frees the token of a request that was refused for another reason.
    pub(crate) fn release_token(&self, id: &str) -> Result<(), OperationError> {
        let index = self.writable()?;
        self.forget(&index, &[EntryKey::Token(key_of(id))])
    }
}

fn key_of(id: &str) -> [u8; 32] {
    blake3::hash(id.as_bytes()).into()
}
