//! Receives the bytes of a blob: chunk by chunk into a file, with memory for one chunk.

use std::{io, sync::Arc};

use baton_proto::ids::BlobId;
use baton_walrus_client::{BlobSource, blob_id, blob_id_of};
use bytes::Bytes;

use super::{
    EmbeddedInner, EmbeddedStore, PutPermits, WriteError, acquire, blocking,
    disk::{CHUNK_BYTES, PurchaseOutcome, Term, Writer},
};

/// An incomplete blob. Dropping it before [`Self::store`] removes all of it.
pub(super) struct Upload {
    store: EmbeddedStore,
    /// At most one chunk. The whole blob, while there is no file.
    pending: Vec<u8>,
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
    pub(super) async fn push(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            // Only now, so that a blob of exactly one chunk never gets here.
            if self.pending.len() == CHUNK_BYTES {
                self.spill().await?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Writes the pending bytes to the file.
    async fn spill(&mut self) -> Result<(), WriteError> {
        let (writer, mut chunk) = (self.writer.take(), std::mem::take(&mut self.pending));
        let inner = self.store.inner.clone();
        let (writer, chunk) = blocking(move || {
            let mut writer = writer.map_or_else(|| inner.disk.create_file(), Ok)?;
            writer.write(&chunk).map_err(super::DiskError::from)?;
            chunk.clear();
            Ok::<_, WriteError>((writer, chunk))
        })
        .await?;
        (self.writer, self.pending) = (Some(writer), chunk);
        Ok(())
    }

    /// Computes the ID and stores the blob. The work holds `permits` until it ends, even if the caller is
    /// dropped.
    pub(super) async fn store(
        mut self,
        term: Term,
        permits: Option<PutPermits>,
    ) -> Result<(BlobId, PurchaseOutcome), WriteError> {
        if self.writer.is_none() {
            return self.store.store_bytes(self.pending.into(), term, permits).await;
        }
        self.spill().await?;
        let Self { store, writer: Some(writer), .. } = self else { unreachable!("spilling makes the file") };
        let computing = acquire(&store.inner.id_computations).await;
        let inner = store.inner.clone();
        blocking(move || {
            let id = blob_id_of(&UploadSource(&writer), inner.config.shards)?;
            drop(computing);
            let stored = inner.put(id, writer, term)?;
            drop(permits);
            Ok((id, stored))
        })
        .await
    }
}

impl EmbeddedStore {
    /// Stores a blob in memory: computes its ID before anything is written.
    pub(super) async fn store_bytes(
        &self,
        bytes: Bytes,
        term: Term,
        permits: Option<PutPermits>,
    ) -> Result<(BlobId, PurchaseOutcome), WriteError> {
        let permits = Arc::new(permits);
        let computing = acquire(&self.inner.id_computations).await;
        let (inner, held) = (self.inner.clone(), permits.clone());
        let (id, bytes) = blocking(move || {
            let id = blob_id(&bytes, inner.config.shards)?;
            drop((computing, held));
            Ok::<_, WriteError>((id, bytes))
        })
        .await?;
        let inner = self.inner.clone();
        blocking(move || {
            let stored = inner.put(id, inner.written(&bytes)?, term)?;
            drop(permits);
            Ok((id, stored))
        })
        .await
    }
}

impl EmbeddedInner {
    /// A file with these bytes. Blocking.
    pub(super) fn written(&self, bytes: &[u8]) -> Result<Writer, super::DiskError> {
        let mut writer = self.disk.create_file()?;
        bytes.chunks(CHUNK_BYTES).try_for_each(|chunk| writer.write(chunk))?;
        Ok(writer)
    }

    /// Stores a written file, and notes it. Blocking.
    fn put(&self, id: BlobId, writer: Writer, term: Term) -> Result<PurchaseOutcome, super::DiskError> {
        let stored = self.disk.put(id, writer, term)?;
        self.count_put(id, stored);
        Ok(stored)
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
