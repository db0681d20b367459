//! `baton account`: the key that owns memories.

use std::{io::IsTerminal as _, path::Path};

use baton_client::{AccountKey, ClientError};
use baton_keys::{files, words::read_words};
use baton_kit::prompt;
use serde_json::json;
use zeroize::Zeroizing;

use super::{
    Failure, account_key::load, args::AccountCommand, delegation, out::Out, settings::Settings, write_private,
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
            let words = words(words_file.as_deref())?;
            make(settings, &AccountKey::from_words(&words).map_err(ClientError::from)?, out)
        }
        AccountCommand::Delegate(arguments) => {
            delegation::run(settings, load(settings)?, arguments, out).await
        }
        AccountCommand::Revoke { id, key } => {
            delegation::revoke(settings, load(settings)?, id, key.as_deref(), out).await
        }
    }
}

fn make(settings: &Settings, key: &AccountKey, out: &Out) -> Result<(), Failure> {
    let path = settings.account_file();
    if AccountKey::exists(&path) {
        // For an empty file, this returns an error with its fix.
        files::needs_passphrase(&path).map_err(ClientError::from)?;
        return Err(Failure::Usage(format!(
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
    let path = settings.account_file();
    if out.json() {
        return Ok(out.value(&json!({
            "account": key.account_id(), "public_key": key.public_key().to_string(), "file": path,
        }))?);
    }
    out.line(&format!("account     {}", key.account_id()))?;
    out.line(&format!("public key  {}", key.public_key()))?;
    Ok(out.line(&format!("file        {}", path.display()))?)
}

fn backup(settings: &Settings, file: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let words = load(settings)?.to_words();
    match file {
        Some(file) => {
            write_private(file, Zeroizing::new(format!("{}\n", *words)).as_bytes())?;
            out.note(&format!("written to {}; whoever has it has the account", file.display()));
        }
        None if std::io::stdout().is_terminal() => {
            out.warn("whoever has these words has the account; write them down and clear the screen");
            out.line(&words)?;
        }
        // Words in a pipe end up in logs and shell histories.
        None => {
            return Err(Failure::usage(
                "The words are shown only at a terminal.",
                "write them to a file: --out FILE",
            ));
        }
    }
    Ok(())
}

/// The 24 words of a file, of the terminal, or of standard input.
pub(crate) fn words(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(path) = file.filter(|path| *path != Path::new("-")) {
        let read = std::fs::File::open(path).and_then(read_words);
        return read
            .map_err(|source| ClientError::File { action: "read", path: path.to_owned(), source }.into());
    }
    let typed = if file.is_none() { prompt::secret("The 24 words (not shown): ")? } else { None };
    Ok(typed.map_or_else(|| read_words(std::io::stdin().lock()), Ok)?)
}
