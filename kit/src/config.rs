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
    /// The file is not TOML.
    #[error("{path}:{line}: this is not valid TOML: {problem}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// A key that is not an option.
    #[error("{path}:{line}: there is no option `{key}`; {hint}")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The nearest option, or all options.
        hint: String,
    },
    /// A value that the option does not accept.
    #[error("{path}:{line}: `{key}` cannot be used: {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The allowed values.
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
            Self::Syntax { line, .. } | Self::UnknownKey { line, .. } | Self::Value { line, .. } => {
                Some(*line)
            }
            Self::Read { .. } | Self::Conflict(_) => None,
        }
    }

    /// The key of the problem, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { key, .. } | Self::Value { key, .. } => Some(key),
            Self::Read { .. } | Self::Syntax { .. } | Self::Conflict(_) => None,
        }
    }

    /// The problem as JSON.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({ "line": self.line(), "key": self.key(), "problem": self.to_string() })
    }
}

/// A value as a source gives it: `None` and the empty list leave the option to the next source.
pub trait Fallback {
    /// This value, or else the other.
    #[must_use]
    fn or_fallback(self, other: Self) -> Self;
}

impl<T> Fallback for Option<T> {
    fn or_fallback(self, other: Self) -> Self {
        self.or(other)
    }
}

impl<T> Fallback for Vec<T> {
    fn or_fallback(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// A field of a table, with the value that is in force.
#[doc(hidden)]
pub trait OptionField {
    /// The type of the value.
    type Value;

    /// The value.
    fn in_force(&self) -> Self::Value;
}

impl<T: Clone + Default> OptionField for Option<T> {
    type Value = T;

    fn in_force(&self) -> T {
        self.clone().unwrap_or_default()
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

/// Defines the options of a program, one row for each.
///
/// A section is the heading of its options in the help; the empty text leaves them without one. A row is a
/// doc comment, which is the help, and a field. Brackets before the field add settings of clap. The flag is
/// the field's name with dashes, and the environment variable has the prefix and capitals.
///
/// ```
/// use baton_kit::options;
/// use clap::{Args, FromArgMatches as _};
///
/// options! {
///     /// Options of a kite.
///     #[derive(Args, Clone, Debug, Default, PartialEq)]
///     pub struct KiteOptions, "KITE_" {
///         "Flight" {
///             /// Length of the line in metres
///             line_length: Option<u32>;
///             /// Colours of the tail
///             [value_delimiter = ','] colours: Vec<String>;
///         }
///     }
/// }
///
/// let command = KiteOptions::augment_args(clap::Command::new("kite"));
/// let variables: Vec<_> = command.get_arguments().filter_map(|flag| flag.get_env()).collect();
/// assert_eq!(variables, ["KITE_LINE_LENGTH", "KITE_COLOURS"]);
/// let matches = command.get_matches_from(["kite", "--line-length", "9"]);
/// let flags = KiteOptions::from_arg_matches(&matches).unwrap();
/// let file = KiteOptions { line_length: Some(1), colours: vec!["red".to_owned()] };
/// let both = flags.or(file);
/// assert_eq!((both.line_length, both.colours.len()), (Some(9), 1));
/// ```
///
/// With `table` after the prefix, the struct is an [`OptionTable`]. A row then
/// also has the option's type and its entry: `slots: Option<u32> = number(), range(1, 9).default("2");`. A
/// row without them is a flag that the file cannot set. A method with the row's name gives its value once the
/// defaults are filled in: `slots()` is then a `u32`.
#[macro_export]
macro_rules! options {
    ($(#[$meta:meta])* $vis:vis struct $name:ident, $prefix:literal { $($body:tt)* }) => {
        $crate::options!(@fields [$(#[$meta])*] [$vis] $name $prefix { $($body)* });
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident, $prefix:literal, table { $($body:tt)* }) => {
        $crate::options!(@fields [$(#[$meta])*] [$vis] $name $prefix { $($body)* });
        $crate::options!(@table $name $prefix { $($body)* });
    };
    (@fields [$(#[$meta:meta])*] [$vis:vis] $name:ident $prefix:literal {
        $($section:literal {
            $($(#[$doc:meta])* $([$($setting:tt)*])? $field:ident: $type:ty $(= $value:expr, $entry:expr)?;)*
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
                        value_name = $crate::config::value_name::<$type, _>(&$value),
                        value_delimiter = $entry.delimiter(),
                        value_parser = $crate::config::value_parser::<$type, _>(
                            $value,
                            $entry.named(stringify!($field)),
                        ),
                    )?
                    $($($setting)*)?
                )]
                pub $field: $type,
            )*)*
        }

        impl $name {
            /// Each option from `self`, or else from `other`.
            #[must_use]
            #[allow(unreachable_pub, reason = "the struct may be private to its program")]
            pub fn or(self, other: Self) -> Self {
                Self { $($($field: $crate::config::Fallback::or_fallback(self.$field, other.$field),)*)* }
            }
        }
    };
    (@table $name:ident $prefix:literal {
        $($section:literal {
            $($(#[$doc:meta])* $([$($setting:tt)*])? $field:ident: $type:ty $(= $value:expr, $entry:expr)?;)*
        })*
    }) => {
        #[allow(dead_code, unreachable_pub, reason = "a program needs some of them, and may be private")]
        impl $name {
            $($(
                $(#[$doc])*
                #[must_use]
                pub fn $field(&self) -> <$type as $crate::config::OptionField>::Value {
                    $crate::config::OptionField::in_force(&self.$field)
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
