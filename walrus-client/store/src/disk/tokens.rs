//! The IDs of used publisher tokens, until the tokens expire.

use super::{Disk, DiskError};

/// Most IDs: some 10 MB, ten times the limit of Walrus's publisher. When full of unexpired IDs, the store
/// accepts no token.
const MAX_TOKENS: usize = 100_000;

/// The reason why a token is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token was used before")]
    Used,
    #[error("too many tokens that have not expired are remembered")]
    Full,
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Disk {
    /// Notes that a token is used, if it was not yet. It is on disk when this returns.
    pub(crate) fn use_token(&self, id: &str, expires_s: u64, now_s: u64) -> Result<(), TokenError> {
        let key = key_of(id);
        {
            let mut state = self.writable()?;
            if state.table.tokens.contains_key(&key) {
                return Err(TokenError::Used);
            }
            if state.table.tokens.len() >= MAX_TOKENS {
                state.table.tokens.retain(|_, token| token.expires_s >= now_s);
            }
            if state.table.tokens.len() >= MAX_TOKENS {
                return Err(TokenError::Full);
            }
            self.health.note(state.put_token(key, expires_s)).map_err(DiskError::from)?;
            self.tidy(&mut state);
        }
        Ok(self.flush()?)
    }

    /// Frees the token of a request that was refused for another reason.
    pub(crate) fn release_token(&self, id: &str) -> Result<(), DiskError> {
        let mut state = self.writable()?;
        Ok(self.health.note(state.release_token(key_of(id)))?)
    }
}

fn key_of(id: &str) -> [u8; 32] {
    blake3::hash(id.as_bytes()).into()
}
