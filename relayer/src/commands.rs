//! The commands that do not serve.

use anyhow::{Context as _, bail};
use baton_keys::{SecretSigningKey, ids::PublicKey};
use baton_kit::output::print_line;
use baton_memory::ids::OwnerId;

use crate::{cli::InviteArgs, config::Settings, owners, setup, time::now_ms};

/// Prints an invitation of an account's key to the relayer with this key.
pub(crate) fn invite(args: &InviteArgs, relayer: &SecretSigningKey) -> anyhow::Result<()> {
    let holder = PublicKey::parse_hex(&args.key)
        .context("the account's public key has 64 hex characters; its baton account has it")?;
    let invitation = owners::invite(relayer, holder, args.days, now_ms())?;
    print_line(match args.json {
        true => invitation.describe().to_string(),
        false => invitation.to_string(),
    });
    Ok(())
}

/// Prints all owners.
pub(crate) async fn list_owners(settings: &Settings) -> anyhow::Result<()> {
    setup::all_owners(&setup::vault(settings).await?).await?.iter().for_each(print_line);
    Ok(())
}

/// Deletes an owner.
pub(crate) async fn erase_owner(settings: &Settings, account: &str, yes: bool) -> anyhow::Result<()> {
    let owner: OwnerId = account.parse().context("an account is 0x and 64 hex characters")?;
    if !yes {
        bail!("this deletes all memory of {owner} and its keys, for good; add --yes to do it");
    }
    setup::open(settings, None).await?.memory.erase_owner(owner).await?;
    print_line(format!("erased {owner}"));
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
        print_line("nothing was lost, as far as key files tell");
        return Ok(());
    }
    if !yes {
        for owner in &owners {
            print_line(owner);
        }
        bail!(
            "what the database lost of these is given up, for good, with --yes; a backup of the database, put back while no \
             relayer runs, brings it back"
        );
    }
    for owner in owners {
        let loss = memory.accept_loss(owner).await?;
        print_line(format!(
            "{owner}: {} events are there, {} are lost, {} other records were removed",
            loss.events, loss.lost_events, loss.removed
        ));
    }
    memory.close_all().await;
    Ok(())
}
