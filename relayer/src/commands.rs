//! The commands that do not serve.

use anyhow::{Context as _, bail};
use baton_keys::{SecretSigningKey, ids::PublicKey};
use baton_memory::ids::OwnerId;

use crate::{cli::InviteArgs, config::Settings, http, output::println, owners, setup, time::now_ms};

/// Owners per read from the storage.
const OWNERS_PAGE: usize = 1_000;

/// Prints an invitation of an account's key to the relayer with this key.
pub(crate) fn invite(args: &InviteArgs, relayer: &SecretSigningKey) -> anyhow::Result<()> {
    let holder = PublicKey::parse_hex(&args.key)
        .context("the account's public key has 64 hex characters; its baton account has it")?;
    let invitation = owners::invite(relayer, holder, args.days, now_ms())?;
    println(&if args.json { invitation.describe().to_string() } else { invitation.to_string() });
    Ok(())
}

/// Prints the OpenAPI document.
pub(crate) fn openapi() -> anyhow::Result<()> {
    println(&http::document().to_pretty_json()?);
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
