//! JSON whose maps keep the order of their keys: models were trained on definitions in their authors' order.

use std::fmt::{self, Write as _};

use serde::{
    Deserialize,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_json::{Deserializer, Number, value::RawValue};
use zeroize::Zeroizing;

/// Deepest nesting, as in `serde_json`.
const MAX_DEPTH: usize = 127;

/// A JSON value.
#[derive(Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written: it may have more digits than a machine's numbers.
    Number(Zeroizing<String>),
    /// A text.
    Text(Zeroizing<String>),
    /// A list.
    List(Vec<Json>),
    /// A map, in order. A repeated key has its last value at its first position.
    Map(Vec<(Zeroizing<String>, Json)>),
}

impl Json {
    /// Parses a text that is exactly one value, nested to a limited depth.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (value, rest) = Self::parse_first(text)?;
        rest.trim_matches(SPACE).is_empty().then_some(value)
    }

    /// Parses the value at the beginning of a text; also returns the rest.
    pub(super) fn parse_first(text: &str) -> Option<(Self, &str)> {
        let mut reader = JsonReader { rest: text };
        let value = reader.value(MAX_DEPTH)?;
        Some((value, reader.rest))
    }

    /// A map of these entries.
    pub(super) fn map<const N: usize>(entries: [(&str, Self); N]) -> Self {
        let entries = entries.into_iter().map(|(key, value)| (Zeroizing::new(key.to_owned()), value));
        Self::Map(entries.collect())
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
            Self::Number(number) => out.push_str(number),
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

impl<'de> Deserialize<'de> for Json {
    /// Reads a value of `serde_json`'s input, which must be one piece of memory.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        Self::parse(text.get()).ok_or_else(|| D::Error::custom("a value is nested too deeply"))
    }
}

/// Writes `1`, `1.0` and `1e0` alike, and rounds as JavaScript does: programs in other languages write back any of them.
fn push_canonical(text: &str, out: &mut String) {
    let Ok(number) = text.parse::<Number>() else { return out.push_str(text) };
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

/// JSON's white space.
const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Reads values from a text. `serde_json` reads their parts, but it would round numbers.
struct JsonReader<'a> {
    rest: &'a str,
}

impl<'a> JsonReader<'a> {
    /// Reads a value in which `depth` values may be nested.
    fn value(&mut self, depth: usize) -> Option<Json> {
        if self.takes('{') {
            let entries = self.items('}', |reader| {
                let (key, _) = reader.part::<String>()?;
                let is_named = reader.takes(':');
                Some((Zeroizing::new(key), is_named.then(|| reader.value(depth.checked_sub(1)?))??))
            });
            return entries.map(without_doubles).map(Json::Map);
        }
        if self.takes('[') {
            return self.items(']', |reader| reader.value(depth.checked_sub(1)?)).map(Json::List);
        }
        Some(match self.rest.chars().next()? {
            '"' => Json::Text(Zeroizing::new(self.part::<String>()?.0)),
            '-' | '0'..='9' => Json::Number(Zeroizing::new(self.part::<IgnoredAny>()?.1.to_owned())),
            _ => self.part::<Option<bool>>()?.0.map_or(Json::Null, Json::Bool),
        })
    }

    /// Reads items up to the bracket that ends them.
    fn items<T>(&mut self, end: char, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.takes(end) {
            if !items.is_empty() && !self.takes(',') {
                return None;
            }
            items.push(item(self)?);
        }
        Some(items)
    }

    /// Reads a value without items; also returns its text.
    fn part<T: DeserializeOwned>(&mut self) -> Option<(T, &'a str)> {
        let mut parts = Deserializer::from_str(self.rest).into_iter();
        let part = parts.next()?.ok()?;
        let (text, rest) = self.rest.split_at_checked(parts.byte_offset())?;
        self.rest = rest;
        Some((part, text))
    }

    /// Skips white space, and this character if it comes next.
    fn takes(&mut self, character: char) -> bool {
        self.rest = self.rest.trim_start_matches(SPACE);
        let rest = self.rest.strip_prefix(character);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
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
