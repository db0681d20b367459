//! `baton-node grants`: issues quota grants. Nothing here talks to a node; a grant is a line of text that the
//! operator gives to a user.

use std::{
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

use super::{Exit, Failure, GrantsArgs, GrantsCommand, IssueArgs, say};
use crate::config::default_data_dir;

/// The issuer's key in the data directory.
const ISSUER_KEY_FILE: &str = "issuer.key";
/// The kind in an issuer's key file.
const ISSUER_KEY_KIND: &str = "issuer";
const HOUR_MS: u64 = 3_600_000;

pub(super) fn run(args: GrantsArgs) -> Result<(), Failure> {
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let path = args.issuer_key.unwrap_or_else(|| folder.join(ISSUER_KEY_FILE));
    match args.command {
        GrantsCommand::Key => key(&path, args.json),
        GrantsCommand::Issue(issue) => give(&load(&path)?, &issue, args.json),
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

fn give(issuer: &SecretSigningKey, args: &IssueArgs, json: bool) -> Result<(), Failure> {
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
