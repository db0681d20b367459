//! The account key of this machine, as its file has it.

use baton_client::{AccountKey, ClientError};
use baton_keys::files;
use baton_kit::prompt;
use zeroize::Zeroizing;

use crate::{failure::Failure, settings::Settings};

/// The account key of this machine.
pub(crate) fn load(settings: &Settings) -> Result<AccountKey, Failure> {
    let path = settings.options.account();
    if !AccountKey::exists(&path) {
        return Err(Failure::wrong(format!(
            "there is no account key at {}; make one with baton account new, or bring it back with baton account restore",
            path.display()
        )));
    }
    let needed = files::needs_passphrase(&path).map_err(ClientError::from)?;
    let asked = match settings.passphrase() {
        Some(given) if needed => Some(Zeroizing::new(given.to_owned())),
        None if needed => prompt::secret("Passphrase of the account key: ")?,
        _ => None,
    };
    let passphrase = asked.as_deref().map(String::as_str);
    Ok(AccountKey::load(&path, passphrase).map_err(ClientError::from)?)
}
