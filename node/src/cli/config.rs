//! `baton-node config`: shows the effective settings with their origins, or all problems of the file.

use baton_kit::config::{OptionValue, Origin};
use clap::ArgMatches;
use serde_json::{Map, Value, json};

use super::{Exit, Failure, RunLike, Style, say};
use crate::config::{ConfigError, RunFlags, Settings, config_path, read_config_text};

pub(super) const AFTER_HELP: &str = "\
The output is a configuration file that holds the same; each line names its origin: default, file, environment or flag.
Takes every option of `run` as well.

Exit code 0 when the configuration can be used, 2 when it cannot: then all problems of the file are named.

Examples:
  baton-node config
  baton-node config --config /etc/baton/node.toml
  baton-node config --slots 4 --json";

pub(super) fn run(args: RunLike, matches: &ArgMatches) -> Result<(), Failure> {
    let (flags, given, json) = args.given(matches)?;
    let (settings, origins) = match Settings::load_with_origins(flags.clone(), given) {
        Ok(loaded) => loaded,
        Err(error) => return Err(name_problems(&flags, error, json)),
    };
    let shown = settings.shown();
    if json {
        let options = shown.iter().map(|option| (option.key.to_owned(), option.as_json(&origins)));
        say(json!({ "config": settings.config, "options": options.collect::<Map<String, Value>>() }));
        return Ok(());
    }
    let style = Style::stdout();
    match &settings.config {
        Some(path) => say(format!("# Configuration file: {}", path.display())),
        None => say("# No configuration file was read."),
    }
    for OptionValue { key, value } in shown {
        let line = value.map_or_else(|| format!("#{key} ="), |value| format!("{key} = {value}"));
        let origin = origins.of(key);
        let words = format!("# {}", origin.describe::<RunFlags>(key));
        let words = if origin == Origin::Default { words } else { style.good(&words) };
        say(format!("{line:<60} {words}"));
    }
    Ok(())
}

/// Prints every problem of the file. A flag or a variable may cause the first one alone.
fn name_problems(flags: &RunFlags, error: ConfigError, json: bool) -> Failure {
    let (path, is_named) = config_path(flags);
    let text = read_config_text(&path, is_named).ok().flatten();
    let problems = text.map(|text| Settings::examine(&path, &text)).unwrap_or_default();
    if problems.is_empty() {
        return error.into();
    }
    if json {
        let listed: Vec<_> = problems.iter().map(ConfigError::as_json).collect();
        say(json!({ "config": path, "problems": listed }));
    } else {
        for problem in &problems {
            match problem {
                ConfigError::Conflict(_) => say(format!("{}: {problem}", path.display())),
                _ => say(problem),
            }
        }
    }
    Failure::text(Exit::Usage, format!("the configuration cannot be used: problems: {}", problems.len()))
}
