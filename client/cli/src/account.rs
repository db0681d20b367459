//! `baton account`: the key that owns memories.

mod delegation;

use std::path::Path;

use baton_client::{AccountKey, ClientError};
use baton_keys::files;
use serde_json::json;

use crate::{
    args::AccountCommand, failure::Failure, out::Out, relayer::authority::load, settings::Settings, words,
};

pub(crate) async fn run(
    settings: &Settings,
    command: Option<&AccountCommand>,
    out: &Out,
) -> Result<(), Failure> {
    let Some(command) = command else { return show(settings, &load(settings)?, out) };
    match command {
        AccountCommand::New => make(settings, &AccountKey::generate(), out),
        AccountCommand::Backup { out: file } => backup(settings, file.as_deref(), out),
        AccountCommand::Restore { words_file } => {
            let words = words::read(words_file.as_deref())?;
            make(settings, &AccountKey::from_words(&words).map_err(ClientError::from)?, out)
        }
        AccountCommand::Delegate(arguments) => {
            delegation::run(settings, load(settings)?, arguments, out).await
        }
        AccountCommand::Revoke { id } => delegation::revoke(settings, load(settings)?, *id, out).await,
    }
}

fn make(settings: &Settings, key: &AccountKey, out: &Out) -> Result<(), Failure> {
    let path = settings.options.account();
    if AccountKey::exists(&path) {
        // For an empty file, this returns an error with its fix.
        files::needs_passphrase(&path).map_err(ClientError::from)?;
        return Err(Failure::wrong(format!(
            "there is an account key at {} already; it is never overwritten (another place: --account FILE)",
            path.display()
        )));
    }
    key.create(&path, settings.passphrase()).map_err(ClientError::from)?;
    if settings.passphrase().is_none() {
        out.note("The key has no passphrase; --passphrase-file sets one when the key is made.");
    }
    out.note("Without this key nobody can read these memories again. Back it up: baton account backup --out words.txt");
    show(settings, key, out)
}

fn show(settings: &Settings, key: &AccountKey, out: &Out) -> Result<(), Failure> {
    let path = settings.options.account();
    let (account, key) = (key.account_id(), key.public_key().to_string());
    let text = format!("account     {account}\npublic key  {key}\nfile        {}", path.display());
    Ok(out.answer(&json!({ "account": account, "public_key": key, "file": path }), &text)?)
}

fn backup(settings: &Settings, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let warning = "Whoever has these words has the account. Write them down, and then clear the screen.";
    words::give(&load(settings)?.to_words(), file, warning, out)?;
    if let Some(file) = file {
        out.note(&format!("written to {}; whoever has it has the account", file.display()));
    }
    Ok(())
}
