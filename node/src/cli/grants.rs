//! `baton-node grants`: issues quota grants. Nothing here talks to a node; a grant is a line of text that the
//! operator gives to a user.

mod record;

use std::{
    io::{self, Write as _},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret},
    secret::random_bytes,
};
use baton_proto::{
    SignedObject,
    ids::QuotaSerial,
    limits::{MAX_QUOTA_CHAIN, VERSION},
    quota::{QuotaGrant, chain_to_text},
};

use super::{
    Exit, Failure, GrantsArgs, GrantsCommand, IssueArgs, Style, say,
    time::{now_ms, utc},
};
use crate::config::{Settings, default_data_dir};
use record::{GrantState, IssuedGrant};

/// The issuer's key in the data directory.
const ISSUER_KEY_FILE: &str = "issuer.key";
/// The kind in an issuer's key file.
const ISSUER_KEY_KIND: &str = "issuer";
const HOUR_MS: u64 = 3_600_000;

pub(super) fn run(args: GrantsArgs) -> Result<(), Failure> {
    let (flags, json) = (args.places.clone().flags(), args.places.json);
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let path = args.issuer_key.unwrap_or_else(|| folder.join(ISSUER_KEY_FILE));
    match args.command {
        GrantsCommand::Key => key(&path, json),
        GrantsCommand::Issue(issue) => give(&load(&path)?, &record::path_of(&path), &issue, json),
        GrantsCommand::List => list(&record::path_of(&path), &Settings::load(flags)?, json),
    }
}

fn key(path: &Path, json: bool) -> Result<(), Failure> {
    let made = !path.exists();
    if made {
        let created = files::create(path, ISSUER_KEY_KIND, &FileSecret::generate(), None);
        created.map_err(|error| Failure::new(Exit::Storage, error))?;
    }
    let public = load(path)?.public_key();
    if json {
        say(serde_json::json!({ "issuer": public.to_string(), "file": path, "created": made }));
    } else {
        say(format!(
            "Issuer  {public}\nFile    {}\n\nNodes take its grants with grant_issuers = [\"{public}\"]; with \
             grants_required = true they serve nobody else.",
            path.display()
        ));
    }
    Ok(())
}

fn load(path: &Path) -> Result<SecretSigningKey, Failure> {
    if !path.exists() {
        let text =
            format!("there is no issuer key at {}; make one with baton-node grants key", path.display());
        return Err(Failure::text(Exit::Usage, text));
    }
    let secret =
        files::load(path, ISSUER_KEY_KIND, None).map_err(|error| Failure::new(Exit::Storage, error))?;
    Ok(SecretSigningKey::from_seed(secret.expose()))
}

/// Lists the grants that this machine issued. Which of them are revoked, the configuration says.
fn list(path: &Path, settings: &Settings, json: bool) -> Result<(), Failure> {
    let (grants, unreadable) = record::read(path).map_err(|error| {
        Failure::text(Exit::Storage, format!("cannot read the issued grants in {}: {error}", path.display()))
    })?;
    let now = now_ms();
    let state = |grant: &IssuedGrant| grant.state(&settings.grants_revoked(), now);
    if json {
        let lines = grants.iter().map(|grant| {
            let mut line = serde_json::to_value(grant).expect("a grant's facts are JSON");
            line["state"] = serde_json::json!(state(grant));
            line
        });
        say(
            serde_json::json!({ "file": path, "grants": lines.collect::<Vec<_>>(), "unreadable": unreadable }),
        );
        return Ok(());
    }
    let style = Style::stdout();
    if grants.is_empty() {
        say(format!(
            "No grant is recorded in {}: `baton-node grants issue` adds one. Grants of older versions are not recorded.",
            path.display()
        ));
    } else {
        say(style.strong(&format!(
            "{:32}  {:16}  {:>8}  {:>11}  {:20}  STATE",
            "SERIAL", "HOLDER", "TURNS/H", "TOKENS/H", "UNTIL"
        )));
    }
    for grant in &grants {
        let word = match state(grant) {
            GrantState::Valid => style.good("valid"),
            GrantState::Expired => "expired".to_owned(),
            GrantState::Revoked => style.bad("revoked"),
        };
        let (holder, until) = (grant.holder.get(..16).unwrap_or(&grant.holder), utc(grant.until_ms));
        let IssuedGrant { serial, turns_per_hour, tokens_per_hour, .. } = grant;
        say(format!(
            "{serial:32}  {holder:16}  {turns_per_hour:>8}  {tokens_per_hour:>11}  {until:20}  {word}"
        ));
    }
    if unreadable > 0 {
        say(style.bad(&format!("{unreadable} lines of {} cannot be read", path.display())));
    }
    if !grants.is_empty() {
        say("\nTo revoke one, add its serial to grants_revoked in the configuration, and restart the node.");
    }
    Ok(())
}

fn give(issuer: &SecretSigningKey, issued: &Path, args: &IssueArgs, json: bool) -> Result<(), Failure> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let from_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
    let grant = QuotaGrant {
        version: VERSION,
        grantor: issuer.public_key(),
        serial: QuotaSerial(random_bytes()),
        parent: None,
        holder: args.holder,
        nodes: args.node.clone(),
        models: args.model.clone(),
        turns_per_hour: args.turns,
        tokens_per_hour: args.tokens,
        concurrent: args.concurrent,
        from_ms,
        until_ms: from_ms.saturating_add(args.hours.saturating_mul(HOUR_MS)),
        depth: args.depth,
    };
    let grant = SignedObject::sign(grant, issuer);
    // A grant that all nodes would refuse is not issued.
    SignedObject::<QuotaGrant>::verify(grant.bytes().clone()).map_err(|code| {
        let most = MAX_QUOTA_CHAIN - 1;
        let text =
            format!("{code}: --hours must be at least 1, --depth at most {most}, a list at most 16 long");
        Failure::text(Exit::Usage, text)
    })?;
    // The grant is valid without its record, so it is printed all the same.
    if let Err(error) = record::add(issued, &IssuedGrant::of(&grant)) {
        let path = issued.display();
        let _ =
            writeln!(io::stderr(), "warning: cannot record the grant in {path}: {error}; note its serial");
    }
    let text = chain_to_text(std::slice::from_ref(grant.bytes()));
    if json {
        say(serde_json::json!({
            "grant": text.trim_end(), "serial": grant.serial.to_string(), "until_ms": grant.until_ms,
        }));
    } else {
        say(text.trim_end());
    }
    Ok(())
}
