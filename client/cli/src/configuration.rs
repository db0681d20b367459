//! `baton config`: all settings with their values and origins, and the problems of the settings file.

use std::path::Path;

use baton_client::ClientError;
use baton_kit::config::{self, ConfigError, OptionTable as _, OptionValue, Origins};
use clap::ArgMatches;
use serde_json::{Map, Value, json};

use crate::{
    args::Arguments,
    failure::Failure,
    files::write_private,
    options::ClientOptions,
    out::{Out, count},
    settings::{Environment, settings_file},
};

const INTRODUCTION: &str = "\
# Settings of the baton command. Options of a command and the environment (BATON_*) take precedence.
# Each setting stands as a comment with its default.
";

/// Shows all settings; or, of a settings file with problems, all of these.
pub(crate) fn show(
    arguments: &Arguments,
    matches: &ArgMatches,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let (mut options, mut origins) =
        (arguments.options.clone(), Origins::of_matches::<ClientOptions>(matches));
    let file = settings_file(arguments.config.as_deref(), environment);
    let mut read = None;
    if let Some((path, required)) = &file
        && let Some(text) = config::read_text(path, *required).map_err(unreadable)?
    {
        let report = config::examine::<ClientOptions>(path, &text);
        if !report.problems.is_empty() {
            return Err(wrong_file(path, &report.problems, out)?);
        }
        origins = origins.or(Origins::of_file(path, &report.lines));
        options = options.or(report.into_options().map_err(unreadable)?);
        read = Some(path);
    }
    let shown = config::shown(&options.or(ClientOptions::defaults()));
    if out.json() {
        let values: Map<String, Value> =
            shown.iter().map(|option| (option.key.to_owned(), option.as_json(&origins))).collect();
        return Ok(out.value(&json!({ "file": read, "settings": values }))?);
    }
    let mut rows = Vec::new();
    for OptionValue { key, value } in &shown {
        let words = ClientOptions::entry(key).map_or("", |entry| entry.default_words);
        let value = value.as_ref().map_or_else(|| format!("({words})"), ToString::to_string);
        // A value may be long: it comes last, so that the origins stay in sight.
        rows.push(vec![(*key).to_owned(), origins.of(key).describe::<ClientOptions>(key), value]);
    }
    out.table(&["SETTING", "ORIGIN", "VALUE"], rows)?;
    match read {
        Some(path) => out.note(&format!("Settings file: {}", path.display())),
        None => out.note("There is no settings file yet. Write one: baton config --init"),
    }
    Ok(())
}

/// Shows all problems of the settings file; returns the failure that they are.
fn wrong_file(path: &Path, problems: &[ConfigError], out: &Out) -> Result<Failure, Failure> {
    if out.json() {
        let listed = problems.iter().map(ConfigError::as_json);
        out.value(&json!({ "file": path, "problems": listed.collect::<Vec<_>>() }))?;
    } else {
        for problem in problems {
            out.line(&problem.to_string())?;
        }
    }
    let message = format!("the settings file has {}", count(problems.len() as u64, "problem"));
    Ok(Failure::usage(message, "correct the named lines"))
}

/// Writes a settings file.
pub(crate) fn init(arguments: &Arguments, environment: &Environment, out: &Out) -> Result<(), Failure> {
    let (path, _) = settings_file(arguments.config.as_deref(), environment).ok_or_else(|| {
        Failure::usage("There is no home folder for the settings file.", "name one: --config FILE")
    })?;
    if path.exists() {
        let message = format!("the settings file {} exists", path.display());
        return Err(Failure::usage(message, "edit it, or see it in force: baton config"));
    }
    if let Some(folder) = path.parent() {
        let failed = |source| ClientError::File { action: "create", path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let text = config::commented_file::<ClientOptions>(INTRODUCTION, "Settings", &[]);
    write_private(&path, text.as_bytes())?;
    out.good(&format!("✓ written: {}", path.display()));
    Ok(())
}

fn unreadable(error: ConfigError) -> Failure {
    match error {
        ConfigError::Read { path, source } => ClientError::File { action: "read", path, source }.into(),
        error => Failure::Usage(error.to_string()),
    }
}
