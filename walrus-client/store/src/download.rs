//! Reads a blob chunk by chunk, and verifies each chunk before it passes any byte on.

use std::{io, sync::Arc};

use axum::body::Body;
use baton_proto::ids::BlobId;
use bytes::Bytes;
use futures::stream;

use super::{
    EmbeddedStore, blocking,
    disk::{BlobFile, CHUNK_BYTES},
    error::OperationError,
};

/// A stored blob with verified hashes.
#[derive(Clone)]
pub(super) struct OpenBlob {
    id: BlobId,
    file: Arc<BlobFile>,
    /// All its verified bytes, if at most a chunk.
    small: Option<Bytes>,
}

impl EmbeddedStore {
    /// Opens a blob; `None` when it is absent, expired or visibly corrupt without reading on.
    pub(super) async fn open_blob(&self, id: BlobId) -> Result<Option<OpenBlob>, OperationError> {
        let inner = self.inner.clone();
        blocking(move || {
            let Some(file) = inner.disk.open_blob(id)? else { return Ok(None) };
            let small = match file.chunks() {
                0 => Some(Bytes::new()),
                1 => match file.chunk(0)? {
                    None => {
                        warn(id);
                        return Ok(None);
                    }
                    small => small,
                },
                _ => None,
            };
            Ok(Some(OpenBlob { id, file: Arc::new(file), small }))
        })
        .await
    }
}

impl OpenBlob {
    /// Bytes of the blob.
    pub(super) fn length(&self) -> u64 {
        self.file.length
    }

    /// A body of `length` bytes from `first` on. `None` when its first chunk is corrupt. A later corrupt
    /// chunk breaks the body, and no byte of that chunk is sent.
    pub(super) async fn body(&self, first: u64, length: u64) -> Result<Option<Body>, OperationError> {
        debug_assert!(first + length <= self.length());
        if let Some(small) = &self.small {
            return Ok(Some(slice(small, first, length).into()));
        }
        let (number, offset) = (first / CHUNK_BYTES as u64, first % CHUNK_BYTES as u64);
        let Some(begin) = self.chunk(number).await? else { return Ok(None) };
        let begin = slice(&begin, offset, length.min(begin.len() as u64 - offset));
        if begin.len() as u64 == length {
            return Ok(Some(begin.into()));
        }
        let (blob, left) = (self.clone(), length - begin.len() as u64);
        let pieces =
            stream::unfold((blob, number, left, Some(begin)), async |(blob, number, left, begin)| {
                if let Some(begin) = begin {
                    return Some((Ok(begin), (blob, number + 1, left, None)));
                }
                if left == 0 {
                    return None;
                }
                match blob.chunk(number).await {
                    Ok(Some(chunk)) => {
                        let piece = slice(&chunk, 0, left.min(chunk.len() as u64));
                        let left = left - piece.len() as u64;
                        Some((Ok(piece), (blob, number + 1, left, None)))
                    }
                    Ok(None) => {
                        Some((Err(io::Error::other("the stored blob is corrupt")), (blob, number, 0, None)))
                    }
                    Err(error) => Some((Err(io::Error::other(error)), (blob, number, 0, None))),
                }
            });
        Ok(Some(Body::from_stream(pieces)))
    }

    /// The whole blob in memory, or `None` when it is corrupt.
    pub(super) async fn bytes(&self) -> Result<Option<Bytes>, OperationError> {
        if let Some(small) = &self.small {
            return Ok(Some(small.clone()));
        }
        let blob = self.clone();
        blocking(move || {
            let mut bytes = Vec::with_capacity(usize::try_from(blob.length()).unwrap_or(0));
            for number in 0..blob.file.chunks() {
                match blob.file.chunk(number)? {
                    Some(chunk) => bytes.extend_from_slice(&chunk),
                    None => {
                        warn(blob.id);
                        return Ok(None);
                    }
                }
            }
            Ok(Some(bytes.into()))
        })
        .await
    }

    async fn chunk(&self, number: u64) -> Result<Option<Bytes>, OperationError> {
        let (id, file) = (self.id, self.file.clone());
        let chunk = blocking(move || file.chunk(number)).await?;
        if chunk.is_none() {
            warn(id);
        }
        Ok(chunk)
    }
}

/// A part of bytes in memory, which must be long enough.
fn slice(bytes: &Bytes, first: u64, length: u64) -> Bytes {
    let place = |number| usize::try_from(number).expect("within bytes in memory");
    bytes.slice(place(first)..place(first + length))
}

fn warn(id: BlobId) {
    tracing::warn!(blob = %id, "a damaged blob is not served; store it again");
}
