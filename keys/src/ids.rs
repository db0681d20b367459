//! Byte identifiers: each 32-byte or 16-byte value on the wire has its own type, so that no two can be mixed
//! up. Identifiers are public values; secrets live in [`crate::secret`].

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
    /// An X25519 public key (RFC 7748).
    ExchangeKey, 32
);
byte_id!(
    /// The index key of a session's head record: a hash of the head public key.
    HeadIndexKey, 32
);
byte_id!(
    /// The 16 random-looking bytes at the start of every stored blob.
    BlobSalt, 16
);

impl NodeId {
    /// The same bytes as a verification key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0)
    }
}
