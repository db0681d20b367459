//! The entries of a table of options: key, type in the file, default and allowed values.

use std::path::Path;

use clap::Command;
use toml::Value;

use super::examine;

/// Type of an option in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A string.
    Text,
    /// A whole number in this range, both ends included.
    Number(u64, u64),
    /// `true` or `false`.
    Switch,
    /// An array of strings, with this maximum length.
    List(usize),
    /// A string, or an array of one to this many strings.
    OneOrMore(usize),
}

/// One option. The flag's help text explains it.
#[derive(Clone, Copy, Debug)]
pub struct OptionEntry {
    /// Key in the file. The flag has dashes for underscores; the environment variable has the program's
    /// prefix and capitals.
    pub key: &'static str,
    /// Type in the file.
    pub kind: OptionKind,
    /// Default as written in the file; empty without a default.
    pub default: &'static str,
    /// Default in words, if it depends on other things; else empty.
    pub default_words: &'static str,
    /// The allowed values, for texts and lists.
    pub allowed: &'static str,
}

const fn entry(kind: OptionKind, allowed: &'static str) -> OptionEntry {
    OptionEntry { key: "", kind, default: "", default_words: "", allowed }
}

/// An option that is a string.
#[must_use]
pub const fn text(allowed: &'static str) -> OptionEntry {
    entry(OptionKind::Text, allowed)
}

/// An option that is a whole number in this range, both ends included.
#[must_use]
pub const fn range(least: u64, most: u64) -> OptionEntry {
    entry(OptionKind::Number(least, most), "")
}

/// An option that is `true` or `false`.
#[must_use]
pub const fn switch(default: &'static str) -> OptionEntry {
    entry(OptionKind::Switch, "").default(default)
}

/// An option that is an array of at most `most` strings.
#[must_use]
pub const fn list(most: usize, allowed: &'static str) -> OptionEntry {
    entry(OptionKind::List(most), allowed)
}

/// An option that is a string, or an array of one to `most` strings.
#[must_use]
pub const fn one_or_more(most: usize, allowed: &'static str) -> OptionEntry {
    entry(OptionKind::OneOrMore(most), allowed)
}

impl OptionEntry {
    /// The same with this key.
    #[must_use]
    pub const fn named(self, key: &'static str) -> Self {
        Self { key, ..self }
    }

    /// The same with this default, as the file has it.
    #[must_use]
    pub const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// The same with its default in words.
    #[must_use]
    pub const fn in_words(self, default_words: &'static str) -> Self {
        Self { default_words, ..self }
    }

    /// The character between the items of a flag and of an environment variable.
    #[must_use]
    pub const fn delimiter(&self) -> Option<char> {
        match self.kind {
            OptionKind::List(_) | OptionKind::OneOrMore(_) => Some(','),
            OptionKind::Text | OptionKind::Number(..) | OptionKind::Switch => None,
        }
    }

    /// The allowed values, in words.
    #[must_use]
    pub fn allowed_words(&self) -> String {
        match self.kind {
            OptionKind::Text => self.allowed.to_owned(),
            OptionKind::Number(least, most) => format!("a whole number from {least} to {most}"),
            OptionKind::Switch => "true or false".to_owned(),
            OptionKind::List(most) => format!("a list of at most {most} {}", self.allowed),
            OptionKind::OneOrMore(most) => format!("{}, or a list of at most {most} such", self.allowed),
        }
    }

    /// The refusal of a value.
    ///
    /// # Errors
    /// Always: the allowed values, in words.
    pub fn refuse<T>(&self) -> Result<T, String> {
        Err(format!("expected {}", self.allowed_words()))
    }
}

/// Options with a table, as [`options!`](crate::options) defines them.
pub trait OptionTable: Default + Sized {
    /// The first part of the environment variables.
    const PREFIX: &'static str;
    /// All options of the file, in the order of the file.
    const ENTRIES: &'static [OptionEntry];

    /// Sets an option from the texts of its value in a file; a list has several.
    ///
    /// # Errors
    /// The allowed values, in words.
    fn set(&mut self, entry: &OptionEntry, texts: &[String]) -> Result<(), String>;

    /// The value of an option as in the file, without secrets; `None` if it is unset.
    fn value(&self, key: &str) -> Option<Value>;

    /// The entry of a key.
    #[must_use]
    fn entry(key: &str) -> Option<&'static OptionEntry> {
        Self::ENTRIES.iter().find(|entry| entry.key == key)
    }

    /// Every option with its default, if it has one.
    #[must_use]
    fn defaults() -> Self {
        let given = Self::ENTRIES.iter().filter(|entry| !entry.default.is_empty());
        let text: String = given.map(|entry| format!("{} = {}\n", entry.key, entry.default)).collect();
        let report = examine(Path::new("the table of options"), &text);
        debug_assert!(report.problems.is_empty(), "{:?}", report.problems);
        report.options
    }
}

/// Adds each default to its option's help, so that help and file cannot differ.
#[must_use]
pub fn describe_defaults<O: OptionTable>(command: Command) -> Command {
    O::ENTRIES.iter().fold(command, |command, entry| {
        let words = if entry.default_words.is_empty() { entry.default } else { entry.default_words };
        command.mut_arg(entry.key, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if words.is_empty() {
                return arg;
            }
            arg.help(format!("{help} [default: {}]", words.replace(['"', '[', ']'], "")))
        })
    })
}
