//! The commented file of a table of options: every option with its explanation and default.

use std::fmt::Write as _;

use clap::{Args, Command};
use toml::Value;

use super::{OptionKind, OptionTable};

/// A file with every option as a comment with its default, after the comment `introduction`. Only the options
/// of `given` are set. An option without a heading in the help stands under `first_section`.
#[must_use]
pub fn commented_file<O: OptionTable + Args>(
    introduction: &str,
    first_section: &str,
    given: &[(&str, Value)],
) -> String {
    let command = O::augment_args(Command::new("run"));
    let mut text = introduction.to_owned();
    let mut heading = "";
    for entry in O::ENTRIES {
        let arg = command.get_arguments().find(|arg| arg.get_id() == entry.key);
        let section = arg.and_then(|arg| arg.get_help_heading()).unwrap_or(first_section);
        if section != heading {
            let _ = write!(text, "\n# ---- {section} ----\n");
            heading = section;
        }
        let help = arg.and_then(|arg| arg.get_help()).map(ToString::to_string).unwrap_or_default();
        // The rest concerns the flag only.
        let help = help.split("; repeat").next().unwrap_or_default();
        let _ = write!(text, "\n# {help}.\n# Allowed: {}.", entry.allowed_words());
        if !entry.default_words.is_empty() {
            let _ = write!(text, " Default: {}.", entry.default_words);
        }
        let line = match given.iter().find(|(key, _)| *key == entry.key) {
            Some((key, value)) => format!("{key} = {value}"),
            None => match (entry.default, entry.kind) {
                ("", OptionKind::Number(least, _)) => format!("#{} = {least}", entry.key),
                ("", _) => format!("#{} = \"\"", entry.key),
                (default, _) => format!("#{} = {default}", entry.key),
            },
        };
        let _ = write!(text, "\n{line}\n");
    }
    text
}
