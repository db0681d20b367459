//! `baton config`: all settings with their values and origins, and the problems of the settings file.

use baton_client::ClientError;
use baton_kit::config::{self, OptionTable as _, OptionValue, Origins};
use clap::ArgMatches;
use serde_json::{Map, Value, json};

use crate::{
    args::Arguments,
    failure::Failure,
    files::write_private,
    options::ClientOptions,
    out::Out,
    settings::{Environment, read_file, settings_file},
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
    let mut read = None;
    if let Some((path, report)) = read_file(arguments.config.as_deref(), environment)? {
        if !report.problems.is_empty() {
            let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(problems.join("\n"), "correct the named lines"));
        }
        origins = origins.or(Origins::of_file(&path, &report.lines));
        options = options.or(report.options);
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
        rows.push(vec![(*key).into(), origins.of(key).describe::<ClientOptions>(key).into(), value.into()]);
    }
    out.table(&["SETTING", "ORIGIN", "VALUE"], &rows)?;
    match read {
        Some(path) => out.note(&format!("Settings file: {}", path.display())),
        None => out.note("There is no settings file yet. Write one: baton config --init"),
    }
    Ok(())
}

/// Writes a settings file.
pub(crate) fn init(arguments: &Arguments, environment: &Environment, out: &Out) -> Result<(), Failure> {
    let (path, _) = settings_file(arguments.config.as_deref(), environment).ok_or_else(|| {
        Failure::usage("There is no home folder for the settings file.", "name one: --config FILE")
    })?;
    if let Some(folder) = path.parent() {
        let failed = |source| ClientError::File { action: "create", path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let text = config::commented_file::<ClientOptions>(INTRODUCTION, "Settings", &[]);
    write_private(&path, text.as_bytes())?;
    out.good(&format!("✓ written: {}", path.display()));
    Ok(())
}
