//! The folder with the relayer's keys, configuration and memory.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret, create_private_folder},
    ids::PublicKey,
};
use baton_kit::folders::user_path;

use crate::config::{CONFIG_FILE, commented_file};

/// The kind in the file of the relayer's own key.
pub(crate) const KEY_KIND: &str = "relayer";
/// The relayer's own key, in the data folder.
pub(crate) const KEY_FILE: &str = "relayer.key";
/// The key above all owners' keys, in the data folder.
pub(crate) const MASTER_FILE: &str = "master.key";

/// Writes the commented configuration, unless there is one.
pub(crate) fn write_template(folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(CONFIG_FILE);
    match files::write_private(&path, commented_file().as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        written => written.with_context(|| format!("cannot write {}", path.display())),
    }
}

/// The relayer's own key in a data folder; makes both where there are none.
pub(crate) fn init(folder: &Path) -> anyhow::Result<SecretSigningKey> {
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(KEY_FILE);
    let secret = if path.exists() {
        files::load(&path, KEY_KIND, None)?
    } else {
        let secret = FileSecret::generate();
        files::create(&path, KEY_KIND, &secret, None)?;
        secret
    };
    Ok(SecretSigningKey::from_seed(secret.expose()))
}

/// The public key of a data folder's relayer, if the folder has one.
pub(crate) fn own_key(folder: &Path) -> Option<PublicKey> {
    let secret = files::load(&folder.join(KEY_FILE), KEY_KIND, None).ok()?;
    Some(SecretSigningKey::from_seed(secret.expose()).public_key())
}

/// `baton-relayer` in `$XDG_DATA_HOME`, else in `.local/share` of the home directory, else `baton-relayer-data` here.
pub(crate) fn default_folder() -> PathBuf {
    let path = user_path("XDG_DATA_HOME", ".local/share", "baton-relayer");
    path.unwrap_or_else(|| "baton-relayer-data".into())
}
