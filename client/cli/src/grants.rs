//! `baton grants`: the quota that a node operator gave to this user.

use std::path::Path;

use baton_client::{GRANT_CHAIN_FILE, QuotaHolder, holder_key, keep_chain, read_chain};
use baton_kit::turn_grant::TurnGrant;
use baton_proto::{ids::PublicKey, right::Right};
use serde_json::json;

use crate::{
    args::{GrantsArguments, GrantsCommand},
    clock::now_ms,
    failure::Failure,
    out::{Out, clean},
    settings::Settings,
};

const HOUR_MS: u64 = 3_600_000;

pub(crate) fn run(settings: &Settings, arguments: &GrantsArguments, out: &Out) -> Result<(), Failure> {
    match (&arguments.command, &arguments.file) {
        (Some(GrantsCommand::Use { file }), _) => install(settings, file, out),
        (Some(GrantsCommand::Attenuate(grant)), _) => attenuate(settings, grant, out),
        (None, Some(file)) => show(file, None, out),
        (None, None) => show_own(settings, out),
    }
}

/// Shows this home's key for grants, made if missing, and the grant in use.
fn show_own(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let key = holder_key(settings.home(), settings.passphrase())?;
    let chain = settings.home().join(GRANT_CHAIN_FILE);
    if !out.json() {
        out.note("Your key, for the operator who grants you a quota:");
        out.line(&key.to_string())?;
    }
    if chain.exists() {
        return show(&chain, Some(key), out);
    }
    if out.json() {
        return Ok(out.value(&json!({ "holder": key.to_string(), "file": null, "chain": [] }))?);
    }
    out.note("No grant is in use here. Use one: baton grants use FILE");
    Ok(())
}

/// Shows a grant, which must hold.
fn show(path: &Path, holder: Option<PublicKey>, out: &Out) -> Result<(), Failure> {
    let chain = read_chain(path)?;
    if out.json() {
        let links: Vec<_> = chain.links().iter().map(|link| link.describe()).collect();
        let holder = holder.map(|key| key.to_string());
        return Ok(out.value(&json!({ "holder": holder, "file": path, "chain": links }))?);
    }
    for (number, link) in chain.links().iter().enumerate() {
        let by = if number == 0 { "issued by" } else { "narrowed by" };
        out.line(&format!("{by} {}", link.grantor))?;
        out.line(&format!("  id        {}", link.id))?;
        out.line(&format!("  for       {}", link.holder))?;
        if let Some(quota) = link.quota() {
            out.line(&format!(
                "  an hour   {} turns, {} tokens; {} at once",
                quota.turns_per_hour, quota.tokens_per_hour, quota.concurrent
            ))?;
            out.line(&format!("  models    {}", joined(&quota.models)))?;
        }
        if let Some(access) = link.memory() {
            out.line(&format!("  memory    {}", joined(&access.permissions.names())))?;
            out.line(&format!(
                "  project   {}",
                access.project.as_deref().map_or_else(|| "all".to_owned(), clean)
            ))?;
        }
        out.line(&format!("  places    {}", joined(&link.places)))?;
        out.line(&format!("  {}", remaining_time(link)))?;
    }
    Ok(())
}

fn remaining_time(grant: &Right) -> String {
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

fn install(settings: &Settings, file: &Path, out: &Out) -> Result<(), Failure> {
    let chain = read_chain(file)?;
    let holder = chain.last().holder;
    if chain.last().quota().is_none() {
        return Err(Failure::wrong(format!("{} holds no grant of turns", file.display())));
    }
    let key = holder_key(settings.home(), settings.passphrase())?;
    if holder != key {
        return Err(Failure::wrong(format!(
            "the grant in {} is for the key {holder}, and this home's is {key} (baton grants)",
            file.display()
        )));
    }
    keep_chain(settings.home(), &chain)?;
    out.note("turns are shown under this grant from now on, at the nodes where it counts");
    if out.json() { Ok(out.value(&json!({ "used": true }))?) } else { Ok(()) }
}

fn attenuate(settings: &Settings, grant: &TurnGrant, out: &Out) -> Result<(), Failure> {
    let held = QuotaHolder::load(settings.home(), settings.passphrase())?;
    let held = held.ok_or_else(|| {
        Failure::wrong("there is no grant to narrow here; take one with baton grants use FILE")
    })?;
    let narrowed = held.narrow(|right| grant.fill(right, now_ms()));
    let chain = narrowed.map_err(|code| {
        Failure::wrong(format!("{code}: a grant can only be narrowed, as often as its depth allows"))
    })?;
    out.note("It is of use only to the key's holder.");
    Ok(out.answer(&chain.describe(), &chain.to_string())?)
}
