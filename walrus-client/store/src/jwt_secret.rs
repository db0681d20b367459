//! The secret of publisher tokens, which the store shares with their issuer. It never reaches a log.

use std::fmt;

use baton_walrus_client::jwt::MIN_JWT_SECRET_BYTES;
use zeroize::Zeroizing;

/// The secret that signs publisher tokens. Its memory is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct JwtSecret(Zeroizing<Vec<u8>>);

/// A secret that is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {given} bytes; take at least {MIN_JWT_SECRET_BYTES} random ones")]
pub struct JwtSecretError {
    /// Its length.
    pub given: usize,
}

impl JwtSecret {
    /// Takes the bytes unchanged.
    ///
    /// # Errors
    /// [`JwtSecretError`] for fewer than [`MIN_JWT_SECRET_BYTES`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, JwtSecretError> {
        let bytes = Zeroizing::new(bytes);
        if bytes.len() < MIN_JWT_SECRET_BYTES {
            return Err(JwtSecretError { given: bytes.len() });
        }
        Ok(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for JwtSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JwtSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_secret_is_refused_and_none_is_printed() {
        assert_eq!(JwtSecret::new(vec![1; 31]), Err(JwtSecretError { given: 31 }));
        let secret = JwtSecret::new(vec![b'S'; 32]).unwrap();
        assert_eq!(format!("{secret:?}"), "JwtSecret");
    }
}
