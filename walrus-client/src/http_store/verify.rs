//! Checks of aggregators' content.
//!
//! Digests are computed as bytes arrive. A blob ID needs all bytes, and is computed on a blocking thread.

use std::path::PathBuf;

use baton_proto::{ids::BlobId, store::StoreError};
use bytes::Bytes;
use sha2::Digest as _;

use super::options::{Digest, Verification};
use crate::{BlobIdError, ShardCount, blob_id, blob_id::FileSource, blob_id_of};

/// The condition on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Anything.
    Off,
    /// This many bytes.
    Length(u64),
    /// Bytes with this digest.
    Digest(Digest),
    /// Bytes with this blob ID.
    BlobId(BlobId),
}

impl Check {
    pub(super) fn of(verification: Verification, id: BlobId) -> Self {
        match verification {
            Verification::Digest(digest) => Self::Digest(digest),
            Verification::BlobId => Self::BlobId(id),
            Verification::Off => Self::Off,
        }
    }

    /// The running check, to be fed with the bytes as they arrive.
    pub(super) fn begin(self) -> Running {
        match self {
            Self::Off | Self::BlobId(_) => Running::Nothing,
            Self::Length(expected) => Running::Length { expected, seen: 0 },
            Self::Digest(Digest::Blake3(expected)) => {
                Running::Blake3 { expected: expected.0, hasher: Box::default() }
            }
            Self::Digest(Digest::Sha256(expected)) => {
                Running::Sha256 { expected: expected.0, hasher: Box::default() }
            }
        }
    }
}

/// A check under way.
pub(super) enum Running {
    Nothing,
    Length { expected: u64, seen: u64 },
    Blake3 { expected: [u8; 32], hasher: Box<blake3::Hasher> },
    Sha256 { expected: [u8; 32], hasher: Box<sha2::Sha256> },
}

impl Running {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Length { seen, .. } => *seen += bytes.len() as u64,
            Self::Blake3 { hasher, .. } => {
                hasher.update(bytes);
            }
            Self::Sha256 { hasher, .. } => hasher.update(bytes),
        }
    }

    /// Whether the bytes are right, as far as an incremental check can tell.
    pub(super) fn matches(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Length { expected, seen } => expected == seen,
            Self::Blake3 { expected, hasher } => *hasher.finalize().as_bytes() == expected,
            Self::Sha256 { expected, hasher } => hasher.finalize()[..] == expected,
        }
    }
}

/// The bytes for an ID.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Memory(Bytes),
    File(PathBuf),
}

/// The reason why there is no ID.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdError {
    #[error(transparent)]
    Encoding(#[from] BlobIdError),
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    File(String),
    /// The runtime is shutting down.
    #[error("the runtime is shutting down")]
    Stopping,
}

impl From<IdError> for StoreError {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Encoding(BlobIdError::TooLarge { length, limit, .. }) => {
                Self::TooLarge { length, limit }
            }
            IdError::File(_) => Self::Refused { reason: error.to_string() },
            IdError::Stopping => Self::Unavailable { reason: error.to_string(), retry_after: None },
        }
    }
}

/// Computes the ID off the reactor. If the caller is dropped, a started computation runs to its end unused,
/// for at most a second per 10 MiB.
pub(super) async fn compute_id(input: Input, shards: ShardCount) -> Result<BlobId, IdError> {
    let work = move || match input {
        Input::Memory(bytes) => Ok(blob_id(&bytes, shards)?),
        Input::File(path) => {
            let failed = |error: std::io::Error| IdError::File(error.to_string());
            let file = std::fs::File::open(path).map_err(failed)?;
            let source = FileSource::new(file).map_err(failed)?;
            blob_id_of(&source, shards).map_err(|error| match error {
                crate::BlobSourceError::TooLarge(error) => IdError::Encoding(error),
                other => IdError::File(other.to_string()),
            })
        }
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(stopped) => match stopped.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(IdError::Stopping),
        },
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::BlobDigest;

    use super::*;
    use crate::http_store::options::Sha256Digest;

    #[test]
    fn digests_and_lengths_are_checked_in_pieces() {
        let good = Digest::Blake3(BlobDigest(blake3::hash(b"sealed bytes").into()));
        let sha = Digest::Sha256(Sha256Digest(sha2::Sha256::digest(b"sealed bytes").into()));
        for check in [Check::Off, Check::Length(12), Check::Digest(good), Check::Digest(sha)] {
            let mut running = check.begin();
            running.update(b"sealed ");
            running.update(b"bytes");
            assert!(running.matches(), "{check:?}");
            let mut other = check.begin();
            other.update(b"sealed byte");
            assert_eq!(other.matches(), check == Check::Off, "{check:?}");
        }
    }
}
