//! Byte identifiers: each 32-byte or 16-byte value on the wire has its own type, so that no two can be mixed
//! up. Identifiers are public values; secrets live in [`crate::secret`].

use crate::{contexts::EXCHANGE_KEY_ID, secret::kdf};

/// Defines a public fixed-size byte identifier with hex `Display`, `Debug`, parsing, and serde as a plain
/// byte tuple (no length prefix on the wire).
#[macro_export]
macro_rules! byte_id {
    ($(#[$meta:meta])* $name:ident, $len:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// The raw bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// Parses lower- or upper-case hex of exactly the right length.
            ///
            /// # Errors
            /// [`$crate::ids::ParseIdError`] when the text is not hex of this identifier's length.
            pub fn parse_hex(text: &str) -> Result<Self, $crate::ids::ParseIdError> {
                let mut bytes = [0u8; $len];
                $crate::ids::decode_hex(text, &mut bytes)?;
                Ok(Self(bytes))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ids::ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::parse_hex(text)
            }
        }

        impl From<[u8; $len]> for $name {
            fn from(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
    };
}

/// Defines a public value of a fixed size that is too large for the stack: on the heap, and serde as a plain
/// byte tuple (no length prefix on the wire).
macro_rules! long_bytes {
    ($(#[$meta:meta])* $name:ident, $len:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $name(Box<[u8; $len]>);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// The raw bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }

            /// Takes exactly the right number of bytes; none for any other number.
            #[must_use]
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                Box::try_from(bytes.to_vec()).ok().map(Self)
            }
        }

        impl From<[u8; $len]> for $name {
            fn from(bytes: [u8; $len]) -> Self {
                Self(Box::new(bytes))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeTuple as _;
                let mut tuple = serializer.serialize_tuple($len)?;
                self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
                tuple.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Bytes;

                impl<'de> serde::de::Visitor<'de> for Bytes {
                    type Value = Box<[u8; $len]>;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(f, "{} bytes", $len)
                    }

                    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                        let mut bytes = Box::new([0u8; $len]);
                        for (index, byte) in bytes.iter_mut().enumerate() {
                            let item = items.next_element()?;
                            *byte = item.ok_or_else(|| serde::de::Error::invalid_length(index, &self))?;
                        }
                        Ok(bytes)
                    }
                }

                deserializer.deserialize_tuple($len, Bytes).map(Self)
            }
        }
    };
}

/// A text that is not the hex form of the expected identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} hexadecimal characters")]
pub struct ParseIdError {
    /// Number of hex characters of the identifier.
    pub expected: usize,
}

/// Decodes hex into a buffer of exactly the right size; used by [`byte_id!`](crate::byte_id).
///
/// # Errors
/// [`ParseIdError`] when the text has another length or a character that is not hex.
pub fn decode_hex(text: &str, out: &mut [u8]) -> Result<(), ParseIdError> {
    hex::decode_to_slice(text, out).map_err(|_| ParseIdError { expected: out.len() * 2 })
}

byte_id!(
    /// A session: `KDF("session-id", session public key)`, so the id certifies its own key.
    SessionId, 32
);
byte_id!(
    /// A turn, 16 random bytes chosen by the client; stable over the attempts of that turn.
    TurnId, 16
);
byte_id!(
    /// A request for embeddings, 16 random bytes chosen by the client.
    EmbedId, 16
);
byte_id!(
    /// A node: its Ed25519 public key, the same key that its libp2p `PeerId` encodes.
    NodeId, 32
);
byte_id!(
    /// An Ed25519 public key in its 32-byte encoding (RFC 8032), not yet checked to be a valid point.
    PublicKey, 32
);
byte_id!(
    /// The hash of an exchange key: a short name for it in signed orders, logs and listings.
    ExchangeKeyId, 32
);
long_bytes!(
    /// A hybrid public key: ML-KEM-768 (1,184 bytes, FIPS 203) and X25519 (32 bytes, RFC 7748), as X-Wing orders
    /// them. The bytes are unchecked; [`ExchangeKey::check`] and every seal check them.
    ExchangeKey, 1216
);
long_bytes!(
    /// The sender's half of a hybrid exchange: a ML-KEM-768 ciphertext (1,088 bytes) and an ephemeral X25519 key
    /// (32 bytes).
    Encapsulation, 1120
);
byte_id!(
    /// The index key of a session's head record: a hash of the head public key.
    HeadIndexKey, 32
);
byte_id!(
    /// The 16 random-looking bytes at the start of every stored blob.
    BlobSalt, 16
);

impl ExchangeKey {
    /// `KDF("exchange-key-id", key)`.
    #[must_use]
    pub fn id(&self) -> ExchangeKeyId {
        ExchangeKeyId(kdf(EXCHANGE_KEY_ID, &[&self.0[..]]))
    }
}

impl Encapsulation {
    /// Splits a sealed message into the encapsulation at its start and the rest; none for a shorter message.
    #[must_use]
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (start, rest) = message.split_first_chunk::<{ Self::LEN }>()?;
        Some((Self(Box::new(*start)), rest))
    }
}

impl std::fmt::Debug for ExchangeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExchangeKey(id {})", self.id())
    }
}

impl std::fmt::Debug for Encapsulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encapsulation(..)")
    }
}

impl NodeId {
    /// The same bytes as a verification key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_take_their_own_length_alone_and_are_named_by_a_hash() {
        let key = ExchangeKey::from([7; ExchangeKey::LEN]);
        assert_eq!(ExchangeKey::from_slice(key.as_bytes()), Some(key.clone()));
        assert_eq!(ExchangeKey::from_slice(&key.as_bytes()[1..]), None);
        assert_eq!(Encapsulation::from_slice(key.as_bytes()), None);
        let (start, rest) = Encapsulation::split(key.as_bytes()).unwrap();
        assert_eq!((start.as_bytes(), rest), (&[7; Encapsulation::LEN], &[7; 96][..]));
        assert!(Encapsulation::split(&[7; Encapsulation::LEN - 1]).is_none());
        let mut other = *key.as_bytes();
        other[ExchangeKey::LEN - 1] ^= 1;
        assert_ne!(ExchangeKey::from(other).id(), key.id());
        assert_eq!(format!("{key:?}"), format!("ExchangeKey(id {})", key.id()));
    }
}
