//! The configuration of a program: flags, environment, TOML file and defaults, in this precedence.
//!
//! A program describes each option once, in [`options!`](crate::options). The macro makes a struct with one
//! field for each option. Clap fills it from flags and environment, and this module from a file.
//!
//! [`examine`] checks keys and values by the table of entries ([`OptionEntry`]). It reports every problem of a file,
//! and proposes the nearest key.
//!
//! The table also yields the commented file, the defaults in the help, and the values in force with their
//! origins. Nothing here writes a file, or knows an option.

mod entry;
mod file;
mod report;
mod show;
mod template;
#[cfg(test)]
mod tests;
mod value;

use std::path::PathBuf;

pub use entry::{
    OptionEntry, OptionKind, OptionTable, describe_defaults, list, one_or_more, range, switch, text,
};
pub use file::read_text;
pub use report::{ConfigReport, examine};
pub use show::{OptionValue, Origin, Origins, as_file, shown};
pub use template::commented_file;
pub use toml::Value;
pub use value::{
    ANY_URL, MAX_TEXT_BYTES, OptionSlot, OptionType, REDACTED, SWITCH, URL, choice, number, parsed, path,
    words,
};
#[doc(hidden)]
pub use value::{value_name, value_parser};

/// Name of the configuration file in the data folder.
pub const CONFIG_FILE: &str = "config.toml";

/// Why a configuration cannot be used. Each text says how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line of the file: it is not TOML, its key is not an option, or the option does not accept its value.
    #[error("{path}:{line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key, if the line has one.
        key: Option<String>,
        /// What is wrong, and the allowed keys or values.
        problem: String,
    },
    /// Options that exclude or require each other.
    #[error("{0}")]
    Conflict(String),
}

impl ConfigError {
    /// The line of the problem, if it has one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Line { line, .. } => Some(*line),
            Self::Read { .. } | Self::Conflict(_) => None,
        }
    }

    /// The problem as JSON.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let key = match self {
            Self::Line { key, .. } => key.as_deref(),
            Self::Read { .. } | Self::Conflict(_) => None,
        };
        serde_json::json!({ "line": self.line(), "key": key, "problem": self.to_string() })
    }
}

/// `prefix` and `key` in capitals: the bytes of an environment variable's name.
///
/// # Panics
/// If `N` is not the length of both together, which a constant shows as it compiles.
#[doc(hidden)]
#[must_use]
pub const fn variable<const N: usize>(prefix: &str, key: &str) -> [u8; N] {
    assert!(N == prefix.len() + key.len(), "the length is that of both texts");
    let (prefix, key) = (prefix.as_bytes(), key.as_bytes());
    let mut name = [0; N];
    let mut at = 0;
    while at < N {
        let byte = if at < prefix.len() { prefix[at] } else { key[at - prefix.len()] };
        name[at] = byte.to_ascii_uppercase();
        at += 1;
    }
    name
}

/// Defines the options of a program, one row for each: a struct that is an [`OptionTable`].
///
/// A section is the heading of its options in the help; the empty text leaves them without one. A row is a
/// doc comment, which is the help, a field, and the option's type and entry. Brackets before the field add settings of
/// clap. The flag is the field's name with dashes, and the environment variable has the prefix and capitals. A row without
/// type and entry is a flag that the file cannot set. A method with the row's name gives its value once the defaults are
/// filled in.
///
/// ```
/// use baton_kit::{config::{OptionTable as _, number, range}, options};
/// use clap::{Args, FromArgMatches as _};
///
/// options! {
///     /// Options of a kite.
///     #[derive(Args, Clone, Debug, Default, PartialEq)]
///     pub struct KiteOptions, "KITE_", table {
///         "Flight" {
///             /// Length of the line in metres
///             line_length: Option<u32> = number(), range(1, 500).default("30");
///             /// Wind, for tests
///             [hide = true] wind: Option<u8>;
///         }
///     }
/// }
///
/// let command = KiteOptions::augment_args(clap::Command::new("kite"));
/// let variables: Vec<_> = command.get_arguments().filter_map(|flag| flag.get_env()).collect();
/// assert_eq!(variables, ["KITE_LINE_LENGTH", "KITE_WIND"]);
/// let matches = command.get_matches_from(["kite", "--line-length", "9"]);
/// let flags = KiteOptions::from_arg_matches(&matches).unwrap();
/// assert_eq!(flags.or(KiteOptions::defaults()).line_length(), 9);
/// assert_eq!(KiteOptions::defaults().line_length(), 30);
/// ```
#[macro_export]
macro_rules! options {
    ($(#[$meta:meta])* $vis:vis struct $name:ident, $prefix:literal, table {
        $($section:literal {
            $(
                $(#[$doc:meta])* $([$($setting:tt)*])?
                $field:ident: Option<$type:ty> $(= $value:expr, $entry:expr)?;
            )*
        })*
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(
                $(#[$doc])*
                #[arg(
                    long,
                    env = $crate::options!(@variable $prefix, $field),
                    help_heading = Some($section).filter(|section| !section.is_empty()),
                    $(
                        value_name = $crate::config::value_name::<Option<$type>, _>(&$value),
                        value_delimiter = $entry.delimiter(),
                        value_parser = $crate::config::value_parser::<Option<$type>, _>(
                            $value,
                            $entry.named(stringify!($field)),
                        ),
                    )?
                    $($($setting)*)?
                )]
                pub $field: Option<$type>,
            )*)*
        }

        #[allow(dead_code, unreachable_pub, reason = "a program needs some of them, and may be private")]
        impl $name {
            /// Each option from `self`, or else from `other`.
            #[must_use]
            pub fn or(self, other: Self) -> Self {
                Self { $($($field: self.$field.or(other.$field),)*)* }
            }

            $($(
                $(#[$doc])*
                #[must_use]
                pub fn $field(&self) -> $type {
                    self.$field.clone().unwrap_or_default()
                }
            )*)*
        }

        impl $crate::config::OptionTable for $name {
            const PREFIX: &'static str = $prefix;
            const ENTRIES: &'static [$crate::config::OptionEntry] =
                &[$($($($entry.named(stringify!($field)),)?)*)*];

            fn set(&mut self, entry: &$crate::config::OptionEntry, texts: &[String]) -> Result<(), String> {
                $($($(
                    if entry.key == stringify!($field) {
                        return $value.fill(&mut self.$field, entry, texts);
                    }
                )?)*)*
                Err("it is not an option".to_owned())
            }

            fn value(&self, key: &str) -> Option<$crate::config::Value> {
                $($($(
                    if key == stringify!($field) {
                        return $value.value_of(&self.$field);
                    }
                )?)*)*
                None
            }
        }
    };
    (@variable $prefix:literal, $field:ident) => {{
        const NAME: [u8; $prefix.len() + stringify!($field).len()] =
            $crate::config::variable($prefix, stringify!($field));
        const TEXT: &str = match ::std::str::from_utf8(&NAME) {
            Ok(text) => text,
            Err(_) => panic!("a name in capitals is UTF-8"),
        };
        TEXT
    }};
}
