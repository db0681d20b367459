//! IDs of Sui objects, by which aggregators can also read blobs.

use std::{fmt, str::FromStr};

/// The ID of a Sui object, such as that of a stored blob: 32 bytes, in text `0x` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 32]);

/// A text that is not an object ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an object ID is 0x and 64 hexadecimal digits")]
pub struct ParseObjectIdError;

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(self.0))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

impl FromStr for ObjectId {
    type Err = ParseObjectIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        let digits = text.strip_prefix("0x").ok_or(ParseObjectIdError)?;
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| ParseObjectIdError)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        let id = ObjectId([0xa1; 32]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "0x", "0x01", &"a1".repeat(32), &format!("0x{}", "g".repeat(64))] {
            assert_eq!(text.parse::<ObjectId>(), Err(ParseObjectIdError), "{text}");
        }
    }
}
