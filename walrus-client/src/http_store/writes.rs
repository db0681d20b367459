//! The calls that store blobs.

use baton_proto::{ids::BlobId, store::StoreError};

use super::{
    HttpStore, PutBody, StoredBlob, WriteOptions,
    metrics::Operation,
    payload::Payload,
    reads::refused,
    verify::{Input, compute_id},
    write::{OwnId, PutJob},
};
use crate::encoded_length;

impl HttpStore {
    /// Stores a blob from memory or a file. Compares the publisher's ID with the ID that the client computes.
    ///
    /// The blob is sent once, without a search before. It is sent to the next publisher, or again later, only
    /// when it was certainly not stored. If it may have arrived, all aggregators are searched. It is sent
    /// once more only if all reachable ones lack it at the end of the search time, or if a second PUT at the
    /// same publisher buys nothing.
    ///
    /// Cancel safe: nothing stays half done here. A blob dropped after it was sent may have been stored.
    ///
    /// # Errors
    /// - [`StoreError::OutcomeUnknown`] when it may be stored: search for it, or ask later.
    /// - [`StoreError::WrongContent`] when the publisher names another ID and the computed ID is nowhere.
    /// - [`StoreError::TooLarge`], [`StoreError::Refused`] with the publisher's reason, and
    ///   [`StoreError::Unavailable`]: nothing was stored.
    pub async fn store(
        &self,
        body: impl Into<PutBody>,
        options: &WriteOptions,
    ) -> Result<StoredBlob, StoreError> {
        self.store_body(body.into(), None, options).await
    }

    /// As [`Self::store`], for a caller that already has the ID.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub async fn store_with_id(
        &self,
        body: impl Into<PutBody>,
        id: BlobId,
        options: &WriteOptions,
    ) -> Result<StoredBlob, StoreError> {
        self.store_body(body.into(), Some(id), options).await
    }

    /// The ID of a blob, computed here on a blocking thread. Sends nothing, and never holds a whole file in
    /// memory.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a blob above the encoding's limit, [`StoreError::Refused`] for an
    /// unreadable file.
    pub async fn id_of(&self, body: &PutBody) -> Result<BlobId, StoreError> {
        let input = match body {
            PutBody::Bytes(bytes) => Input::Memory(bytes.clone()),
            PutBody::File(path) => Input::File(path.clone()),
        };
        Ok(compute_id(input, self.shards()).await?)
    }

    async fn store_body(
        &self,
        body: PutBody,
        id: Option<BlobId>,
        options: &WriteOptions,
    ) -> Result<StoredBlob, StoreError> {
        let (payload, input) = match body {
            PutBody::Bytes(bytes) => (Payload::Bytes(bytes.clone()), Input::Memory(bytes)),
            PutBody::File(path) => {
                let found = tokio::fs::metadata(&path).await;
                let found = found.map_err(|error| refused(format!("cannot read the file: {error}")))?;
                if !found.is_file() {
                    return Err(refused("cannot read the file: it is none".to_owned()));
                }
                (Payload::File { path: path.clone(), length: found.len() }, Input::File(path))
            }
        };
        let length = payload.length();
        self.check_put(length)?;
        let id = id.map_or(OwnId::Of(input), OwnId::Known);
        let job = PutJob {
            operation: Operation::Put,
            path: "v1/blobs",
            payload,
            id,
            length,
            patches: None,
            options,
        };
        self.inner.put(&job).await
    }

    /// Refuses a blob that exceeds the settings or the encoding, before anything is sent.
    fn check_put(&self, length: u64) -> Result<(), StoreError> {
        let limit = self.shards().max_blob_length().min(self.inner.settings.max_put_bytes);
        if length > limit || encoded_length(length, self.shards()).is_err() {
            return Err(StoreError::TooLarge { length, limit });
        }
        Ok(())
    }
}
