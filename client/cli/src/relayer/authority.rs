//! The account key of this machine, and the account that requests to a relayer act for: the key's own, or the owner of a
//! delegation to the key.

use std::path::Path;

use baton_client::{AccountKey, ClientError};
use baton_keys::{account::account_id, files};
use baton_kit::prompt;
use baton_proto::right::RightChain;
use zeroize::Zeroizing;

use crate::{
    clock::{day, now_ms},
    failure::Failure,
    files::read_bounded,
    settings::Settings,
};

/// Largest delegation file: a chain of a few keys and names.
const MAX_FILE_BYTES: u64 = 8 * 1024;

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

/// The account that requests act for, and the delegation to do so.
pub(crate) struct RequestAuthority {
    /// The account that owns the memory.
    pub owner: String,
    /// The delegation as a request header; `None` for the owner itself, and for a key that the relayer knows.
    pub header: Option<String>,
}

impl RequestAuthority {
    /// From flags and files. A delegation that is named, or lies beside the account key, determines the owner
    /// to act for.
    pub(crate) fn from(settings: &Settings, key: &AccountKey) -> Result<Self, Failure> {
        let named = settings.options.delegation.clone();
        let beside = settings.options.account().with_extension("delegation");
        let path = named.clone().or_else(|| beside.exists().then_some(beside));
        let own = || settings.options.owner.clone().unwrap_or_else(|| key.account_id());
        let Some(path) = path else { return Ok(Self { owner: own(), header: None }) };
        let chain = read(&path, key)?;
        let owner = account_id(&chain.grantor());
        match &settings.options.owner {
            Some(wanted) if *wanted != owner && named.is_none() => Ok(Self { owner: own(), header: None }),
            Some(wanted) if *wanted != owner => Err(Failure::wrong(format!(
                "the delegation in {} is of {owner}, and --owner names another account",
                path.display()
            ))),
            _ => Ok(Self { owner, header: Some(chain.to_string()) }),
        }
    }
}

/// Reads a delegation, which must be to this key and not expired.
fn read(path: &Path, key: &AccountKey) -> Result<RightChain, Failure> {
    let wrong = |what: &str| Failure::wrong(format!("{}: {what}", path.display()));
    let text = read_bounded(path, MAX_FILE_BYTES).map_err(|error| wrong(&error.to_string()))?;
    let chain = text.parse::<RightChain>();
    let chain = chain.map_err(|code| wrong(&format!("this is no delegation, or a damaged one: {code}")))?;
    let right = chain.last();
    if right.memory().is_none() {
        return Err(wrong("this is a grant or an invitation, and no delegation"));
    }
    if right.holder != key.public_key() {
        return Err(wrong(&format!(
            "the delegation is to the key {}, and this one is {}; name the right key with --account",
            right.holder,
            key.public_key()
        )));
    }
    if right.until_ms <= now_ms() {
        let day = day(right.until_ms);
        return Err(wrong(&format!("the delegation ended on {day}; ask the owner for another")));
    }
    Ok(chain)
}
