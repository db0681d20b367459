//! The IDs of publisher tokens that were used, until the tokens expire.

use super::{Disk, DiskError};

/// Most IDs kept: 4 MB, ten times what Walrus's publisher keeps. Past it, while none of them has expired, no token is
/// taken.
const MAX_TOKENS: usize = 100_000;

/// Why a token cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(in crate::embedded) enum TokenError {
    #[error("the token was used before")]
    Used,
    #[error("too many tokens that have not expired are remembered")]
    Full,
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<sled::Error> for TokenError {
    fn from(error: sled::Error) -> Self {
        Self::Disk(error.into())
    }
}

impl Disk {
    /// Notes that a token is used, if it never was. On disk with the next flush: that of what the token is for.
    pub(in crate::embedded) fn use_token(
        &self,
        id: &str,
        expires_s: u64,
        now_s: u64,
    ) -> Result<(), TokenError> {
        let key = key_of(id);
        let mut totals = self.totals();
        if self.tokens.contains_key(key)? {
            return Err(TokenError::Used);
        }
        if totals.tokens >= MAX_TOKENS {
            for entry in &self.tokens {
                let (key, value) = entry?;
                let expires_s = value[..].try_into().map_or(0, u64::from_le_bytes);
                if expires_s < now_s && self.tokens.remove(key)?.is_some() {
                    totals.tokens -= 1;
                }
            }
        }
        if totals.tokens >= MAX_TOKENS {
            return Err(TokenError::Full);
        }
        self.tokens.insert(key, &expires_s.to_le_bytes())?;
        totals.tokens += 1;
        Ok(())
    }

    /// Takes it back, for a request that was refused for another reason.
    pub(in crate::embedded) fn release_token(&self, id: &str) -> Result<(), DiskError> {
        let mut totals = self.totals();
        if self.tokens.remove(key_of(id))?.is_some() {
            totals.tokens -= 1;
        }
        Ok(())
    }
}

fn key_of(id: &str) -> [u8; 32] {
    blake3::hash(id.as_bytes()).into()
}
