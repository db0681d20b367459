//! The calls for quilts: store many small blobs as one, and read one of them.
//!
//! As cancel safe as the calls for blobs.

use std::collections::BTreeMap;

use baton_proto::{
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use bytes::Bytes;

use super::{
    HttpStore, StoredBlob, Verification,
    payload::{MultipartForm, Payload},
    reads::refused,
    verify::off_reactor,
    write::{OwnId, PutJob},
};
use crate::{
    ShardCount, blob_id,
    quilt::{self, QuiltError, QuiltPatch, QuiltPatchId},
    wire::QUILT_METADATA_FIELD,
};

/// Most bytes of a quilt's patches: the limit of Walrus's public publishers.
const MAX_QUILT_BYTES: u64 = 102_400 * 1024;
/// Largest quilt built in memory, in bytes. One large patch among many small ones makes a quilt many times as
/// large as its patches. The publisher would have to hold and encode that too.
const MAX_LAID_OUT_BYTES: u64 = 1 << 30;

/// A stored quilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredQuilt {
    /// The quilt's blob; its ID is the quilt's.
    pub stored: StoredBlob,
    /// The IDs of its patches by their names, computed by this client. The publisher named the same ones, unless its
    /// answer was lost.
    pub patches: BTreeMap<String, QuiltPatchId>,
}

/// The expected result for some patches, computed by this client.
struct ExpectedQuilt {
    quilt: BlobId,
    length: u64,
    patches: BTreeMap<String, QuiltPatchId>,
}

impl ExpectedQuilt {
    fn of<'a>(patches: &'a [(String, Bytes)], shards: ShardCount) -> Result<Self, StoreError> {
        let borrowed =
            |(identifier, data): &'a (String, Bytes)| QuiltPatch { identifier, tags: BTreeMap::new(), data };
        let patches: Vec<QuiltPatch<'a>> = patches.iter().map(borrowed).collect();
        let length = quilt::encoded_length(&patches, shards).map_err(|error| no_quilt(&error))?;
        if length > MAX_LAID_OUT_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_LAID_OUT_BYTES });
        }
        let laid_out = quilt::encode(&patches, shards).map_err(|error| no_quilt(&error))?;
        let quilt = blob_id(&laid_out.bytes, shards).map_err(|error| refused(error.to_string()))?;
        let entries = laid_out.index.entries.into_iter();
        Ok(Self {
            quilt,
            length,
            patches: entries.map(|entry| (entry.identifier.clone(), entry.id(quilt))).collect(),
        })
    }
}

impl HttpStore {
    /// Stores patches, by their names, as one quilt. The client also builds the quilt itself, in memory. It compares the
    /// IDs of quilt and patches with the publisher's. Otherwise as [`HttpStore::store`].
    ///
    /// # Errors
    /// As [`HttpStore::store`]. [`StoreError::Refused`] also when no quilt can hold the patches, and for
    /// identifiers that HTTP cannot carry. Those are `_metadata`, and any with a backslash before a quote
    /// or at the end.
    pub async fn store_quilt(
        &self,
        patches: &[(String, Vec<u8>)],
        options: &PutOptions,
    ) -> Result<StoredQuilt, StoreError> {
        let length: u64 = patches.iter().map(|(_, data)| data.len() as u64).sum();
        if length > MAX_QUILT_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_QUILT_BYTES });
        }
        // Shared by the request's body and the computation.
        let own = |(name, data): &(String, Vec<u8>)| (name.clone(), Bytes::copy_from_slice(data));
        let patches: Vec<(String, Bytes)> = patches.iter().map(own).collect();
        let is_sendable = patches.iter().all(|(name, _)| name != QUILT_METADATA_FIELD);
        let form = MultipartForm::new(patches.iter().cloned()).filter(|_| is_sendable).ok_or_else(|| {
            refused("an identifier cannot be sent over HTTP; choose another one".to_owned())
        })?;
        self.inner.ask_shards_once().await;
        let shards = self.shards();
        let expected = off_reactor(move || ExpectedQuilt::of(&patches, shards)).await??;
        let ExpectedQuilt { quilt, length, patches } = expected;
        let job = PutJob {
            path: "v1/quilts",
            payload: Payload::Form(form),
            id: OwnId::Known(quilt),
            length,
            patches: Some(patches.iter().map(|(name, id)| (name.clone(), id.to_string())).collect()),
            options,
        };
        let stored = self.inner.put(&job).await?;
        Ok(StoredQuilt { stored, patches })
    }

    /// Reads one patch, of a quilt of at most `limit` bytes. The client reads the whole quilt, checks its ID and extracts
    /// the patch, since nothing smaller can be verified.
    ///
    /// # Errors
    /// As [`HttpStore::read`]; [`StoreError::NotFound`] also when the quilt lacks the patch.
    pub async fn read_patch(&self, patch: QuiltPatchId, limit: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.read(patch.quilt, limit, Verification::BlobId).await?;
        match quilt::patch_by_range(&bytes, self.shards(), patch.start, patch.end) {
            Ok((_, data)) => Ok(data),
            Err(QuiltError::UnknownPatch) => Err(StoreError::NotFound),
            Err(error) => Err(no_quilt(&error)),
        }
    }
}

fn no_quilt(error: &QuiltError) -> StoreError {
    refused(format!("no quilt: {error}"))
}
