//! The folder of proofs in the home: receipts that contradict each other about an answer. They hold no text and no key,
//! so they are plain files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_keys::files::{create_private_folder, write_private};
use baton_proto::contradiction::Contradiction;

use crate::{core::Core, error::ClientError, session::journal::file_error};

/// Folder of the proofs in the home folder.
const PROOFS: &str = "proofs";
/// Proofs that a home keeps; the oldest is removed.
const MAX_PROOFS: usize = 64;
/// Largest proof to read: several times nine receipts.
pub const MAX_PROOF_BYTES: u64 = 512 * 1024;

/// Writes a proof into the home's folder of proofs, if there is a home. Blocking.
///
/// # Errors
/// [`ClientError::File`].
pub(crate) fn keep(core: &Core, proof: &Contradiction) -> Result<(), ClientError> {
    let Some(home) = &core.config.home else { return Ok(()) };
    write(home, core.now_ms(), proof).map_err(|source| file_error("write", &home.join(PROOFS), source))
}

fn write(home: &Path, now_ms: u64, proof: &Contradiction) -> io::Result<()> {
    let folder = home.join(PROOFS);
    create_private_folder(&folder)?;
    let answer: String = proof.answer_hash().to_string().chars().take(16).collect();
    // The time first, so that the oldest proof comes first.
    let path = folder.join(format!("{now_ms:013}-{answer}.json"));
    let mut text = serde_json::to_vec(proof).map_err(io::Error::other)?;
    text.push(b'\n');
    write_private(&path, &text)?;
    let kept = list(home)?;
    for old in kept.iter().take(kept.len().saturating_sub(MAX_PROOFS)) {
        fs::remove_file(old)?;
    }
    Ok(())
}

/// As [`Client::proofs`](crate::Client::proofs). Blocking.
pub(crate) fn proofs(core: &Core) -> Result<Vec<PathBuf>, ClientError> {
    let Some(home) = &core.config.home else { return Ok(Vec::new()) };
    list(home).map_err(|source| file_error("list", home, source))
}

/// The proofs of a home, oldest first.
fn list(home: &Path) -> io::Result<Vec<PathBuf>> {
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
