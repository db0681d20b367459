//! `baton grants`: the quota that a node operator gave to this user.

use std::path::Path;

use baton_client::{ClientError, GRANT_CHAIN_FILE, QuotaHolder, holder_key, keep_chain, read_chain};
use baton_proto::{
    ErrorCode,
    quota::{QuotaChain, QuotaGrant, chain_to_text},
};
use serde_json::{Value, json};

use super::{
    Failure,
    args::{GrantsCommand, NarrowArguments},
    clock::now_ms,
    out::Out,
    settings::Settings,
    write_private,
};

const HOUR_MS: u64 = 3_600_000;

pub(crate) fn run(settings: &Settings, command: &GrantsCommand, out: &Out) -> Result<(), Failure> {
    match command {
        GrantsCommand::Key => key(settings, out),
        GrantsCommand::Show { file } => show(settings, file.as_deref(), out),
        GrantsCommand::Use { file } => install(settings, file, out),
        GrantsCommand::Attenuate(arguments) => attenuate(settings, arguments, out),
    }
}

fn key(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let key = holder_key(settings.home(), settings.passphrase())?;
    if out.json() {
        return Ok(out.value(&json!({ "holder": key.to_string() }))?);
    }
    out.note("give this to whoever is to grant you a quota");
    Ok(out.line(&key.to_string())?)
}

fn show(settings: &Settings, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let own = settings.home().join(GRANT_CHAIN_FILE);
    let path = file.unwrap_or(&own);
    if file.is_none() && !path.exists() {
        return Err(Failure::Usage(
            "no grant is in use here; take one with baton grants use FILE".to_owned(),
        ));
    }
    let chain = QuotaChain::verify_form(&read_chain(path)?).map_err(|code| unusable(path, code))?;
    if out.json() {
        let links: Vec<_> = chain.links().iter().map(|link| describe(link)).collect();
        return Ok(out.value(&json!({ "file": path, "chain": links }))?);
    }
    for (number, link) in chain.links().iter().enumerate() {
        let by = if number == 0 { "issued by" } else { "narrowed by" };
        out.line(&format!("{by} {}", link.grantor))?;
        out.line(&format!("  serial    {}", link.serial))?;
        out.line(&format!("  for       {}", link.holder))?;
        out.line(&format!(
            "  an hour   {} turns, {} tokens; {} at once",
            link.turns_per_hour, link.tokens_per_hour, link.concurrent
        ))?;
        out.line(&format!("  nodes     {}", joined(&link.nodes)))?;
        out.line(&format!("  models    {}", joined(&link.models)))?;
        out.line(&format!("  {}", remaining_time(link)))?;
    }
    Ok(())
}

fn remaining_time(grant: &QuotaGrant) -> String {
    let now = now_ms();
    match grant.until_ms.checked_sub(now) {
        None | Some(0) => "has run out".to_owned(),
        Some(_) if now < grant.from_ms => "does not hold yet".to_owned(),
        Some(left) => format!("holds for {} hours more", left / HOUR_MS),
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "all".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn describe(grant: &QuotaGrant) -> Value {
    let texts = |items: Vec<String>| if items.is_empty() { Value::Null } else { json!(items) };
    json!({
        "grantor": grant.grantor.to_string(),
        "serial": grant.serial.to_string(),
        "holder": grant.holder.to_string(),
        "nodes": texts(grant.nodes.iter().map(ToString::to_string).collect()),
        "models": texts(grant.models.iter().map(ToString::to_string).collect()),
        "turns_per_hour": grant.turns_per_hour,
        "tokens_per_hour": grant.tokens_per_hour,
        "concurrent": grant.concurrent,
        "from_ms": grant.from_ms,
        "until_ms": grant.until_ms,
        "depth": grant.depth,
    })
}

fn unusable(path: &Path, code: ErrorCode) -> Failure {
    ClientError::Config(format!("the grant in {} does not hold: {code}", path.display())).into()
}

fn install(settings: &Settings, file: &Path, out: &Out) -> Result<(), Failure> {
    let chain = read_chain(file)?;
    let holder = QuotaChain::verify_form(&chain).map_err(|code| unusable(file, code))?.last().holder;
    let key = holder_key(settings.home(), settings.passphrase())?;
    if holder != key {
        return Err(Failure::Usage(format!(
            "the grant in {} is for the key {holder}, and this home's is {key} (baton grants key)",
            file.display()
        )));
    }
    keep_chain(settings.home(), &chain)?;
    out.note("turns are shown under this grant from now on, at the nodes where it counts");
    if out.json() { Ok(out.value(&json!({ "used": true }))?) } else { Ok(()) }
}

fn attenuate(settings: &Settings, arguments: &NarrowArguments, out: &Out) -> Result<(), Failure> {
    let held = QuotaHolder::load(settings.home(), settings.passphrase())?;
    let held = held.ok_or_else(|| {
        Failure::Usage("there is no grant to narrow here; take one with baton grants use FILE".to_owned())
    })?;
    let narrowed = held.narrow(|grant| {
        grant.holder = arguments.holder;
        grant.turns_per_hour = arguments.turns.unwrap_or(grant.turns_per_hour);
        grant.tokens_per_hour = arguments.tokens.unwrap_or(grant.tokens_per_hour);
        grant.concurrent = arguments.concurrent.unwrap_or(grant.concurrent);
        if let Some(hours) = arguments.hours {
            grant.until_ms = now_ms().saturating_add(hours.saturating_mul(HOUR_MS));
        }
        if !arguments.node_id.is_empty() {
            grant.nodes.clone_from(&arguments.node_id);
        }
        if !arguments.model_id.is_empty() {
            grant.models.clone_from(&arguments.model_id);
        }
        grant.depth = arguments.depth.unwrap_or(grant.depth);
    });
    let chain = narrowed.map_err(|code| {
        Failure::Usage(format!("{code}: a grant can only be narrowed, as often as its depth allows"))
    })?;
    let text = chain_to_text(&chain);
    match &arguments.out {
        Some(path) => {
            write_private(path, text.as_bytes())?;
            out.note(&format!("written to {}; it is of use only to the key's holder", path.display()));
        }
        None if out.json() => out.value(&json!({ "grant": text }))?,
        None => out.line(text.trim_end())?,
    }
    Ok(())
}
