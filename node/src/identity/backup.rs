//! Backups of the node key, and the note of a backup.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret, KeyFileError},
    ids::NodeId,
    session::SessionRoot,
    words::WordsError,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{NODE_KEY_FILE, NODE_KEY_KIND, load_node_key};

/// Name of the note in the data directory.
const NOTE_FILE: &str = "node.key.backup";
/// Maximum bytes of a note: a path and some words.
const MAX_NOTE_BYTES: u64 = 16 * 1024;

/// A note that the node key has a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupNote {
    /// ID of the node, hex: a note of an earlier identity does not apply to this one.
    pub(crate) node: String,
    /// Time of the copy, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The copy's location, in the operator's words.
    pub(crate) place: String,
}

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
/// [`RestoreWordsError`]: the words encode no key, or there is a node key already.
pub(crate) fn restore_words(data_dir: &Path, words: &str) -> Result<NodeId, RestoreWordsError> {
    let root = SessionRoot::from_words(words)?;
    let secret = FileSecret::from_bytes(*root.expose());
    files::create(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, &secret, None)?;
    Ok(load_node_key(data_dir)?.node_id())
}

/// Why 24 words could not restore a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreWordsError {
    /// They are not a backup.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// The key file's error.
    #[error(transparent)]
    Key(#[from] KeyFileError),
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

/// Writes the note of a copy.
///
/// # Errors
/// The file system's.
pub(crate) fn note_backup(data_dir: &Path, node: NodeId, at_ms: u64, place: &str) -> io::Result<()> {
    let note = BackupNote { node: node.to_string(), at_ms, place: place.to_owned() };
    let text = serde_json::to_string(&note).expect("a note has nothing that JSON cannot hold");
    files::replace_private(&note_path(data_dir), text.as_bytes())
}

/// The note of a copy of this node's key, if there is one.
#[must_use]
pub(crate) fn noted_backup(data_dir: &Path, node: NodeId) -> Option<BackupNote> {
    use io::Read as _;
    let mut text = String::new();
    let file = fs::File::open(note_path(data_dir)).ok()?;
    file.take(MAX_NOTE_BYTES).read_to_string(&mut text).ok()?;
    let note: BackupNote = serde_json::from_str(&text).ok()?;
    (note.node == node.to_string()).then_some(note)
}

/// Removes the note.
pub(super) fn forget_note(data_dir: &Path) -> io::Result<()> {
    match fs::remove_file(note_path(data_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn note_path(data_dir: &Path) -> PathBuf {
    data_dir.join(NOTE_FILE)
}

#[cfg(test)]
mod tests {
    use super::{super::create_node_key, *};

    #[test]
    fn a_copy_brings_the_node_back_and_never_over_another() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        create_node_key(home.path()).unwrap();
        let node = load_node_key(home.path()).unwrap().node_id();
        for passphrase in [None, Some("correct horse")] {
            let copy = other.path().join(format!("copy-{}", passphrase.is_some()));
            assert_eq!(back_up(home.path(), &copy, passphrase).unwrap(), node);
            assert!(back_up(home.path(), &copy, passphrase).is_err(), "never over a file");
            let new = tempfile::tempdir().unwrap();
            if passphrase.is_some() {
                let refused = restore(new.path(), &copy, Some("wrong")).unwrap_err();
                assert!(matches!(refused, KeyFileError::WrongPassphrase { .. }));
                assert!(!new.path().join(NODE_KEY_FILE).exists());
            }
            assert_eq!(restore(new.path(), &copy, passphrase).unwrap(), node);
            let before = fs::read(new.path().join(NODE_KEY_FILE)).unwrap();
            assert!(restore(new.path(), &copy, passphrase).is_err());
            assert_eq!(fs::read(new.path().join(NODE_KEY_FILE)).unwrap(), before);
        }
    }

    #[test]
    fn words_bring_the_node_back_and_a_wrong_one_is_named() {
        let (home, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        create_node_key(home.path()).unwrap();
        let node = load_node_key(home.path()).unwrap().node_id();
        let words = back_up_words(home.path()).unwrap();
        assert_eq!(words.split(' ').count(), 24);
        let wrong = words.replacen(words.split(' ').nth(4).unwrap(), "batonic", 1);
        for bad in [wrong.as_str(), "", "one two"] {
            let refused = restore_words(new.path(), bad).unwrap_err();
            assert!(matches!(refused, RestoreWordsError::Words(_)), "{refused}");
            assert!(!new.path().join(NODE_KEY_FILE).exists());
        }
        assert_eq!(restore_words(new.path(), &words.to_uppercase()).unwrap(), node);
        let before = fs::read(new.path().join(NODE_KEY_FILE)).unwrap();
        assert!(matches!(restore_words(new.path(), &words), Err(RestoreWordsError::Key(_))));
        assert_eq!(fs::read(new.path().join(NODE_KEY_FILE)).unwrap(), before, "never over another");
    }

    #[test]
    fn a_note_is_of_one_node() {
        let folder = tempfile::tempdir().unwrap();
        let (node, other) = (NodeId([1; 32]), NodeId([2; 32]));
        assert!(noted_backup(folder.path(), node).is_none());
        note_backup(folder.path(), node, 5, "/safe \"place\"").unwrap();
        let note = noted_backup(folder.path(), node).unwrap();
        assert_eq!((note.at_ms, note.place.as_str()), (5, "/safe \"place\""));
        assert!(noted_backup(folder.path(), other).is_none());
    }
}
