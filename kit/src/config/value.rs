//! The types of single values: how each is read from a text, by clap and from a file, and shown.

use std::{fmt::Display, num::IntErrorKind, path::PathBuf, str::FromStr};

use clap::{
    ValueEnum,
    builder::{EnumValueParser, ValueParser},
};
use toml::Value;
use url::Url;

use super::{OptionEntry, OptionKind};

/// Longest text of an option: longer than all real paths and URLs.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The type of an option's value, or of each item of its list.
#[derive(Debug)]
pub struct OptionType<T> {
    value_name: &'static str,
    parse: fn(&OptionEntry, &str) -> Result<T, String>,
    show: fn(&T) -> Value,
    parser: Option<fn() -> ValueParser>,
}

impl<T: Clone + Send + Sync + 'static> OptionType<T> {
    /// A type with a parser, whose error is the allowed values in words, and with its value in the file.
    #[must_use]
    pub const fn new(
        value_name: &'static str,
        parse: fn(&OptionEntry, &str) -> Result<T, String>,
        show: fn(&T) -> Value,
    ) -> Self {
        Self { value_name, parse, show, parser: None }
    }

    /// The same, but clap reads flags with a parser of its own, which knows its possible values.
    const fn with_parser(self, parser: fn() -> ValueParser) -> Self {
        Self { parser: Some(parser), ..self }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// The allowed values, in words.
    pub fn parse(&self, entry: &OptionEntry, text: &str) -> Result<T, String> {
        (self.parse)(entry, text)
    }

    /// The value as in the file, without secrets.
    #[must_use]
    pub fn show(&self, value: &T) -> Value {
        (self.show)(value)
    }

    /// Sets an option from the texts of its value.
    ///
    /// # Errors
    /// The allowed values, in words.
    pub fn fill(
        self,
        slot: &mut impl OptionSlot<T>,
        entry: &OptionEntry,
        texts: &[String],
    ) -> Result<(), String> {
        slot.fill(texts.iter().map(|text| (self.parse)(entry, text)).collect::<Result<_, _>>()?);
        Ok(())
    }

    /// The value as in the file, without secrets; `None` if it is unset.
    #[must_use]
    pub fn value_of(self, slot: &impl OptionSlot<T>) -> Option<Value> {
        slot.show(self.show)
    }
}

/// A field for an option: of one value, or of a list.
pub trait OptionSlot<T> {
    /// Takes the values; a field for one value takes the last.
    fn fill(&mut self, values: Vec<T>);

    /// The value as in the file.
    fn show(&self, show: fn(&T) -> Value) -> Option<Value>;
}

impl<T> OptionSlot<T> for Option<T> {
    fn fill(&mut self, mut values: Vec<T>) {
        *self = values.pop();
    }

    fn show(&self, show: fn(&T) -> Value) -> Option<Value> {
        self.as_ref().map(show)
    }
}

impl<T> OptionSlot<T> for Option<Vec<T>> {
    fn fill(&mut self, values: Vec<T>) {
        *self = Some(values);
    }

    fn show(&self, show: fn(&T) -> Value) -> Option<Value> {
        self.as_ref().map(|values| Value::Array(values.iter().map(show).collect()))
    }
}

/// The name of a flag's value in the help. The field's type determines that of the value.
#[doc(hidden)]
#[must_use]
pub fn value_name<S: OptionSlot<T>, T>(value: &OptionType<T>) -> &'static str {
    value.value_name
}

/// The parser of a flag.
#[doc(hidden)]
#[must_use]
pub fn value_parser<S, T>(value: OptionType<T>, entry: OptionEntry) -> ValueParser
where
    S: OptionSlot<T>,
    T: Clone + Send + Sync + 'static,
{
    let parse = value.parse;
    value.parser.map_or_else(|| ValueParser::from(move |text: &str| parse(&entry, text)), |parser| parser())
}

/// `true` or `false`.
pub const SWITCH: OptionType<bool> =
    OptionType::new("BOOL", |_, text| Ok(text == "true"), |value| (*value).into())
        .with_parser(ValueParser::bool);

/// A file or folder.
#[must_use]
pub const fn path(value_name: &'static str) -> OptionType<PathBuf> {
    let parse = |entry: &OptionEntry, text: &str| plain(entry, text).map(PathBuf::from);
    OptionType::new(value_name, parse, |path| path.display().to_string().into())
        .with_parser(ValueParser::path_buf)
}

/// A non-empty text.
#[must_use]
pub const fn words(value_name: &'static str) -> OptionType<String> {
    OptionType::new(value_name, plain, |value| value.clone().into())
}

/// Replaces a redacted part.
pub const REDACTED: &str = "REDACTED";

/// The allowed values of [`URL`].
pub const ANY_URL: &str =
    "a URL such as \"http://host:port\" or \"https://host\", without user name or password";

/// An HTTP URL. Refuses a user name or password, because URLs end up in logs, and hides the query, in which some
/// services carry a key.
pub const URL: OptionType<String> = OptionType::new("URL", url, |value| match value.split_once('?') {
    Some((place, _)) => format!("{place}?{REDACTED}").into(),
    None => value.clone().into(),
});

/// A value with a text form, such as a key in hex.
#[must_use]
pub const fn parsed<T>(value_name: &'static str) -> OptionType<T>
where
    T: FromStr + Display + Clone + Send + Sync + 'static,
{
    let parse = |entry: &OptionEntry, text: &str| text.parse::<T>().or_else(|_| entry.refuse());
    OptionType::new(value_name, parse, |value| value.to_string().into())
}

/// A whole number in the range of its option.
#[must_use]
pub const fn number<T>() -> OptionType<T>
where
    T: Copy + Send + Sync + TryFrom<u64> + TryInto<i64> + 'static,
{
    OptionType::new("N", in_range, |value| Value::Integer((*value).try_into().unwrap_or(i64::MAX)))
}

/// One of a few names.
#[must_use]
pub const fn choice<T: ValueEnum + Send + Sync + 'static>(value_name: &'static str) -> OptionType<T> {
    OptionType::new(value_name, chosen, |value| name(value).unwrap_or_default().into())
        .with_parser(|| EnumValueParser::<T>::new().into())
}

fn url(entry: &OptionEntry, text: &str) -> Result<String, String> {
    match Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && text.len() <= MAX_TEXT_BYTES =>
        {
            Ok(text.to_owned())
        }
        _ => entry.refuse(),
    }
}

fn plain(entry: &OptionEntry, text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return entry.refuse();
    }
    Ok(text.to_owned())
}

fn in_range<T: TryFrom<u64>>(entry: &OptionEntry, text: &str) -> Result<T, String> {
    let OptionKind::Number(least, most) = entry.kind else { return entry.refuse() };
    let parsed = match text.parse::<u64>() {
        Ok(parsed) => parsed,
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => u64::MAX,
        Err(_) => return entry.refuse(),
    };
    if !(least..=most).contains(&parsed) {
        return entry.refuse();
    }
    T::try_from(parsed).or_else(|_| entry.refuse())
}

fn name(value: &impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

fn chosen<T: ValueEnum>(_: &OptionEntry, text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let names = T::value_variants().iter().filter_map(name).map(|name| format!("\"{name}\""));
        format!("expected one of {}", names.collect::<Vec<_>>().join(", "))
    })
}
