//! The file of the ledger of decoys, and the folder of proofs. The ledger is one sealed JSON object, replaced
//! whole; an unreadable file is replaced, and the budget begins anew. Proofs hold nothing but decoys, so they
//! are plain files.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::files::{FileSecret, create_private_folder, replace_private, write_private};
use baton_proto::{contradiction::Contradiction, ids::NodeId};
use serde::{Deserialize, Serialize};

use super::{DecoyLedger, DecoyTotals, MAX_NODES, MAX_SHAPES, NodeChecks, TurnShape};

/// Name of the file in the home folder.
const FILE: &str = "decoys";
/// Purpose of the file's seal.
const PURPOSE: &[u8] = b"baton client decoys 1";
/// Largest file to read: several times a full ledger.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Folder of the proofs in the home folder.
const PROOFS: &str = "proofs";
/// Proofs that a home keeps; the oldest is removed.
const MAX_PROOFS: usize = 64;
/// Largest proof to read: eight sessions of one segment each.
pub const MAX_PROOF_BYTES: u64 = 32 * 1024 * 1024;

/// The file's form. Later fields are missing in old files and unknown to old programs; both still read it.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct StoredLedger {
    totals: DecoyTotals,
    nodes: BTreeMap<String, NodeChecks>,
    shapes: Vec<TurnShape>,
    turns_since_decoy: u64,
}

/// Path and secret of the ledger's file.
#[derive(Clone)]
pub(crate) struct DecoyFile {
    path: PathBuf,
    secret: FileSecret,
}

impl DecoyFile {
    pub(crate) fn new(home: &Path, secret: &FileSecret) -> Self {
        Self { path: home.join(FILE), secret: secret.clone() }
    }

    /// The ledger, empty if the file is missing or unreadable. Blocking.
    pub(crate) fn load(&self) -> DecoyLedger {
        self.read()
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "the ledger of decoys cannot be read; it begins anew");
                None
            })
            .unwrap_or_default()
    }

    /// The stored ledger; none if there is no file. Blocking.
    ///
    /// # Errors
    /// The file system's, and [`io::ErrorKind::InvalidData`] for a file that does not open.
    pub(crate) fn read(&self) -> io::Result<Option<DecoyLedger>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it does not open");
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => return Err(damaged()),
            Ok(_) => {}
        }
        let text = self.secret.open(PURPOSE, &fs::read(&self.path)?).map_err(|_| damaged())?;
        let stored: StoredLedger = serde_json::from_slice(&text).map_err(io::Error::other)?;
        let node = |(id, checks): (String, NodeChecks)| Some((NodeId::parse_hex(&id).ok()?, checks));
        Ok(Some(DecoyLedger {
            totals: stored.totals,
            unsaved: DecoyTotals::default(),
            nodes: stored.nodes.into_iter().filter_map(node).take(MAX_NODES).collect(),
            shapes: stored.shapes.into_iter().take(MAX_SHAPES).collect(),
            turns_since_decoy: stored.turns_since_decoy,
        }))
    }

    /// Writes the ledger. Blocking.
    ///
    /// # Errors
    /// The file system's; the old file then stays.
    pub(crate) fn write(&self, ledger: &DecoyLedger) -> io::Result<()> {
        let stored = StoredLedger {
            totals: ledger.totals,
            nodes: ledger.nodes.iter().map(|(node, checks)| (node.to_string(), *checks)).collect(),
            shapes: ledger.shapes.iter().copied().collect(),
            turns_since_decoy: ledger.turns_since_decoy,
        };
        let text = serde_json::to_vec(&stored).map_err(io::Error::other)?;
        replace_private(&self.path, &self.secret.seal(PURPOSE, &text))
    }
}

/// Writes a proof into the home's folder of proofs; returns its path. Blocking.
///
/// # Errors
/// The file system's.
pub(crate) fn keep_proof(
    home: &Path,
    accused: NodeId,
    now_ms: u64,
    proof: &Contradiction,
) -> io::Result<PathBuf> {
    let folder = home.join(PROOFS);
    create_private_folder(&folder)?;
    let node: String = accused.to_string().chars().take(16).collect();
    // The time first, so that the oldest proof comes first.
    let path = folder.join(format!("{now_ms:013}-{node}.json"));
    let mut text = serde_json::to_vec(proof).map_err(io::Error::other)?;
    text.push(b'\n');
    write_private(&path, &text)?;
    let kept = proofs(home)?;
    for old in kept.iter().take(kept.len().saturating_sub(MAX_PROOFS)) {
        fs::remove_file(old)?;
    }
    Ok(path)
}

/// The proofs of a home, oldest first. Blocking.
///
/// # Errors
/// The file system's.
pub(crate) fn proofs(home: &Path) -> io::Result<Vec<PathBuf>> {
    let listing = match fs::read_dir(home.join(PROOFS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing?,
    };
    let mut paths: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Ok(paths)
}

/// Reads a proof from any file. It is not checked. Blocking.
///
/// # Errors
/// The file system's, and [`io::ErrorKind::InvalidData`] for a file that is no proof.
pub fn read_proof(path: &Path) -> io::Result<Contradiction> {
    use io::Read as _;
    let mut text = Vec::new();
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let read = fs::File::open(path)?.take(MAX_PROOF_BYTES + 1).read_to_end(&mut text)?;
    if read as u64 > MAX_PROOF_BYTES {
        return Err(invalid(format!("it is larger than {MAX_PROOF_BYTES} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))
}
