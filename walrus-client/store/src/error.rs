//! The reasons why an operation of the store fails.

use std::io;

use baton_proto::store::StoreError;
use baton_walrus_client::{BlobIdError, BlobSourceError};

use super::config::{MAX_BLOBS, MAX_OBJECTS, MAX_OBJECTS_PER_BLOB};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    #[error(transparent)]
    Id(#[from] BlobIdError),
    #[error("the storage quota of {quota} bytes is exhausted")]
    Full { quota: u64 },
    #[error("the store lists {MAX_BLOBS} blobs or {MAX_OBJECTS} objects already")]
    BlobsFull,
    #[error("a blob has {MAX_OBJECTS_PER_BLOB} objects already")]
    ObjectsFull,
    #[error("the head index is full")]
    HeadsFull,
    #[error("a head record with this or a higher sequence number is stored")]
    Superseded,
    #[error("the head record is not valid: {0}")]
    InvalidHead(String),
    #[error("the head record has expired")]
    ExpiredHead,
    #[error("the token was used before")]
    TokenUsed,
    #[error("too many tokens that have not expired are remembered")]
    TokensFull,
    #[error("the store's disk has no room: {0}; free some, and the store goes on by itself")]
    NoRoom(io::Error),
    #[error("the store's files failed: {0}")]
    File(io::Error),
}

/// Whether an error means a full disk, which recovers by itself once there is room.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge)
}

impl From<io::Error> for OperationError {
    fn from(error: io::Error) -> Self {
        if is_no_room(&error) { Self::NoRoom(error) } else { Self::File(error) }
    }
}

impl From<BlobSourceError> for OperationError {
    fn from(error: BlobSourceError) -> Self {
        match error {
            BlobSourceError::TooLarge(error) => error.into(),
            BlobSourceError::Read(error) => error.into(),
        }
    }
}

impl OperationError {
    /// The error of a read, which is without an outcome to doubt.
    pub(crate) fn of_read(self) -> StoreError {
        StoreError::Unavailable { reason: self.to_string(), retry_after: None }
    }
}

/// The error of a write.
impl From<OperationError> for StoreError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Id(BlobIdError { length, limit, .. }) => Self::TooLarge { length, limit },
            OperationError::Superseded => Self::HeadSuperseded,
            OperationError::InvalidHead(_) | OperationError::ExpiredHead => {
                Self::Refused { reason: error.to_string() }
            }
            // The written bytes may be in the system's buffers and reach the disk later.
            OperationError::File(_) => Self::OutcomeUnknown { reason: error.to_string() },
            error => error.of_read(),
        }
    }
}
