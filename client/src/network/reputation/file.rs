//! The file of a client's reputation table: one sealed JSON object, replaced whole. It is a convenience: an
//! unreadable file is quarantined with a warning, and the client starts over.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::{
    files::{FileSecret, replace_private},
    secret::random_bytes,
};
use baton_proto::ids::{ModelId, NodeId};
use serde::{Deserialize, Serialize};

use super::{MAX_MODEL_NAMES, MAX_NODES, MAX_WARM, NodeExperience, Reputation, WARM_MS};

/// Name of the file in the home folder.
pub(crate) const FILE: &str = "reputation";
/// Purpose of the file's seal.
const PURPOSE: &[u8] = b"baton client reputation 1";
/// Largest file to read: several times a full table.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The file's form. Later fields are missing in old files and unknown to old programs; both still read it.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct StoredReputation {
    nodes: BTreeMap<String, NodeExperience>,
    warm: BTreeMap<String, u64>,
    models: BTreeMap<String, String>,
}

/// Path and secret of the table's file.
#[derive(Clone)]
pub(crate) struct ReputationFile {
    path: PathBuf,
    secret: FileSecret,
}

impl ReputationFile {
    pub(crate) fn new(home: &Path, secret: &FileSecret) -> Self {
        Self { path: home.join(FILE), secret: secret.clone() }
    }

    /// The table, empty if there is no file; a file that does not open is quarantined. Blocking.
    pub(crate) fn load(&self, now_ms: u64) -> Reputation {
        match self.read(now_ms) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                self.quarantine(&error);
                Reputation::default()
            }
        }
    }

    /// The file's current table, which another process of this home may have written; none if it is missing
    /// or unreadable. Blocking.
    pub(crate) fn reread(&self, now_ms: u64) -> Option<Reputation> {
        self.read(now_ms).ok().flatten()
    }

    /// Writes the table. Blocking.
    ///
    /// # Errors
    /// The file system's; the old file then stays.
    pub(crate) fn write(&self, table: &Reputation, now_ms: u64) -> io::Result<()> {
        let hex = |bytes: &[u8]| hex::encode(bytes);
        let written = StoredReputation {
            nodes: table
                .nodes
                .iter()
                .filter(|(_, entry)| entry.tells(now_ms))
                .map(|(node, entry)| (node.to_string(), entry.clone()))
                .collect(),
            warm: table
                .warm
                .iter()
                .filter(|(_, until_ms)| **until_ms > now_ms)
                .map(|(tag, until_ms)| (hex(tag), *until_ms))
                .collect(),
            models: table.models.iter().map(|(model, name)| (model.to_string(), name.clone())).collect(),
        };
        let text = serde_json::to_vec(&written).map_err(io::Error::other)?;
        replace_private(&self.path, &self.secret.seal(PURPOSE, &text))
    }

    fn read(&self, now_ms: u64) -> io::Result<Option<Reputation>> {
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too large"));
            }
            Ok(_) => {}
        }
        let sealed = fs::read(&self.path)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it does not open");
        let text = self.secret.open(PURPOSE, &sealed).map_err(|_| damaged())?;
        let written: StoredReputation = serde_json::from_slice(&text).map_err(io::Error::other)?;
        Ok(Some(parse(written, now_ms)))
    }

    /// Quarantines an unreadable file. A file that this user may not read stays.
    fn quarantine(&self, error: &io::Error) {
        let name = format!("{FILE}.{}.damaged", hex::encode(random_bytes::<4>()));
        let quarantined = self.path.with_file_name(name);
        match fs::rename(&self.path, &quarantined) {
            Ok(()) => tracing::warn!(
                %error,
                path = %quarantined.display(),
                "what was known of nodes cannot be read; it is set aside, and the client begins anew"
            ),
            Err(moved) => tracing::warn!(%error, %moved, "what was known of nodes cannot be read"),
        }
    }
}

/// The well-formed entries, within the table's bounds.
fn parse(written: StoredReputation, now_ms: u64) -> Reputation {
    let node = |(id, mut entry): (String, NodeExperience)| {
        entry.tame(now_ms);
        Some((NodeId::parse_hex(&id).ok()?, entry))
    };
    let warm = |(tag, until_ms): (String, u64)| {
        let mut bytes = [0; 32];
        hex::decode_to_slice(tag, &mut bytes).ok()?;
        Some((bytes, until_ms.min(now_ms.saturating_add(WARM_MS))))
    };
    let model = |(id, name): (String, String)| Some((ModelId::parse_hex(&id).ok()?, name));
    Reputation {
        nodes: written.nodes.into_iter().filter_map(node).take(MAX_NODES).collect(),
        warm: written.warm.into_iter().filter_map(warm).take(MAX_WARM).collect(),
        models: written.models.into_iter().filter_map(model).take(MAX_MODEL_NAMES).collect(),
    }
}
