//! Backups of the node key.

use std::path::Path;

use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret, KeyFileError},
    ids::NodeId,
    session::SessionRoot,
};
use zeroize::Zeroizing;

use super::{NODE_KEY_FILE, NODE_KEY_KIND, load_node_key};

/// Writes a copy of the node key to a new file, under a passphrase if given, and reads it back.
///
/// # Errors
/// [`KeyFileError`]: the key cannot be read, or the copy not be written; an existing file is never
/// overwritten.
pub(crate) fn back_up(data_dir: &Path, out: &Path, passphrase: Option<&str>) -> Result<NodeId, KeyFileError> {
    let secret = files::load(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, None)?;
    files::create(out, NODE_KEY_KIND, &secret, passphrase)?;
    let copy = node_of(&files::load(out, NODE_KEY_KIND, passphrase)?);
    if copy == node_of(&secret) {
        Ok(copy)
    } else {
        Err(KeyFileError::Format { path: out.to_owned(), kind: NODE_KEY_KIND.to_owned() })
    }
}

/// The node key as 24 words (BIP-39), for paper. They hold the whole identity: the key is one seed, and
/// exchange keys are replaced anyway. A session root with the same bytes has the same words.
///
/// # Errors
/// [`KeyFileError`]: the key cannot be read.
pub(crate) fn back_up_words(data_dir: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    let secret = files::load(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, None)?;
    Ok(SessionRoot::from_bytes(*secret.expose()).to_words())
}

/// Creates the node key from its 24 words, in a data directory without one.
///
/// # Errors
/// The words encode no key, or there is a node key already.
pub(crate) fn restore_words(data_dir: &Path, words: &str) -> anyhow::Result<NodeId> {
    let secret = FileSecret::from_bytes(*SessionRoot::from_words(words)?.expose());
    files::create(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, &secret, None)?;
    Ok(node_of(&secret))
}

fn node_of(secret: &FileSecret) -> NodeId {
    SecretSigningKey::from_seed(secret.expose()).node_id()
}

/// Puts a copy into a data directory without a node key.
///
/// # Errors
/// [`KeyFileError`]: the copy cannot be opened, or there is a node key already.
pub(crate) fn restore(
    data_dir: &Path,
    copy: &Path,
    passphrase: Option<&str>,
) -> Result<NodeId, KeyFileError> {
    let secret = files::load(copy, NODE_KEY_KIND, passphrase)?;
    files::create(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, &secret, None)?;
    Ok(load_node_key(data_dir)?.node_id())
}
