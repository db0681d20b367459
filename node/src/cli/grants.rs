//! `baton-node grants`: issues quota grants. Nothing here talks to a node; a grant is a line of text that the
//! operator gives to a user.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret},
};
use baton_kit::turn_grant::TurnGrant;
use baton_proto::{
    limits::MAX_RIGHT_CHAIN,
    right::{Right, RightChain, RightScope, TurnQuota},
};

use serde_json::json;

use super::{
    Exit, Failure, GrantsArgs, GrantsCommand, Style, say, say_result,
    time::{now_ms, utc},
};
use crate::config::{Settings, default_data_dir};

/// The issuer's key in the data directory.
const ISSUER_KEY_FILE: &str = "issuer.key";
/// The kind in an issuer's key file.
const ISSUER_KEY_KIND: &str = "issuer";
/// Validity of a grant unless its issuer says another: thirty days.
const TERM_MS: u64 = 720 * 3_600_000;
/// Most bytes that are read of a file of grants: some hundred of them.
const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) fn run(args: GrantsArgs) -> Result<(), Failure> {
    let (flags, json) = (args.places.clone().flags(), args.places.json);
    let folder = args.places.data_dir.unwrap_or_else(default_data_dir);
    let path = args.issuer_key.unwrap_or_else(|| folder.join(ISSUER_KEY_FILE));
    match args.command {
        GrantsCommand::Key => key(&path, json),
        GrantsCommand::Issue(issue) => give(&load(&path)?, &issue, json),
        GrantsCommand::List { files } => list(&files, &Settings::load(flags)?, json),
    }
}

fn key(path: &Path, json: bool) -> Result<(), Failure> {
    let made = !path.exists();
    if made {
        files::create(path, ISSUER_KEY_KIND, &FileSecret::generate(), None)?;
    }
    let public = load(path)?.public_key();
    let words = format!(
        "Issuer  {public}\nFile    {}\n\nNodes take its grants with grant_issuers = [\"{public}\"]; with \
         grants_required = true they serve nobody else.",
        path.display()
    );
    say_result(json, json!({ "issuer": public.to_string(), "file": path, "created": made }), words);
    Ok(())
}

fn load(path: &Path) -> Result<SecretSigningKey, Failure> {
    if !path.exists() {
        let text =
            format!("there is no issuer key at {}; make one with baton-node grants key", path.display());
        return Err(Failure::text(Exit::Usage, text));
    }
    let secret = files::load(path, ISSUER_KEY_KIND, None)?;
    Ok(SecretSigningKey::from_seed(secret.expose()))
}

/// Lists the grants in files that the operator kept. Which of them are revoked, the configuration says.
fn list(files: &[PathBuf], settings: &Settings, json: bool) -> Result<(), Failure> {
    let (mut grants, now) = (Vec::new(), now_ms());
    for path in files {
        let failed = |error: String| Failure::text(Exit::Usage, format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let text =
            io::read_to_string(file.take(MAX_FILE_BYTES)).map_err(|error| failed(error.to_string()))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let chain = line.parse::<RightChain>();
            grants.push(chain.map_err(|code| failed(format!("a line holds no grant: {code}")))?);
        }
    }
    let state = |chain: &RightChain| {
        let revoked = settings.grants_revoked();
        if chain.is_revoked(&revoked) {
            "revoked"
        } else if now >= chain.last().until_ms {
            "expired"
        } else {
            "valid"
        }
    };
    if json {
        let described = grants.iter().map(|chain| {
            let mut fields = chain.describe();
            fields["state"] = state(chain).into();
            fields
        });
        say(json!({ "grants": described.collect::<Vec<_>>() }));
        return Ok(());
    }
    say(Style::stdout().strong(&format!("{:32}  {:16}  {:20}  STATE", "ID", "HOLDER", "UNTIL")));
    for chain in &grants {
        let (last, state) = (chain.last(), state(chain));
        say(format!("{}  {:.16}  {:20}  {state}", last.id, last.holder.to_string(), utc(last.until_ms)));
    }
    say("\nTo revoke one, add its id to grants_revoked in the configuration, and restart the node.");
    Ok(())
}

fn give(issuer: &SecretSigningKey, given: &TurnGrant, json: bool) -> Result<(), Failure> {
    let now_ms = now_ms();
    let quota = TurnQuota { models: Vec::new(), turns_per_hour: 60, tokens_per_hour: 100_000, concurrent: 2 };
    let term = now_ms..now_ms.saturating_add(TERM_MS);
    let mut grant =
        Right { depth: 1, ..Right::new(issuer.public_key(), given.holder, RightScope::Turns(quota), term) };
    given.fill(&mut grant, now_ms);
    let chain = RightChain::issue(grant, issuer).map_err(|code| {
        let most = MAX_RIGHT_CHAIN - 1;
        let text =
            format!("{code}: --hours must be at least 1, --depth at most {most}, a list at most 16 long");
        Failure::text(Exit::Usage, text)
    })?;
    say_result(json, chain.describe(), &chain);
    Ok(())
}
