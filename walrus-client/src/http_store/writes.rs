//! The call that stores a blob.

use baton_proto::store::{PutOptions, StoreError};
use bytes::Bytes;

use super::{
    HttpStore, StoredBlob,
    payload::Payload,
    write::{OwnId, PutJob},
};
use crate::encoded_length;

/// Largest blob to send, in bytes: the limit of Walrus's public publishers.
const MAX_PUT_BYTES: u64 = 10_240 * 1024;

impl HttpStore {
    /// Stores a blob. Compares the publisher's ID with the ID that the client computes.
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
        bytes: impl Into<Bytes>,
        options: &PutOptions,
    ) -> Result<StoredBlob, StoreError> {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        self.inner.ask_shards_once().await;
        self.check_put(length)?;
        let (payload, id) = (Payload::Bytes(bytes.clone()), OwnId::Of(bytes));
        self.inner.put(&PutJob { path: "v1/blobs", payload, id, length, patches: None, options }).await
    }

    /// Refuses a blob that no publisher or encoding takes, before anything is sent.
    fn check_put(&self, length: u64) -> Result<(), StoreError> {
        let limit = self.shards().max_blob_length().min(MAX_PUT_BYTES);
        if length > limit || encoded_length(length, self.shards()).is_err() {
            return Err(StoreError::TooLarge { length, limit });
        }
        Ok(())
    }
}
