//! The JSON form of an export's fields: identifiers as their text, bytes as standard base64.
//!
//! Each value has exactly one text, so a change of any character is noticed.

use std::{fmt::Display, str::FromStr};

use serde::{Deserialize, Deserializer, Serializer};

fn parse<T: FromStr + Display, E: serde::de::Error>(text: &str) -> Result<T, E> {
    let value = text.parse::<T>().map_err(|_| E::custom("malformed identifier"))?;
    if value.to_string() == text { Ok(value) } else { Err(E::custom("identifier not in its canonical text")) }
}

pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr + Display,
    D: Deserializer<'de>,
{
    parse(&String::deserialize(deserializer)?)
}

/// An optional field that must be present, even as `null`.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

/// An optional field that is absent when empty, never `null`.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// An optional identifier.
pub(super) mod option {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer, parse};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr + Display,
        D: Deserializer<'de>,
    {
        Option::<String>::deserialize(deserializer)?.map(|text| parse(&text)).transpose()
    }
}

/// Bytes.
pub(crate) mod base64 {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::de::Error as _;

    use super::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(|_| D::Error::custom("malformed base64"))
    }
}

/// Optional bytes.
pub(super) mod base64_option {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::de::Error as _;

    use super::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| STANDARD.decode(text).map_err(|_| D::Error::custom("malformed base64")))
            .transpose()
    }
}
