//! `baton config`: all settings with their values and origins, and the problems of the settings file.

use baton_client::ClientError;
use baton_kit::config::{self, ConfigError, OptionTable as _, OptionValue, Origins};
use clap::ArgMatches;
use serde_json::{Map, Value, json};

use super::{
    Failure,
    args::{Arguments, ConfigCommand},
    options::ClientOptions,
    out::Out,
    settings::{Environment, settings_file},
    write_private,
};

const INTRODUCTION: &str = "\
# Settings of the baton command. Options of a command and the environment (BATON_*) take precedence.
# Each setting stands as a comment with its default.
";

pub(crate) fn run(
    command: Option<&ConfigCommand>,
    (arguments, matches): (&Arguments, &ArgMatches),
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        None | Some(ConfigCommand::Show) => show((arguments, matches), environment, out),
        Some(ConfigCommand::Check) => check(arguments, environment, out),
        Some(ConfigCommand::Init) => init(arguments, environment, out),
    }
}

fn show(
    (arguments, matches): (&Arguments, &ArgMatches),
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let (mut options, mut origins) =
        (arguments.options.clone(), Origins::of_matches::<ClientOptions>(matches));
    let file = settings_file(arguments.config.as_deref(), environment);
    let mut read = None;
    if let Some((path, required)) = &file
        && let Some(text) = read_text(path, *required)?
    {
        let report = config::examine::<ClientOptions>(path, &text);
        origins = origins.or(Origins::of_file(path, &report.lines));
        options = options.or(report.into_options().map_err(usage)?);
        read = Some(path);
    }
    let shown = config::shown(&options.or(ClientOptions::defaults()));
    if out.json() {
        let values: Map<String, Value> =
            shown.iter().map(|option| (option.key.to_owned(), option.as_json(&origins))).collect();
        return Ok(out.value(&json!({ "file": read, "settings": values }))?);
    }
    let mut rows = vec![["SETTING", "ORIGIN", "VALUE"].map(str::to_owned).to_vec()];
    for OptionValue { key, value } in &shown {
        let words = ClientOptions::entry(key).map_or("", |entry| entry.default_words);
        let value = value.as_ref().map_or_else(|| format!("({words})"), ToString::to_string);
        // A value may be long: it comes last, so that the origins stay in sight.
        rows.push(vec![(*key).to_owned(), origins.of(key).describe::<ClientOptions>(key), value]);
    }
    out.table(&rows)?;
    match read {
        Some(path) => out.note(&format!("Settings file: {}", path.display())),
        None => out.note("There is no settings file yet. Write one: baton config init"),
    }
    Ok(())
}

fn check(arguments: &Arguments, environment: &Environment, out: &Out) -> Result<(), Failure> {
    let (path, required) = file_of(arguments, environment)?;
    let text = read_text(&path, required)?;
    let problems = match &text {
        Some(text) => config::examine::<ClientOptions>(&path, text).problems,
        None => Vec::new(),
    };
    if out.json() {
        let listed = problems.iter().map(ConfigError::as_json);
        out.value(&json!({
            "file": path,
            "exists": text.is_some(),
            "ok": problems.is_empty(),
            "problems": listed.collect::<Vec<_>>(),
        }))?;
    } else if text.is_none() {
        out.note(&format!("There is no {}: the defaults are used.", path.display()));
    } else {
        for problem in &problems {
            out.line(&problem.to_string())?;
        }
    }
    match problems.len() {
        0 if text.is_some() && !out.json() => {
            out.good(&format!("✓ {} has no problem", path.display()));
            Ok(())
        }
        0 => Ok(()),
        count => Err(Failure::usage(
            format!("the settings file has {}", super::out::count(count as u64, "problem")),
            "correct the named lines",
        )),
    }
}

fn init(arguments: &Arguments, environment: &Environment, out: &Out) -> Result<(), Failure> {
    let (path, _) = file_of(arguments, environment)?;
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

fn file_of(arguments: &Arguments, environment: &Environment) -> Result<(std::path::PathBuf, bool), Failure> {
    settings_file(arguments.config.as_deref(), environment).ok_or_else(|| {
        Failure::usage("There is no home folder for the settings file.", "name one: --config FILE")
    })
}

fn read_text(path: &std::path::Path, required: bool) -> Result<Option<String>, Failure> {
    config::read_text(path, required).map_err(usage)
}

fn usage(error: ConfigError) -> Failure {
    match error {
        ConfigError::Read { path, source } => ClientError::File { action: "read", path, source }.into(),
        error => Failure::usage(error.to_string(), "see all problems of the file: baton config check"),
    }
}
