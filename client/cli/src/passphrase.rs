//! `baton passphrase`: the device key's protection.

use std::{io::IsTerminal as _, path::Path};

use baton_client::{ClientError, change_passphrase};
use zeroize::Zeroizing;

use super::{
    Failure,
    out::Out,
    settings::{Settings, passphrase_file},
};

pub(crate) async fn run(
    settings: &Settings,
    file: Option<&Path>,
    remove: bool,
    out: &Out,
) -> Result<(), Failure> {
    let new = if remove { None } else { Some(new_passphrase(file)?) };
    let home = settings.home().to_owned();
    let current = settings.passphrase().map(|text| Zeroizing::new(text.to_owned()));
    let changed = tokio::task::spawn_blocking(move || {
        change_passphrase(&home, current.as_deref().map(String::as_str), new.as_deref().map(String::as_str))
    });
    changed.await.map_err(|_| ClientError::TaskEnded)??;
    if remove {
        out.note("the device key has no passphrase now");
    } else {
        out.note("the device key is under the new passphrase; older copies of the home folder are not");
    }
    Ok(())
}

fn new_passphrase(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(file) = file {
        return passphrase_file(file);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage("give --new-file or --remove where nobody can be asked".to_owned()));
    }
    let first = Zeroizing::new(rpassword::prompt_password("New passphrase: ")?);
    let second = Zeroizing::new(rpassword::prompt_password("The same again: ")?);
    if first.is_empty() || first != second {
        return Err(Failure::Usage("the passphrases are empty or differ; nothing was changed".to_owned()));
    }
    Ok(first)
}
