//! Signed objects: signatures, hashes and forwarding use the received bytes, never a re-encoding.

use std::ops::Deref;

use baton_keys::{
    SIGNATURE_LEN, SecretSigningKey,
    contexts::{Context, SignatureLabel},
    secret::kdf,
    sign,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    codec,
    error::ErrorCode,
    ids::PublicKey,
    limits::{MAX_AUTH_LIFETIME_MS, MAX_CLOCK_SKEW_MS, MAX_SIGNED_BYTES, VERSION},
};

/// An Ed25519 signature, 64 bytes on the wire without a length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SignatureBytes(pub [u8; SIGNATURE_LEN]);

impl Serialize for SignatureBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (left, right) = self.0.split_at(32);
        let left: &[u8; 32] = left.try_into().map_err(serde::ser::Error::custom)?;
        let right: &[u8; 32] = right.try_into().map_err(serde::ser::Error::custom)?;
        (left, right).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SignatureBytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (left, right) = <([u8; 32], [u8; 32])>::deserialize(deserializer)?;
        let mut bytes = [0u8; SIGNATURE_LEN];
        bytes[..32].copy_from_slice(&left);
        bytes[32..].copy_from_slice(&right);
        Ok(Self(bytes))
    }
}

impl std::fmt::Debug for SignatureBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignatureBytes(..)")
    }
}

/// A signed object in transit: body bytes and signature, both unchecked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBytes {
    /// The encoded object.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// Ed25519 over `len(label) ‖ label ‖ body`.
    pub signature: SignatureBytes,
}

impl SignedBytes {
    /// `KDF(context, body ‖ signature)`. The hash covers the signature, so a reference to the hash pins both.
    #[must_use]
    pub fn hash(&self, context: Context) -> [u8; 32] {
        kdf(context, &[&self.body, &self.signature.0])
    }
}

/// Whether a client's order may be admitted now.
pub(crate) fn check_order_time(issued_ms: u64, expires_ms: u64, now_ms: u64) -> Result<(), ErrorCode> {
    if issued_ms > now_ms.saturating_add(MAX_CLOCK_SKEW_MS) {
        return Err(ErrorCode::NotYetValid);
    }
    let lifetime = expires_ms.checked_sub(issued_ms);
    if lifetime.is_none_or(|lifetime| lifetime > MAX_AUTH_LIFETIME_MS) || now_ms > expires_ms {
        return Err(ErrorCode::Expired);
    }
    Ok(())
}

/// A signed object, whose first field is its version. Implementations name the label, the signer and the size
/// limit.
pub trait Signable: Serialize + DeserializeOwned {
    /// The signature label.
    const LABEL: SignatureLabel;
    /// The code for a bad signature: the client's or a node's.
    const BAD_SIGNATURE: ErrorCode;
    /// Largest body in bytes.
    const MAX_BYTES: usize = MAX_SIGNED_BYTES;
    /// The only version that is read.
    const VERSION: u8 = VERSION;
    /// The key that must sign, as the object itself names it.
    fn signer(&self) -> PublicKey;
    /// Checks the object's content: for example that ids belong to keys and that lists keep their limits.
    ///
    /// # Errors
    /// The code that names the first violation.
    fn check(&self) -> Result<(), ErrorCode> {
        Ok(())
    }
}

/// An object with a verified or own signature, and its original bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedObject<T> {
    bytes: SignedBytes,
    value: T,
}

impl<T: Signable> SignedObject<T> {
    /// Signs an object. `key` must be the signer that the object names; otherwise every receiver refuses it.
    #[must_use]
    pub fn sign(value: T, key: &SecretSigningKey) -> Self {
        let body = codec::encode(&value);
        let signature = SignatureBytes(key.sign(T::LABEL, &body));
        Self { bytes: SignedBytes { body, signature }, value }
    }

    /// Decodes without checking the signature, for checks that cost less than the signature. The caller must
    /// not act upon the value before [`SignedObject::verify`].
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`], [`ErrorCode::NonCanonical`], [`ErrorCode::UnsupportedVersion`].
    pub fn peek(bytes: &SignedBytes) -> Result<T, ErrorCode> {
        // The version is the first byte of every signed body, so that later versions can change the rest.
        match bytes.body.first() {
            Some(version) if *version == T::VERSION => {}
            Some(_) => return Err(ErrorCode::UnsupportedVersion),
            None => return Err(ErrorCode::NonCanonical),
        }
        codec::decode(&bytes.body, T::MAX_BYTES)
    }

    /// Decodes, checks the object's content and verifies its signer's signature.
    ///
    /// # Errors
    /// As [`SignedObject::peek`] and [`Signable::check`], and the type's code for a bad signature.
    pub fn verify(bytes: SignedBytes) -> Result<Self, ErrorCode> {
        let value = Self::peek(&bytes)?;
        value.check()?;
        sign::verify(T::LABEL, &value.signer(), &bytes.body, &bytes.signature.0)
            .map_err(|_| T::BAD_SIGNATURE)?;
        Ok(Self { bytes, value })
    }

    /// As [`SignedObject::verify`], for bytes whose signature was verified before: this very body
    /// with this very signature. The caller must have kept them where nobody else can change them.
    ///
    /// # Errors
    /// As [`SignedObject::peek`] and [`Signable::check`].
    pub fn of_verified(bytes: SignedBytes) -> Result<Self, ErrorCode> {
        let value = Self::peek(&bytes)?;
        value.check()?;
        Ok(Self { bytes, value })
    }

    /// As [`SignedObject::verify`], from the encoded form of [`SignedBytes`].
    ///
    /// # Errors
    /// As [`SignedObject::verify`].
    pub fn verify_encoded(encoded: &[u8]) -> Result<Self, ErrorCode> {
        Self::verify(codec::decode(encoded, T::MAX_BYTES + 72)?)
    }

    /// The bytes as received or signed.
    #[must_use]
    pub fn bytes(&self) -> &SignedBytes {
        &self.bytes
    }

    /// The encoded form of [`SignedObject::bytes`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(&self.bytes)
    }

    /// The object itself.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }
}

impl<T> Deref for SignedObject<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
