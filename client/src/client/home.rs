//! The home folder: the device key, with or without a passphrase, the folder of the journals, and what is known of nodes.

use std::{
    fs::{self, File},
    path::Path,
};

use baton_keys::files::{self, FileSecret};
use zeroize::Zeroizing;

use crate::{
    error::ClientError,
    journal::{Keeper, file_error},
    reputation::{Reputation, keep::Keep},
};

/// Name of the device key in the home folder.
const DEVICE_KEY: &str = "device.key";
/// What the device key is, in its file.
const DEVICE_KEY_KIND: &str = "client-device";
/// Folder of the journals in the home folder.
const SESSIONS: &str = "sessions";

/// What a home holds.
pub(crate) struct Opened {
    /// Seals what is in it.
    pub(crate) secret: FileSecret,
    /// Where the journals are.
    pub(crate) keeper: Keeper,
    /// Where the reputation of nodes is kept.
    pub(crate) keep: Option<Keep>,
    /// What it was.
    pub(crate) reputation: Reputation,
}

impl Opened {
    /// For a client without a home.
    pub(crate) fn nowhere() -> Self {
        let reputation = Reputation::default();
        Self { secret: FileSecret::generate(), keeper: Keeper::Nowhere, keep: None, reputation }
    }
}

/// Opens a home, made where it is not there: the device key, the folder of the journals, and what is known of nodes.
/// Blocking.
pub(crate) fn open(
    home: &Path,
    passphrase: Option<Zeroizing<String>>,
    now_ms: u64,
) -> Result<Opened, ClientError> {
    let (secret, keeper) = open_key(home, passphrase)?;
    let keep = Keep::new(home, &secret);
    let reputation = keep.load(now_ms);
    Ok(Opened { secret, keeper, keep: Some(keep), reputation })
}

fn open_key(home: &Path, passphrase: Option<Zeroizing<String>>) -> Result<(FileSecret, Keeper), ClientError> {
    let passphrase = passphrase.as_deref().map(String::as_str);
    files::create_private_folder(home).map_err(|source| file_error("make", home, source))?;
    let folder = home.join(SESSIONS);
    files::create_private_folder(&folder).map_err(|source| file_error("make", &folder, source))?;
    let path = home.join(DEVICE_KEY);
    if !path.exists() {
        files::create(&path, DEVICE_KEY_KIND, &FileSecret::generate(), passphrase)?;
    }
    // Whoever gives a passphrase believes that the key is under it.
    if passphrase.is_some() && !files::needs_passphrase(&path)? {
        return Err(ClientError::PassphraseUnused(path));
    }
    // Also right after creation: what counts is what the disk says.
    Ok((files::load(&path, DEVICE_KEY_KIND, passphrase)?, Keeper::Folder(folder)))
}

/// Whether the device key of a home asks for a passphrase; false where there is none yet.
///
/// # Errors
/// [`ClientError::KeyFile`] when it cannot be read.
pub fn home_needs_passphrase(home: &Path) -> Result<bool, ClientError> {
    let path = home.join(DEVICE_KEY);
    if path.exists() { Ok(files::needs_passphrase(&path)?) } else { Ok(false) }
}

/// Puts the device key of a home under a passphrase, under another one, or under none. The key stays the same, and so do
/// the sessions; the file is replaced whole or not at all. `current` is not looked at where the key has none. A copy of
/// the old file, and its old place on the disk, still open with what opened it before. A home that has no key yet gets
/// one. Blocking.
///
/// # Errors
/// [`ClientError::KeyFile`] for a wrong passphrase, [`ClientError::File`].
pub fn change_passphrase(home: &Path, current: Option<&str>, new: Option<&str>) -> Result<(), ClientError> {
    let path = home.join(DEVICE_KEY);
    if !path.exists() {
        return open_key(home, new.map(|text| Zeroizing::new(text.to_owned()))).map(drop);
    }
    let secret = files::load(&path, DEVICE_KEY_KIND, current)?;
    let name = format!("{DEVICE_KEY}.{}.tmp", hex::encode(baton_keys::secret::random_bytes::<4>()));
    let fresh = home.join(name);
    files::create(&fresh, DEVICE_KEY_KIND, &secret, new)?;
    // The new file must open before it takes the place of the old one.
    let replaced = files::load(&fresh, DEVICE_KEY_KIND, new)
        .map_err(ClientError::from)
        .and_then(|_| fs::rename(&fresh, &path).map_err(|source| file_error("replace", &path, source)));
    replaced.inspect_err(|_| {
        // The leftover is removed as far as possible, and the first error is the one told.
        let _ = fs::remove_file(&fresh);
    })?;
    File::open(home).and_then(|folder| folder.sync_all()).map_err(|source| file_error("flush", home, source))
}
