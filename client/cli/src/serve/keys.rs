//! `baton serve keys`: keys with names for the endpoint.

use std::io::{self, IsTerminal as _};

use baton_gateway::{KeyListError, KeyListFile, KeyUsage, NamedKey, UsageCounts, UsageTable, read_usage};
use serde_json::{Value, json};

use crate::{
    args::{KeyOptions, KeysArguments, KeysCommand, Term},
    clock::{day, now_ms},
    failure::Failure,
    out::{Out, count},
    serve::link::{PageAddress, show_code},
    settings::Settings,
};

const DAY_S: u64 = 24 * 60 * 60;

pub(crate) fn run(settings: &Settings, arguments: &KeysArguments, out: &Out) -> Result<(), Failure> {
    let file = KeyListFile::of_home(settings.home());
    let now_s = now_ms() / 1000;
    let Some(command) = &arguments.command else {
        let usage = read_usage(settings.home());
        return match &arguments.name {
            Some(name) => show(&file, &usage, name, now_s, out),
            None => list(&file, &usage, now_s, out),
        };
    };
    match command {
        KeysCommand::Add { name, options } => {
            let change = change(options, now_s)?;
            let page = PageAddress::load(settings.home())?;
            let (key, text) = file.add(name, now_s, change).map_err(failure)?;
            show_added(&key, &text, page.as_ref(), now_s, out)
        }
        KeysCommand::Change { name, options } => {
            let change = change(options, now_s)?;
            if *options == KeyOptions::default() {
                return Err(Failure::usage(
                    "no option says what to change",
                    "baton serve keys change -h lists the options",
                ));
            }
            let key = file.change(name, change).map_err(failure)?;
            let text = format!("{name} is changed. {}", rights(&key));
            Ok(out.answer(&read_usage(settings.home()).describe(&key, now_s), &text)?)
        }
        KeysCommand::Remove { name } => {
            let key = file.remove(name).map_err(failure)?;
            let text = format!("{name} is removed. Its conversations stay: baton session list");
            Ok(out.answer(&json!({ "removed": key.name }), &text)?)
        }
    }
}

/// Shows a new key, with the link of the page for its holder.
fn show_added(
    key: &NamedKey,
    text: &str,
    page: Option<&PageAddress>,
    now_s: u64,
    out: &Out,
) -> Result<(), Failure> {
    let link = page.map(|page| page.link(Some(text)));
    if out.json() {
        let mut value = UsageTable::default().describe(key, now_s);
        value["key"] = text.into();
        value["link"] = json!(link.as_ref().map(|link| link.as_str()));
        return Ok(out.value(&value)?);
    }
    out.line(text)?;
    out.note(&format!("This is the key of {}, shown once. {}", key.name, rights(key)));
    let (Some(page), Some(link)) = (page, link) else {
        out.note("Once baton serve has run with this home, a new key is shown with its link.");
        return Ok(());
    };
    // A file that standard error goes to must not have the key.
    if io::stderr().is_terminal() {
        out.note(&format!("Its link opens the chat page, and keeps the device signed in:\n{}", *link));
        show_code(page, &link, out);
    }
    Ok(())
}

/// The change of a key that options name; what no option names stays.
fn change(options: &KeyOptions, now_s: u64) -> Result<impl FnOnce(&mut NamedKey) + use<'_>, Failure> {
    if let Some(Term::At(end_s)) = options.expires
        && end_s <= now_s
    {
        let message = format!("--expires {} is in the past", day(end_s.saturating_mul(1000)));
        return Err(Failure::usage(
            message,
            "a key that should end now is removed: baton serve keys remove NAME",
        ));
    }
    Ok(move |key: &mut NamedKey| {
        let quotas = &mut key.quotas;
        key.project = options.project.clone().unwrap_or_else(|| key.project.clone());
        key.memory = options.memory.unwrap_or(key.memory);
        quotas.requests_per_hour =
            options.requests_per_hour.map_or(quotas.requests_per_hour, |quota| quota.0);
        quotas.tokens_per_day = options.tokens_per_day.map_or(quotas.tokens_per_day, |quota| quota.0);
        key.expires_s = match options.expires {
            Some(Term::Days(days)) => Some(now_s.saturating_add(days.saturating_mul(DAY_S))),
            Some(Term::At(time_s)) => Some(time_s),
            Some(Term::Never) => None,
            None => key.expires_s,
        };
    })
}

/// A failure with the list of keys, with its next step.
pub(crate) fn failure(error: KeyListError) -> Failure {
    let hint = match &error {
        KeyListError::Unknown { .. } => "baton serve keys lists them",
        KeyListError::Exists(_) | KeyListError::Full => "baton serve keys lists the keys",
        KeyListError::Name(_) => "baton serve keys add anna",
        _ => "check the home folder, or choose another with --home",
    };
    Failure::usage(error.to_string(), hint)
}

/// What a key allows, in a sentence.
fn rights(key: &NamedKey) -> String {
    let mut parts = vec![format!("It sees the conversations of {}", key.project)];
    if key.memory {
        parts.push("uses your memory".to_owned());
    }
    parts.extend(
        key.quotas.requests_per_hour.map(|limit| format!("makes {} an hour", count(limit, "request"))),
    );
    parts.extend(key.quotas.tokens_per_day.map(|limit| format!("uses {} a day", count(limit, "token"))));
    parts.extend(key.expires_s.map(|end_s| format!("ends on {}", day(end_s.saturating_mul(1000)))));
    let text = match parts.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => parts.concat(),
    };
    format!("{text}.")
}

fn list(file: &KeyListFile, usage: &UsageTable, now_s: u64, out: &Out) -> Result<(), Failure> {
    let keys = file.keys().map_err(failure)?;
    if out.json() {
        let keys: Vec<Value> = keys.iter().map(|key| usage.describe(key, now_s)).collect();
        return Ok(out.value(&json!({ "keys": keys }))?);
    }
    if keys.is_empty() {
        out.note("There are no keys with names. Add one: baton serve keys add anna");
        return Ok(());
    }
    let head = ["NAME", "PROJECT", "MEMORY", "REQUESTS/HOUR", "TOKENS TODAY", "ENDS"];
    let rows = keys.iter().map(|key| row(key, usage.of(&key.name), now_s));
    Ok(out.table(&head, &rows.collect::<Vec<_>>())?)
}

fn row(key: &NamedKey, usage: Option<&KeyUsage>, now_s: u64) -> Vec<Value> {
    let requests = usage.map_or(0, |usage| usage.requests_in_hour(now_s));
    let today = usage.map(|usage| usage.day(now_s)).unwrap_or_default();
    let of = |used: u64, limit: Option<u64>| match limit {
        Some(limit) => format!("{used} of {limit}").into(),
        None => used.into(),
    };
    let ends = match key.expires_s {
        Some(end_s) if end_s <= now_s => Some("ended".to_owned()),
        end_s => end_s.map(|end_s| day(end_s.saturating_mul(1000))),
    };
    vec![
        key.name.as_str().into(),
        key.project.as_str().into(),
        if key.memory { "on" } else { "off" }.into(),
        of(requests, key.quotas.requests_per_hour),
        of(today.input_tokens + today.output_tokens, key.quotas.tokens_per_day),
        ends.into(),
    ]
}

fn show(file: &KeyListFile, usage: &UsageTable, name: &str, now_s: u64, out: &Out) -> Result<(), Failure> {
    let keys = file.keys().map_err(failure)?;
    let Some(key) = keys.iter().find(|key| key.name == name) else {
        let known = keys.into_iter().map(|key| key.name).collect();
        return Err(failure(KeyListError::Unknown { name: name.to_owned(), known }));
    };
    let own = usage.of(name);
    if out.json() {
        return Ok(out.value(&usage.describe(key, now_s))?);
    }
    out.note(&rights(key));
    let days = own.into_iter().flat_map(KeyUsage::days).map(|(day_s, usage)| {
        let UsageCounts { requests, input_tokens, output_tokens } = usage;
        let day = day(day_s.saturating_mul(1000));
        vec![day.into(), requests.into(), input_tokens.into(), output_tokens.into()]
    });
    let rows: Vec<Vec<Value>> = days.collect();
    if rows.is_empty() {
        out.note("0 requests so far");
        return Ok(());
    }
    Ok(out.table(&["DAY", "REQUESTS", "INPUT TOKENS", "ANSWER TOKENS"], &rows)?)
}
