//! Receives the bytes of a blob: chunk by chunk into a file, with memory for one chunk.

use std::io;

use baton_proto::ids::BlobId;
use baton_walrus_client::{BlobSource, blob_id_of};

use super::{
    EmbeddedInner, EmbeddedStore, PutPermits, acquire, blocking,
    disk::{CHUNK_BYTES, PurchaseOutcome, Term, Writer},
    error::OperationError,
};

/// An incomplete blob. Dropping it before [`Self::store`] removes all of it.
pub(super) struct Upload {
    store: EmbeddedStore,
    /// At most one chunk.
    pending: Vec<u8>,
    /// The file, from the first full chunk on.
    writer: Option<Writer>,
    length: u64,
}

impl Upload {
    /// An upload of `announced` bytes, with memory for them up to a chunk.
    pub(super) fn new(store: EmbeddedStore, announced: u64) -> Self {
        let room = usize::try_from(announced).map_or(CHUNK_BYTES, |announced| announced.min(CHUNK_BYTES));
        Self { store, pending: Vec::with_capacity(room), writer: None, length: 0 }
    }

    /// Bytes received.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Takes the next bytes.
    pub(super) async fn push(&mut self, mut bytes: &[u8]) -> Result<(), OperationError> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.pending.len() == CHUNK_BYTES {
                let (inner, writer) = (self.store.inner.clone(), self.writer.take());
                let mut chunk = std::mem::take(&mut self.pending);
                let written = blocking(move || {
                    let writer = inner.spilled(writer, &chunk)?;
                    chunk.clear();
                    Ok::<_, OperationError>((Some(writer), chunk))
                });
                (self.writer, self.pending) = written.await?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Computes the ID and stores the blob. The work holds `permits` until it ends, even if the caller is
    /// dropped.
    pub(super) async fn store(
        self,
        term: Term,
        permits: Option<PutPermits>,
    ) -> Result<(BlobId, PurchaseOutcome), OperationError> {
        let Self { store, pending, writer, .. } = self;
        let computing = acquire(&store.inner.id_computations).await;
        blocking(move || {
            let inner = &store.inner;
            let writer = inner.spilled(writer, &pending)?;
            let id = blob_id_of(&UploadSource(&writer), inner.config.shards)?;
            drop(computing);
            let stored = inner.disk.put(id, writer, term)?;
            inner.count_put(id, stored);
            drop(permits);
            Ok((id, stored))
        })
        .await
    }
}

impl EmbeddedStore {
    /// Stores a blob in memory.
    pub(super) async fn store_bytes(
        &self,
        bytes: &[u8],
        term: Term,
        permits: Option<PutPermits>,
    ) -> Result<(BlobId, PurchaseOutcome), OperationError> {
        let mut upload = Upload::new(self.clone(), bytes.len() as u64);
        upload.push(bytes).await?;
        upload.store(term, permits).await
    }
}

impl EmbeddedInner {
    /// A file with these further bytes. Blocking.
    pub(super) fn spilled(&self, writer: Option<Writer>, bytes: &[u8]) -> Result<Writer, OperationError> {
        let mut writer = writer.map_or_else(|| self.disk.create_file(), Ok)?;
        bytes.chunks(CHUNK_BYTES).try_for_each(|chunk| writer.write(chunk))?;
        Ok(writer)
    }
}

/// The bytes of an upload so far, for computing its ID.
struct UploadSource<'a>(&'a Writer);

impl BlobSource for UploadSource<'_> {
    fn len(&self) -> u64 {
        self.0.length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }
}
