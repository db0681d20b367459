//! Identifiers of memory. Outside names are strings or random ids. Inside, an owner's projects, sessions and
//! personas are small numbers that only the server assigns.

use std::{fmt, str::FromStr};

use baton_keys::{ids::PublicKey, owner::sui_address};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The owner of memories: the Sui address of the account key, so that ownership is computed, not looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OwnerId(pub [u8; 32]);

impl OwnerId {
    /// The owner with this account key.
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        Self(sui_address(key))
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(self.0))
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId(0x{}…)", hex::encode(&self.0[..4]))
    }
}

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id: {expected} is wanted")]
pub struct IdError {
    /// The expected form.
    pub expected: &'static str,
}

impl FromStr for OwnerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = IdError { expected: "0x and 64 hex characters" };
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.strip_prefix("0x").ok_or(wrong)?, &mut bytes).map_err(|_| wrong)?;
        Ok(Self(bytes))
    }
}

/// An item of memory: 16 random bytes, as 32 hex characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub [u8; 16]);

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ItemId({self})")
    }
}

impl FromStr for ItemId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| IdError { expected: "32 hex characters" })?;
        Ok(Self(bytes))
    }
}

impl Serialize for ItemId {
    /// Its text in a format for people, else its bytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for ItemId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer)?.parse().map_err(D::Error::custom);
        }
        Deserialize::deserialize(deserializer).map(Self)
    }
}

macro_rules! internal_ids {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
            pub struct $name(pub u32);
        )*
    };
}

internal_ids! {
    /// A project of one owner, by a number from the server. No number is used twice.
    ProjectId;
    /// A session (and its branch: they are one to one) of one owner.
    SessionId;
    /// A persona of one owner. 0 is the default persona.
    PersonaId;
}

impl PersonaId {
    /// The persona of a request that names none.
    pub const DEFAULT: Self = Self(0);
}
