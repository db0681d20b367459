//! The commented file of `init`: every option with its explanation and default.

use std::{fmt::Write as _, path::Path};

use clap::{Args as _, Command};

use super::{
    RunFlags,
    options::{OPTIONS, OptionKind},
};

/// A file with every option as a comment with its default. Only a given data directory is set: a file
/// elsewhere must name the data's location.
#[must_use]
pub fn commented_file(data_dir: Option<&Path>) -> String {
    let command = RunFlags::augment_args(Command::new("run"));
    let mut text = String::from(
        "# Configuration of baton-node. Lines that begin with # are the defaults.\n\
         # Flags (--slots 4) and environment variables (BATON_NODE_SLOTS=4) go before this file.\n",
    );
    let mut heading = "";
    for entry in OPTIONS {
        let arg = command.get_arguments().find(|arg| arg.get_id() == entry.key);
        let section = arg.and_then(|arg| arg.get_help_heading()).unwrap_or("Data");
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
        let example = match (entry.default, entry.kind) {
            ("", OptionKind::Number(least, _)) => least.to_string(),
            ("", _) => "\"\"".to_owned(),
            (default, _) => default.to_owned(),
        };
        let line = match (entry.key, data_dir) {
            ("data_dir", Some(folder)) => {
                format!("data_dir = {}", toml::Value::String(folder.display().to_string()))
            }
            (key, _) => format!("#{key} = {example}"),
        };
        let _ = write!(text, "\n{line}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::file, *};

    #[test]
    fn the_file_as_written_changes_nothing() {
        let parsed = file::parse(Path::new("c"), &commented_file(None)).unwrap();
        assert_eq!(parsed, RunFlags::default());
        let parsed = file::parse(Path::new("c"), &commented_file(Some(Path::new("/a \"b\"")))).unwrap();
        assert_eq!(parsed.data_dir.as_deref(), Some(Path::new("/a \"b\"")));
    }

    #[test]
    fn every_default_in_it_is_accepted_and_is_the_default() {
        let uncommented: String = commented_file(None)
            .lines()
            .filter(|line| line.starts_with('#') && !line.starts_with("# ") && !line.ends_with("\"\""))
            .map(|line| format!("{}\n", line.trim_start_matches('#')))
            // Numbers without a default have the minimum as an example.
            .filter(|line| !line.starts_with("threads") && !line.starts_with("max_memory_mb"))
            .collect();
        let parsed = file::parse(Path::new("c"), &uncommented).unwrap();
        let written = super::super::Settings::resolve(parsed, RunFlags::default(), None).unwrap();
        let bare = super::super::Settings::resolve(RunFlags::default(), RunFlags::default(), None).unwrap();
        assert_eq!(written, bare);
        assert!(uncommented.lines().count() > 15, "{uncommented}");
    }
}
