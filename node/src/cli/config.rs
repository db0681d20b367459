//! `baton-node config`: shows the effective settings with their origins, and the problems of a file.

use std::path::{Path, PathBuf};

use baton_kit::config::{OptionValue, Origin, Origins};
use clap::{ArgMatches, Args, Subcommand};
use serde_json::{Map, Value};

use super::{Exit, Failure, Places, RunLike, Style, say};
use crate::{
    config::{ConfigError, EngineChoice, RunFlags, Settings, config_path, read_config_text},
    models::Catalogue,
};

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ConfigCommand {
    /// Show the configuration that `run` would use with the same options, environment and file
    #[command(
        after_help = "The output is a configuration file that holds the same. Takes every option of `run` as well.\n\n\
        Examples:\n  baton-node config show --origin\n  baton-node config show --slots 4 --json"
    )]
    Show(Box<ShowArgs>),
    /// Report all errors in a configuration file
    #[command(after_help = "Exit code 0 when the file can be used, 2 when it cannot.\n\n\
        Example:\n  baton-node config check /etc/baton/node.toml")]
    Check(CheckArgs),
}

#[derive(Args, Clone, Debug)]
struct ShowArgs {
    #[command(flatten)]
    run: RunLike,
    /// Show the origin of each value: default, file, environment or flag
    #[arg(long)]
    origin: bool,
}

#[derive(Args, Clone, Debug)]
struct CheckArgs {
    /// File to check [default: config.toml in the data directory]
    file: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
}

pub(super) fn run(args: ConfigArgs, matches: &ArgMatches) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Show(args) => show(*args, matches),
        ConfigCommand::Check(args) => check(args),
    }
}

fn show(args: ShowArgs, matches: &ArgMatches) -> Result<(), Failure> {
    let (flags, given, json) = args.run.given(matches)?;
    let (settings, origins) = Settings::load_with_origins(flags, given)?;
    let shown = settings.shown();
    if json {
        let options: Map<String, Value> = shown
            .iter()
            .map(|option| {
                let entry =
                    if args.origin { option.as_json(&origins) } else { serde_json::json!(option.value) };
                (option.key.to_owned(), entry)
            })
            .collect();
        say(serde_json::json!({ "config": settings.config, "options": options }));
        return Ok(());
    }
    let style = Style::stdout();
    match &settings.config {
        Some(path) => say(format!("# Configuration file: {}", path.display())),
        None => say("# No configuration file was read."),
    }
    for OptionValue { key, value } in shown {
        let line = match value {
            Some(value) => format!("{key} = {value}"),
            None => format!("#{key} ="),
        };
        if args.origin {
            let origin = origins.of(key);
            let words = format!("# {}", origin.describe::<RunFlags>(key));
            let words = if origin == Origin::Default { words } else { style.good(&words) };
            say(format!("{line:<60} {words}"));
        } else {
            say(line);
        }
    }
    Ok(())
}

fn check(args: CheckArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let mut flags = args.places.flags();
    flags.config = args.file.or(flags.config);
    let named = flags.config.is_some();
    let (path, _) = config_path(&flags);
    let problems = match read_config_text(&path, named)? {
        Some(text) => {
            let mut problems = Settings::examine(&path, &text);
            // With other problems, the settings are not known.
            if let Ok((settings, origins)) = Settings::load_with_origins(flags, Origins::default()) {
                problems.extend(missing_models(&settings, &origins, &path));
            }
            problems
        }
        None => {
            if json {
                say(serde_json::json!({ "file": path, "exists": false, "ok": true, "problems": [] }));
            } else {
                say(format!(
                    "there is no {}: the defaults hold (baton-node init writes one)",
                    path.display()
                ));
            }
            return Ok(());
        }
    };
    if json {
        let listed: Vec<_> = problems.iter().map(ConfigError::as_json).collect();
        say(serde_json::json!({
            "file": path, "exists": true, "ok": problems.is_empty(), "problems": listed,
        }));
    } else {
        for problem in &problems {
            match problem {
                ConfigError::Conflict(_) => say(format!("{}: {problem}", path.display())),
                _ => say(problem),
            }
        }
    }
    match problems.len() {
        0 => {
            if !json {
                say(format!("{}: nothing is wrong", path.display()));
            }
            Ok(())
        }
        1 => Err(Failure::text(Exit::Usage, "the configuration cannot be used: 1 problem")),
        count => {
            Err(Failure::text(Exit::Usage, format!("the configuration cannot be used: {count} problems")))
        }
    }
}

/// The configured models that neither the catalogue nor the model folder has.
fn missing_models(settings: &Settings, origins: &Origins, path: &Path) -> Vec<ConfigError> {
    if settings.engine() != EngineChoice::Native {
        return Vec::new();
    }
    let catalogue = Catalogue::built_in();
    let is_known = |name: &str| {
        let is_file = || settings.model_dir().join(format!("{name}.gguf")).is_file();
        catalogue.entry(name).is_ok() || (!name.contains(['/', '\\']) && is_file())
    };
    let keyed = settings.models().into_iter().enumerate();
    let keyed = keyed.map(|(index, name)| (if index == 0 { "model" } else { "more_models" }, name));
    let missing = keyed.filter(|(_, name)| !is_known(name)).map(|(key, name)| {
        let line = match origins.of(key) {
            Origin::File { line, .. } => line,
            _ => 0,
        };
        let names: Vec<_> = catalogue.entries().iter().map(|entry| entry.name.as_str()).collect();
        let problem = format!(
            "there is no model \"{}\": the catalogue has {}; `baton-node models add` or `models pull hf:...` brings \
             others into {}",
            name.escape_debug(),
            names.join(" and "),
            settings.model_dir().display()
        );
        ConfigError::Value { path: path.to_owned(), line, key: key.to_owned(), problem }
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_nobody_has_are_found_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        std::fs::write(folder.path().join("mine.gguf"), "GGUF").unwrap();
        for (text, expected) in [
            ("", &[][..]),
            ("model = \"mine\"\n", &[]),
            ("slots = 2\nmodel = \"nope\"\n", &[("model", 2)]),
            ("more_models = [\"mine\", \"../mine\"]\n", &[("more_models", 1)]),
            ("model = \"nope\"\nengine = \"echo\"\n", &[]),
        ] {
            std::fs::write(&file, text).unwrap();
            let flags = RunFlags {
                config: Some(file.clone()),
                model_dir: Some(folder.path().to_owned()),
                ..RunFlags::default()
            };
            let (settings, origins) = Settings::load_with_origins(flags, Origins::default()).unwrap();
            let problems = missing_models(&settings, &origins, &file);
            let found: Vec<_> =
                problems.iter().map(|problem| (problem.key().unwrap(), problem.line().unwrap())).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
