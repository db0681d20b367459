//! Early key rotation: new exchange keys at once, or a whole new identity.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::ids::NodeId;
use baton_proto::node_record::KeyWindow;

use super::{
    EXCHANGE_KEYS_FILE, IdentityError, NODE_KEY_FILE, create_node_key, load_node_key, load_ring, store_ring,
};

/// Prefix of a retired node key's file name; the first digits of the node's ID follow.
const RETIRED_PREFIX: &str = "node.key.retired-";
/// Number of these hex digits.
const RETIRED_DIGITS: usize = 16;

/// A new identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RotationOutcome {
    /// The old node ID.
    pub(crate) old: NodeId,
    /// The new node ID.
    pub(crate) new: NodeId,
    /// Path of the old key.
    pub(crate) retired_key: PathBuf,
}

/// The exchange keys of a data directory, oldest first.
///
/// # Errors
/// [`IdentityError`]: they cannot be read.
pub(crate) fn exchange_keys(data_dir: &Path) -> Result<Vec<KeyWindow>, IdentityError> {
    Ok(load_ring(&data_dir.join(EXCHANGE_KEYS_FILE))?.windows())
}

/// Erases the exchange keys and creates new ones, for a stopped node. Replaces a damaged file as well. A later turn
/// sealed to an old key is refused, and its client requests the new record.
///
/// # Errors
/// [`IdentityError::Ring`] when the keys cannot be written.
pub(crate) fn rotate_exchange_keys(data_dir: &Path, now_ms: u64) -> Result<(), IdentityError> {
    let mut ring = super::KeyRing::default();
    ring.replace(now_ms);
    store_ring(&data_dir.join(EXCHANGE_KEYS_FILE), &ring)
}

/// Creates a new node key with new exchange keys, and renames the old node key. For a stopped node.
///
/// # Errors
/// [`IdentityError`], by cause. The old key then has its name back, if the file system permits.
pub(crate) fn rotate_node_key(data_dir: &Path, now_ms: u64) -> Result<RotationOutcome, IdentityError> {
    let path = data_dir.join(NODE_KEY_FILE);
    let old = load_node_key(data_dir)?.node_id();
    let name = old.to_string();
    let retired_key =
        data_dir.join(format!("{RETIRED_PREFIX}{}", name.get(..RETIRED_DIGITS).unwrap_or(&name)));
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| IdentityError::Ring { action, path, source }
    };
    fs::rename(&path, &retired_key).map_err(failed("set aside", &path))?;
    if let Err(error) = create_node_key(data_dir) {
        // The first error is the reported one.
        let _ = fs::rename(&retired_key, &path);
        return Err(error.into());
    }
    rotate_exchange_keys(data_dir, now_ms)?;
    Ok(RotationOutcome { old, new: load_node_key(data_dir)?.node_id(), retired_key })
}

/// Files of retired node keys.
///
/// # Errors
/// The file system's.
pub(crate) fn retired_keys(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(RETIRED_PREFIX) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::KeyRing;

    const NOW: u64 = 1_800_000_000_000;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        create_node_key(folder.path()).unwrap();
        folder
    }

    #[test]
    fn new_exchange_keys_leave_nothing_of_the_old_ones() {
        let folder = folder();
        rotate_exchange_keys(folder.path(), NOW).unwrap();
        let path = folder.path().join(EXCHANGE_KEYS_FILE);
        let old = fs::read_to_string(&path).unwrap();
        // A second name for the old bytes, to check that they are wiped.
        fs::hard_link(&path, folder.path().join("watched")).unwrap();
        rotate_exchange_keys(folder.path(), NOW + 1).unwrap();
        assert!(fs::read(folder.path().join("watched")).unwrap().iter().all(|byte| *byte == 0));
        let windows = exchange_keys(folder.path()).unwrap();
        assert_eq!((windows.len(), windows[0].from_ms), (2, NOW + 1));
        for window in KeyRing::parse(&old).unwrap().windows() {
            assert!(!windows.iter().any(|new| new.key == window.key));
        }
        fs::write(&path, "damaged").unwrap();
        assert!(exchange_keys(folder.path()).is_err());
        rotate_exchange_keys(folder.path(), NOW + 2).unwrap();
        assert_eq!(exchange_keys(folder.path()).unwrap().len(), 2);
    }
}
