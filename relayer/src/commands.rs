//! The commands that do not serve.

use std::path::Path;

use anyhow::{Context as _, bail};
use baton_keys::{SecretSigningKey, account::AccountKey, ids::PublicKey};
use baton_memory::ids::OwnerId;
use zeroize::Zeroizing;

use crate::{
    cli::{DelegateArgs, InviteArgs, McpArgs},
    config::Settings,
    delegation::{Delegation, DelegationJson, Scopes},
    http,
    output::println,
    owners, setup,
    time::now_ms,
};

/// Owners per read from the storage.
const OWNERS_PAGE: usize = 1_000;
/// Largest passphrase or delegation file.
const MAX_SMALL_FILE: u64 = 8 * 1024;

fn small_file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    use std::io::Read as _;
    let mut text = Zeroizing::new(String::new());
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_SMALL_FILE).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let line = text.lines().next().unwrap_or_default().trim();
    Ok(Zeroizing::new(line.to_owned()))
}

/// A delegation in header form, from a file in that form or in JSON.
#[cfg(feature = "mcp")]
fn delegation_header(path: &Path) -> anyhow::Result<String> {
    let text = small_file(path)?;
    if !text.starts_with('{') {
        return Ok(text.to_string());
    }
    let json: DelegationJson = serde_json::from_str(&text).with_context(|| {
        format!("{} is no delegation; baton account delegate --out writes one", path.display())
    })?;
    Ok(json.to_header())
}

fn account_key(path: &Path, passphrase_file: Option<&Path>) -> anyhow::Result<AccountKey> {
    let passphrase = passphrase_file.map(small_file).transpose()?;
    Ok(AccountKey::load(path, passphrase.as_ref().map(|text| text.as_str()))?)
}

/// Serves the tools to an agent.
#[cfg(not(feature = "mcp"))]
pub(crate) async fn mcp(_: McpArgs) -> anyhow::Result<()> {
    bail!("this program was built without tools for agents: build it with the feature `mcp`")
}

/// Serves the tools to an agent.
#[cfg(feature = "mcp")]
pub(crate) async fn mcp(args: McpArgs) -> anyhow::Result<()> {
    use crate::mcp::remote::{self, Remote};
    let key = account_key(&args.account_key, args.passphrase_file.as_deref())?;
    let account: Option<OwnerId> = args
        .account
        .map(|account| account.parse().context("--account is 0x and 64 hex characters"))
        .transpose()?;
    let delegation = args.delegation.as_deref().map(delegation_header).transpose()?;
    let account = account.map(|owner| owner.to_string());
    let remote = Remote::new(&args.url, key, account, delegation, args.insecure, std::sync::Arc::new(now_ms))
        .map_err(anyhow::Error::msg)?;
    remote::serve(remote).await
}

/// Prints a signed delegation.
pub(crate) fn delegate(args: &DelegateArgs) -> anyhow::Result<()> {
    let account = account_key(&args.account_key, args.passphrase_file.as_deref())?;
    let delegate = PublicKey::parse_hex(&args.key).context("--key is the delegate's public key")?;
    let scopes = Scopes::named(args.scopes.iter().map(String::as_str))
        .context("--scopes are of read, write, chat, admin and intimate")?;
    let now_s = now_ms() / 1_000;
    let owner = OwnerId::of(&account.public_key());
    let mut delegation = Delegation::new(owner, delegate, scopes, now_s, now_s + args.days * 86_400);
    delegation.project.clone_from(&args.project);
    let relayer = args.relayer.as_deref().map(PublicKey::parse_hex).transpose();
    delegation.relayer = relayer.context("--relayer is the relayer's public key, 64 hex characters")?;
    let json = DelegationJson::from(&delegation.sign(account.signing_key()));
    json.verify()?;
    println(&if args.header { json.to_header() } else { serde_json::to_string_pretty(&json)? });
    Ok(())
}

/// Prints an invitation of an account's key to the relayer with this key.
pub(crate) fn invite(args: &InviteArgs, relayer: &SecretSigningKey) -> anyhow::Result<()> {
    let holder = PublicKey::parse_hex(&args.key)
        .context("the account's public key has 64 hex characters; its baton account show has it")?;
    let (text, serial) = owners::invite(relayer, holder, args.days, now_ms()).map_err(anyhow::Error::msg)?;
    println(&match args.json {
        true => serde_json::json!({ "invitation": text, "serial": serial.to_string() }).to_string(),
        false => text,
    });
    Ok(())
}

/// Prints the OpenAPI document.
pub(crate) fn openapi() -> anyhow::Result<()> {
    println(&http::document(http::chat::documented()).to_pretty_json()?);
    Ok(())
}

/// Prints all owners.
pub(crate) async fn list_owners(settings: &Settings) -> anyhow::Result<()> {
    let vault = setup::vault(settings).await?;
    let mut after = None;
    loop {
        let (owners, last) = vault.owners(after, OWNERS_PAGE).await?;
        owners.iter().for_each(|owner| println(&owner.to_string()));
        if last.is_none() {
            return Ok(());
        }
        after = last;
    }
}

/// Deletes an owner.
pub(crate) async fn erase_owner(settings: &Settings, account: &str, yes: bool) -> anyhow::Result<()> {
    let owner: OwnerId = account.parse().context("an account is 0x and 64 hex characters")?;
    if !yes {
        bail!("this deletes all memory of {owner} and its keys, for good; add --yes to do it");
    }
    setup::open(settings, None).await?.memory.erase_owner(owner).await?;
    println(&format!("erased {owner}"));
    Ok(())
}

/// Gives up the lost data of an owner, or of all owners; without `yes`, only lists the owners.
pub(crate) async fn accept_loss(settings: &Settings, account: Option<&str>, yes: bool) -> anyhow::Result<()> {
    let memory = setup::open(settings, None).await?.memory;
    let owners = match account {
        Some(account) => vec![account.parse().context("an account is 0x and 64 hex characters")?],
        None => memory.owners_with_loss().await?,
    };
    if owners.is_empty() {
        println("nothing was lost, as far as key files tell");
        return Ok(());
    }
    if !yes {
        for owner in &owners {
            println(&owner.to_string());
        }
        bail!(
            "what the database lost of these is given up, for good, with --yes; a backup of the database, put back while no \
             relayer runs, brings it back"
        );
    }
    for owner in owners {
        let loss = memory.accept_loss(owner).await?;
        println(&format!(
            "{owner}: {} events are there, {} are lost, {} other records were removed",
            loss.events, loss.lost_events, loss.removed
        ));
    }
    memory.close_all().await;
    Ok(())
}
