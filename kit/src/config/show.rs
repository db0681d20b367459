//! The values in force for people: each option with its value and origin.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, parser::ValueSource};
use toml::Value;

use super::{OptionTable, REDACTED};

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment,
    /// The command line.
    Flag,
}

impl Origin {
    /// `default`, `file`, `env` or `flag`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Environment => "env",
            Self::Flag => "flag",
        }
    }

    /// The origin in words, for the option `key`.
    #[must_use]
    pub fn describe<O: OptionTable>(&self, key: &str) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File { path, line } => format!("file {}:{line}", path.display()),
            Self::Environment => format!("environment {}{}", O::PREFIX, key.to_uppercase()),
            Self::Flag => format!("flag --{}", key.replace('_', "-")),
        }
    }
}

/// Origins of values, by option; a missing option has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<&'static str, Origin>);

impl Origins {
    /// The origins of options on a command line and in its environment.
    #[must_use]
    pub fn of_matches<O: OptionTable>(matches: &ArgMatches) -> Self {
        let source = |key: &str| match matches.try_contains_id(key) {
            Ok(true) => matches.value_source(key),
            _ => None,
        };
        let origin = |key| match source(key) {
            Some(ValueSource::CommandLine) => Some(Origin::Flag),
            Some(ValueSource::EnvVariable) => Some(Origin::Environment),
            _ => None,
        };
        Self(O::ENTRIES.iter().filter_map(|entry| Some((entry.key, origin(entry.key)?))).collect())
    }

    /// The origins of options in a file, from their keys and lines.
    #[must_use]
    pub fn of_file(path: &Path, lines: &[(&'static str, usize)]) -> Self {
        let origin = |line| Origin::File { path: path.to_owned(), line };
        Self(lines.iter().map(|(key, line)| (*key, origin(*line))).collect())
    }

    /// These origins, and those of `other` for other options.
    #[must_use]
    pub fn or(self, mut other: Self) -> Self {
        other.0.extend(self.0);
        other
    }

    /// Sets or removes the origin of one option.
    pub fn set(&mut self, key: &'static str, origin: Option<Origin>) {
        match origin {
            Some(origin) => self.0.insert(key, origin),
            None => self.0.remove(key),
        };
    }

    /// The origin of an option's value.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or(Origin::Default)
    }
}

/// One option with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionValue {
    /// The option.
    pub key: &'static str,
    /// Its value as in the file; `None` if it is unset.
    pub value: Option<Value>,
}

impl OptionValue {
    /// The option as a member of a JSON object, with the origin of its value.
    #[must_use]
    pub fn as_json(&self, origins: &Origins) -> serde_json::Value {
        let origin = origins.of(self.key);
        let mut entry = serde_json::json!({ "value": self.value, "origin": origin.kind() });
        if let Origin::File { path, line } = origin {
            entry["file"] = serde_json::json!(path);
            entry["line"] = serde_json::json!(line);
        }
        entry
    }
}

/// The options as lines of a file, for another process of this machine. Options with a redacted part are left out,
/// so that nobody uses the rest of them.
#[must_use]
pub fn as_file<O: OptionTable>(options: &O, left_out: &[&str]) -> String {
    let lines = shown(options).into_iter().filter(|option| !left_out.contains(&option.key));
    lines
        .filter_map(|OptionValue { key, value }| Some((key, value?.to_string())))
        .filter(|(_, value)| !value.contains(REDACTED))
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect()
}

/// Every option with its value, in the order of the file, without secrets.
#[must_use]
pub fn shown<O: OptionTable>(options: &O) -> Vec<OptionValue> {
    O::ENTRIES.iter().map(|entry| OptionValue { key: entry.key, value: options.value(entry.key) }).collect()
}
