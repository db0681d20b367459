//! JSON whose maps keep the order of their keys: models were trained on definitions in their authors' order.

use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use zeroize::Zeroizing;

/// A JSON value.
#[derive(Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(Zeroizing<String>),
    /// A list.
    List(Vec<Json>),
    /// A map, in order. A repeated key has its last value at its first position.
    Map(Vec<(Zeroizing<String>, Json)>),
}

impl Json {
    /// Parses a text that is exactly one value; nesting is limited by `serde_json`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Parses the value at the beginning of a text; also returns the rest.
    pub(super) fn parse_first(text: &str) -> Option<(Self, &str)> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Self>();
        let value = values.next()?.ok()?;
        Some((value, text.get(values.byte_offset()..)?))
    }

    /// A text as a value.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(Zeroizing::new(text.to_owned()))
    }

    /// The value of a key, in a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value)
    }

    /// The string, if the value is a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Writes it as chat templates and models do: on one line, with a space after commas and colons.
    #[must_use]
    pub fn write(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(String::new());
        self.write_to(&mut out, false);
        out
    }

    /// Writes equal values alike, whatever the order of keys and the form of numbers.
    #[must_use]
    pub(super) fn write_canonical(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(String::new());
        self.write_to(&mut out, true);
        out
    }

    fn write_to(&self, out: &mut String, canonical: bool) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) if canonical => push_canonical(number, out),
            Self::Number(number) => drop(write!(out, "{number}")),
            Self::Text(text) => {
                out.push('"');
                escape(text, out);
                out.push('"');
            }
            Self::List(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    value.write_to(out, canonical);
                }
                out.push(']');
            }
            Self::Map(entries) => {
                let mut entries: Vec<&(Zeroizing<String>, Self)> = entries.iter().collect();
                if canonical {
                    entries.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
                }
                out.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    out.push_str(if index == 0 { "\"" } else { ", \"" });
                    escape(key, out);
                    out.push_str("\": ");
                    value.write_to(out, canonical);
                }
                out.push('}');
            }
        }
    }
}

/// Writes `1`, `1.0` and `1e0` alike: programs in other languages write back any of them.
fn push_canonical(number: &Number, out: &mut String) {
    match number.as_f64().filter(|_| number.is_f64()) {
        // Up to the limit below which every whole number is exact.
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and within 2^53")]
        Some(value) if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 => {
            let _ = write!(out, "{}", value as i64);
        }
        _ => drop(write!(out, "{number}")),
    }
}

/// Appends a text in its form between the quotes of a JSON string.
pub fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => drop(write!(out, "\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
}

impl fmt::Debug for Json {
    /// Omits the words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(_) => f.write_str("bool"),
            Self::Number(_) => f.write_str("number"),
            Self::Text(text) => write!(f, "text of {} bytes", text.len()),
            Self::List(values) => write!(f, "list of {}", values.len()),
            Self::Map(entries) => write!(f, "map of {}", entries.len()),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        Json::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::text(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(Zeroizing::new(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            entries.push((Zeroizing::new(key), value));
        }
        Ok(Json::Map(without_doubles(entries)))
    }
}

/// Moves the last value of each key to the position of the first.
fn without_doubles(entries: Vec<(Zeroizing<String>, Json)>) -> Vec<(Zeroizing<String>, Json)> {
    let mut places: Vec<(usize, (Zeroizing<String>, Json))> = entries.into_iter().enumerate().collect();
    // Stable: entries of one key keep their order.
    places.sort_by(|(_, a), (_, b)| a.0.as_str().cmp(b.0.as_str()));
    places.dedup_by(|(_, later), (_, first)| {
        let same = later.0 == first.0;
        if same {
            std::mem::swap(&mut first.1, &mut later.1);
        }
        same
    });
    places.sort_unstable_by_key(|(place, _)| *place);
    places.into_iter().map(|(_, entry)| entry).collect()
}
