//! Signed objects: the received bytes are what is signed, hashed and passed on, never a re-encoding.

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
    limits::{MAX_SIGNED_BYTES, VERSION},
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

/// A signed object as it travels: body bytes and signature, nothing checked yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBytes {
    /// The encoded object.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// Ed25519 over `len(label) ‖ label ‖ body`.
    pub signature: SignatureBytes,
}

impl SignedBytes {
    /// `KDF(context, body ‖ signature)`: the hash covers the signature, so whoever names the hash pins both.
    #[must_use]
    pub fn hash(&self, context: Context) -> [u8; 32] {
        kdf(context, &[&self.body, &self.signature.0])
    }
}

/// An object that is signed. Implementations name the label, who signs, and the size limit.
pub trait Signable: Serialize + DeserializeOwned {
    /// The signature label.
    const LABEL: SignatureLabel;
    /// What a bad signature is called: by the client or by a node.
    const BAD_SIGNATURE: ErrorCode;
    /// Largest body in bytes.
    const MAX_BYTES: usize = MAX_SIGNED_BYTES;
    /// The object's version field.
    fn version(&self) -> u8;
    /// The key that must have signed, as the object itself names it.
    fn signer(&self) -> PublicKey;
    /// Checks the object against itself, beyond its form: that ids belong to keys, that lists keep their limits.
    ///
    /// # Errors
    /// The code that names the first violation.
    fn check(&self) -> Result<(), ErrorCode> {
        Ok(())
    }
}

/// An object whose signature was checked, or made here, with the bytes it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<T> {
    bytes: SignedBytes,
    value: T,
}

impl<T: Signable> Signed<T> {
    /// Signs an object. The key must be the one that the object names as its signer; otherwise no receiver
    /// accepts it.
    #[must_use]
    pub fn sign(value: T, key: &SecretSigningKey) -> Self {
        let body = codec::encode(&value);
        let signature = SignatureBytes(key.sign(T::LABEL, &body));
        Self { bytes: SignedBytes { body, signature }, value }
    }

    /// Decodes without checking the signature, for checks that are cheaper than it. The value must not be
    /// acted upon before [`Signed::verify`].
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`], [`ErrorCode::NonCanonical`], [`ErrorCode::UnsupportedVersion`].
    pub fn peek(bytes: &SignedBytes) -> Result<T, ErrorCode> {
        // The version is the first byte of every signed body, so that later versions can change the rest.
        match bytes.body.first() {
            Some(version) if *version == VERSION => {}
            Some(_) => return Err(ErrorCode::UnsupportedVersion),
            None => return Err(ErrorCode::NonCanonical),
        }
        let value: T = codec::decode(&bytes.body, T::MAX_BYTES)?;
        if value.version() == VERSION { Ok(value) } else { Err(ErrorCode::UnsupportedVersion) }
    }

    /// Decodes, checks the object against itself and verifies the signature of the signer that it names.
    ///
    /// # Errors
    /// As [`Signed::peek`] and [`Signable::check`], and the type's code for a bad signature.
    pub fn verify(bytes: SignedBytes) -> Result<Self, ErrorCode> {
        let value = Self::peek(&bytes)?;
        value.check()?;
        sign::verify(T::LABEL, &value.signer(), &bytes.body, &bytes.signature.0)
            .map_err(|_| T::BAD_SIGNATURE)?;
        Ok(Self { bytes, value })
    }

    /// As [`Signed::verify`], from the encoded form of [`SignedBytes`].
    ///
    /// # Errors
    /// As [`Signed::verify`].
    pub fn verify_encoded(encoded: &[u8]) -> Result<Self, ErrorCode> {
        Self::verify(codec::decode(encoded, T::MAX_BYTES + 72)?)
    }

    /// The bytes as received or signed.
    #[must_use]
    pub fn bytes(&self) -> &SignedBytes {
        &self.bytes
    }

    /// The encoded form of [`Signed::bytes`].
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

impl<T> Deref for Signed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
