//! Keys of single blobs of memory: each one random, used for one blob, and gone with it.

use zeroize::Zeroizing;

use crate::{
    seal::{OpenError, open_random, seal_random},
    secret::{random_bytes, secret_key},
};

secret_key!(
    /// The key of one blob. When it is destroyed, every copy of the blob is noise.
    ContentKey
);

impl ContentKey {
    /// A fresh random key.
    #[must_use]
    pub fn generate() -> Self {
        Self(random_bytes())
    }

    /// Seals a blob's content: XChaCha20-Poly1305 under a random nonce, so that the same text never gives the same bytes.
    #[must_use]
    pub fn seal(&self, associated: &[u8], text: &[u8]) -> Vec<u8> {
        seal_random(&self.0, associated, text)
    }

    /// Opens what [`ContentKey::seal`] made.
    ///
    /// # Errors
    /// [`OpenError`] when key, associated data or bytes do not belong together.
    pub fn open(&self, associated: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        open_random(&self.0, associated, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_opens_with_its_own_key_and_place_only() {
        let key = ContentKey::generate();
        let sealed = key.seal(b"owner and item", b"likes tea");
        assert_eq!(&**key.open(b"owner and item", &sealed).unwrap(), b"likes tea");
        assert_ne!(
            sealed,
            key.seal(b"owner and item", b"likes tea"),
            "the same text encrypts differently each time"
        );
        assert_eq!(key.open(b"another item", &sealed), Err(OpenError));
        assert_eq!(ContentKey::generate().open(b"owner and item", &sealed), Err(OpenError));
        assert_eq!(key.open(b"owner and item", &sealed[..20]), Err(OpenError));
    }
}
