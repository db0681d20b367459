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
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
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

/// Sampling settings: their encoding. The field is absent when they are unknown, and never `null`.
pub(super) mod sampling {
    use serde::{Deserializer, Serializer, de::Error as _};

    use super::base64;
    use crate::{
        codec,
        limits::{MAX_STOP_BYTES, MAX_STOP_STRINGS, MAX_TOKEN_BIASES},
        turn::Sampling,
    };

    /// Largest encoding: the numbers, the stop strings with their lengths, and the biases.
    const MAX_BYTES: usize = 128 + MAX_STOP_STRINGS * (MAX_STOP_BYTES + 8) + MAX_TOKEN_BIASES * 9;

    #[expect(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(in super::super) fn serialize<S: Serializer>(
        sampling: &Option<Sampling>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match sampling {
            Some(sampling) => base64::serialize(&codec::encode_secret(sampling), serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Sampling>, D::Error> {
        let bytes = zeroize::Zeroizing::new(base64::deserialize(deserializer)?);
        let sampling: Sampling = codec::decode(&bytes, MAX_BYTES).map_err(D::Error::custom)?;
        sampling.check().map_err(D::Error::custom)?;
        Ok(Some(sampling))
    }
}
