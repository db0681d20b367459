//! The home folder: the device key, with or without a passphrase, the folder of the journals, and the reputation of
//! nodes.

use std::{
    fs::{self, File},
    path::Path,
};

use baton_keys::files::{self, FileSecret};
use zeroize::Zeroizing;

use crate::{
    error::ClientError,
    network::reputation::{Reputation, file::ReputationFile},
    session::journal::{JournalLocation, Journals, file_error},
};

/// Name of the device key in the home folder.
const DEVICE_KEY: &str = "device.key";
/// Kind of the device key in its file.
const DEVICE_KEY_KIND: &str = "client-device";
/// Folder of the journals in the home folder.
const SESSIONS: &str = "sessions";

/// The contents of an opened home.
pub(crate) struct HomeContents {
    pub(crate) journals: Journals,
    /// File of the nodes' reputation.
    pub(crate) reputation_file: Option<ReputationFile>,
    /// The stored reputation.
    pub(crate) reputation: Reputation,
}

impl HomeContents {
    /// For a client without a home.
    pub(crate) fn in_memory() -> Self {
        let reputation = Reputation::default();
        Self { journals: Journals::without_files(JournalLocation::Memory), reputation_file: None, reputation }
    }
}

/// Opens a home: the device key, the folder of the journals, and the reputation of nodes. Creates it
/// if it is missing. Blocking.
pub(crate) fn open(
    home: &Path,
    passphrase: Option<Zeroizing<String>>,
    now_ms: u64,
) -> Result<HomeContents, ClientError> {
    let journals = open_journals(home, passphrase)?;
    let file = ReputationFile::new(home, &journals.secret);
    let reputation = file.load(now_ms);
    Ok(HomeContents { journals, reputation_file: Some(file), reputation })
}

fn open_journals(home: &Path, passphrase: Option<Zeroizing<String>>) -> Result<Journals, ClientError> {
    let passphrase = passphrase.as_deref().map(String::as_str);
    files::create_private_folder(home).map_err(|source| file_error("make", home, source))?;
    let folder = home.join(SESSIONS);
    files::create_private_folder(&folder).map_err(|source| file_error("make", &folder, source))?;
    let path = home.join(DEVICE_KEY);
    if !path.exists() {
        files::create(&path, DEVICE_KEY_KIND, &FileSecret::generate(), passphrase)?;
    }
    // A caller that gives a passphrase believes that it protects the key.
    if passphrase.is_some() && !files::needs_passphrase(&path)? {
        return Err(ClientError::PassphraseUnused(path));
    }
    // Also right after creation: the file on the disk decides.
    let secret = files::load(&path, DEVICE_KEY_KIND, passphrase)?;
    Ok(Journals { location: JournalLocation::Folder(folder), secret })
}

/// Whether the device key of a home needs a passphrase; false if there is no key yet.
///
/// # Errors
/// [`ClientError::KeyFile`] when it cannot be read.
pub fn home_needs_passphrase(home: &Path) -> Result<bool, ClientError> {
    let path = home.join(DEVICE_KEY);
    if path.exists() { Ok(files::needs_passphrase(&path)?) } else { Ok(false) }
}

/// Sets, changes or removes the passphrase of a home's device key. Blocking.
///
/// The key and the sessions stay the same. The file is replaced whole or not at all. If the key has no
/// passphrase, `current` is ignored. A home without a key gets one. Copies of the
/// old file, and its old blocks on the disk, still open as before.
///
/// # Errors
/// [`ClientError::KeyFile`] for a wrong passphrase, [`ClientError::File`].
pub fn change_passphrase(home: &Path, current: Option<&str>, new: Option<&str>) -> Result<(), ClientError> {
    let path = home.join(DEVICE_KEY);
    if !path.exists() {
        return open_journals(home, new.map(|text| Zeroizing::new(text.to_owned()))).map(drop);
    }
    let secret = files::load(&path, DEVICE_KEY_KIND, current)?;
    let name = format!("{DEVICE_KEY}.{}.tmp", hex::encode(baton_keys::secret::random_bytes::<4>()));
    let fresh = home.join(name);
    files::create(&fresh, DEVICE_KEY_KIND, &secret, new)?;
    // The new file must open before it replaces the old one.
    let replaced = files::load(&fresh, DEVICE_KEY_KIND, new)
        .map_err(ClientError::from)
        .and_then(|_| fs::rename(&fresh, &path).map_err(|source| file_error("replace", &path, source)));
    replaced.inspect_err(|_| {
        // Removes the leftover if possible, and reports the first error.
        let _ = fs::remove_file(&fresh);
    })?;
    File::open(home).and_then(|folder| folder.sync_all()).map_err(|source| file_error("flush", home, source))
}
