//! Checks of aggregators' content.
//!
//! Digests are computed as bytes arrive. A blob ID needs all bytes, and is computed on a blocking thread.

use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::StoreError,
};
use bytes::Bytes;

use super::options::Verification;
use crate::{BlobIdError, ShardCount, blob_id};

/// The condition on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentCheck {
    /// Anything.
    Off,
    /// This many bytes.
    Length(u64),
    /// Bytes with this digest.
    Digest(BlobDigest),
    /// Bytes with this blob ID.
    BlobId(BlobId),
}

impl ContentCheck {
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
            Self::Digest(expected) => Running::Digest { expected, hasher: Box::default() },
        }
    }
}

/// A check under way.
pub(super) enum Running {
    Nothing,
    Length { expected: u64, seen: u64 },
    Digest { expected: BlobDigest, hasher: Box<blake3::Hasher> },
}

impl Running {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Length { seen, .. } => *seen += bytes.len() as u64,
            Self::Digest { hasher, .. } => {
                hasher.update(bytes);
            }
        }
    }

    /// Whether the bytes are right, as far as an incremental check can tell.
    pub(super) fn matches(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Length { expected, seen } => expected == seen,
            Self::Digest { expected, hasher } => hasher.finalize() == expected.0,
        }
    }
}

/// Computes the ID off the reactor. If the caller is dropped, a started computation runs to its end unused,
/// for at most a second per 10 MiB.
pub(super) async fn compute_id(bytes: Bytes, shards: ShardCount) -> Result<BlobId, StoreError> {
    let id = off_reactor(move || blob_id(&bytes, shards)).await?;
    id.map_err(|BlobIdError { length, limit, .. }| StoreError::TooLarge { length, limit })
}

/// Runs work on a thread for blocking work.
pub(super) async fn off_reactor<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let stopped = match tokio::task::spawn_blocking(work).await {
        Ok(done) => return Ok(done),
        Err(stopped) => stopped,
    };
    match stopped.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => {
            let reason = "the runtime is shutting down".to_owned();
            Err(StoreError::Unavailable { reason, retry_after: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_and_lengths_are_checked_in_pieces() {
        let digest = BlobDigest(blake3::hash(b"sealed bytes").into());
        for check in [ContentCheck::Off, ContentCheck::Length(12), ContentCheck::Digest(digest)] {
            let mut running = check.begin();
            running.update(b"sealed ");
            running.update(b"bytes");
            assert!(running.matches(), "{check:?}");
            let mut other = check.begin();
            other.update(b"sealed byte");
            assert_eq!(other.matches(), check == ContentCheck::Off, "{check:?}");
        }
    }
}
