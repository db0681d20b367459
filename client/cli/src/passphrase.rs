//! `baton passphrase`: the device key's protection.

use std::path::Path;

use baton_client::{ClientError, change_passphrase};
use baton_kit::prompt;
use zeroize::Zeroizing;

use crate::{
    failure::Failure,
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
    let typed = prompt::new_passphrase().map_err(|error| Failure::wrong(error.to_string()))?;
    let hint = "name the new passphrase's file: --new-file FILE, or --remove";
    typed.ok_or_else(|| Failure::usage("Not running at a terminal.", hint))
}
