//! Item contents on Walrus. Each content has its own random key and a verified ID; quilts batch them.

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc};

use baton_proto::{
    codec,
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use baton_walrus_client::{
    HttpStore,
    blob_id::ShardCount,
    http_store::Verification,
    quilt::{QuiltIndex, QuiltPatchId, max_patches},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    events::{Pointer, StoredKey},
    ids::{ItemId, OwnerId},
    model::{Author, Kind, Layer, Text},
};

/// Most contents of one quilt, if the shards allow it (666 at 1,000 shards). 100 facts are enough to share
/// its price.
pub const MAX_BATCH: usize = 100;
/// Largest quilt that is read: a batch of the largest facts with their padding, and room to spare.
const MAX_QUILT_BYTES: u64 = 8 * 1024 * 1024;
/// Smallest padded size of a content: most facts look alike.
const SMALLEST_BUCKET: usize = 256;

/// A boxed operation, so that the trait can be used as `dyn`.
pub type ContentFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The store of sealed contents: Walrus.
pub trait ContentStore: Send + Sync {
    /// Stores contents together. Returns the quilt and each content's columns, in the order of the contents.
    /// The client computes the IDs itself.
    fn put<'a>(&'a self, contents: &'a [(String, Vec<u8>)]) -> ContentFuture<'a, Vec<QuiltPatchId>>;
    /// Most contents of one [`ContentStore::put`], at least 1.
    fn batch_limit(&self) -> usize {
        MAX_BATCH
    }
    /// Reads all contents of a quilt, none of bytes that are no quilt. Each has a seal of its own. `verified`
    /// compares the bytes with the quilt's ID too, which takes 0.1 s and more, and asks another aggregator if
    /// they differ.
    fn get(&self, quilt: BlobId, verified: bool) -> ContentFuture<'_, HashMap<QuiltPatchId, Vec<u8>>>;
}

/// Contents on a Walrus-compatible store over HTTP.
pub struct WalrusContents {
    store: Arc<HttpStore>,
    epochs: u32,
}

impl WalrusContents {
    /// A store that buys this many epochs for each content.
    #[must_use]
    pub fn new(store: Arc<HttpStore>, epochs: u32) -> Self {
        Self { store, epochs }
    }
}

/// Most contents of one quilt on a store with this many shards.
fn batch_limit(shards: ShardCount) -> usize {
    max_patches(shards).clamp(1, MAX_BATCH)
}

impl ContentStore for WalrusContents {
    fn put<'a>(&'a self, contents: &'a [(String, Vec<u8>)]) -> ContentFuture<'a, Vec<QuiltPatchId>> {
        Box::pin(async move {
            let options = PutOptions { epochs: self.epochs, ..PutOptions::default() };
            let stored = self.store.store_quilt(contents, &options).await?;
            let ids = contents.iter().map(|(name, _)| stored.patches.get(name).copied());
            ids.collect::<Option<_>>().ok_or(StoreError::WrongContent)
        })
    }

    fn batch_limit(&self) -> usize {
        batch_limit(self.store.shards())
    }

    fn get(&self, quilt: BlobId, verified: bool) -> ContentFuture<'_, HashMap<QuiltPatchId, Vec<u8>>> {
        Box::pin(async move {
            let verification = if verified { Verification::BlobId } else { Verification::Off };
            let bytes = self.store.read(quilt, MAX_QUILT_BYTES, verification).await?;
            let shards = self.store.shards();
            let Ok(index) = QuiltIndex::decode(&bytes, shards) else { return Ok(HashMap::new()) };
            let entries = index.entries.iter();
            Ok(entries
                .filter_map(|entry| Some((entry.id(quilt), index.patch(&bytes, entry, shards).ok()?)))
                .collect())
        })
    }
}

impl From<QuiltPatchId> for Pointer {
    fn from(id: QuiltPatchId) -> Self {
        Self { blob: id.quilt.0, start: id.start, end: id.end }
    }
}

impl From<&Pointer> for QuiltPatchId {
    fn from(pointer: &Pointer) -> Self {
        Self { quilt: BlobId(pointer.blob), start: pointer.start, end: pointer.end }
    }
}

/// The plain text of a content; with its key and nothing else, the fact can be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) kind: Kind,
    pub(crate) layer: Layer,
    pub(crate) author: Author,
    pub(crate) time_ms: u64,
    pub(crate) text: Text,
}

fn associated(owner: OwnerId, item: ItemId) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..32].copy_from_slice(&owner.0);
    bytes[32..].copy_from_slice(&item.0);
    bytes
}

/// Pads and seals a content: `length (u32, little endian) ‖ content ‖ zeros`, up to a power of two. The seal
/// uses the item's own key and binds owner and item.
pub(crate) fn seal(owner: OwnerId, item: ItemId, key: &StoredKey, content: &Content) -> Vec<u8> {
    let encoded = Zeroizing::new(codec::encode(content));
    let length = u32::try_from(encoded.len()).expect("texts are limited to 512 KiB");
    let mut padded = Zeroizing::new(Vec::with_capacity((encoded.len() + 4).next_power_of_two()));
    padded.extend_from_slice(&length.to_le_bytes());
    padded.extend_from_slice(&encoded);
    let bucket = padded.len().next_power_of_two().max(SMALLEST_BUCKET);
    padded.resize(bucket, 0);
    key.key().seal(&associated(owner, item), &padded)
}

/// Opens the output of [`seal`]; `None` when key, owner, item or bytes do not belong together.
pub(crate) fn open(owner: OwnerId, item: ItemId, key: &StoredKey, sealed: &[u8]) -> Option<Content> {
    let padded = key.key().open(&associated(owner, item), sealed).ok()?;
    let (length, rest) = padded.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let encoded = rest.get(..length)?;
    codec::decode(encoded, length).ok()
}

#[cfg(test)]
mod tests {
    use baton_walrus_client::quilt::QuiltPatch;

    use super::*;

    #[test]
    fn a2_a_batch_has_as_many_contents_as_the_shards_have_columns_for() {
        for (shards, limit) in [(7, 4), (10, 6), (100, 66), (1_000, 100)] {
            let shards = ShardCount::new(shards).unwrap();
            assert_eq!(batch_limit(shards), limit);
            let names: Vec<String> = (0..=limit).map(|number| format!("{number:032}")).collect();
            let patch = |name| QuiltPatch {
                identifier: name,
                tags: std::collections::BTreeMap::new(),
                data: &[1; 296],
            };
            let patches: Vec<QuiltPatch<'_>> = names.iter().map(|name| patch(name)).collect();
            assert!(baton_walrus_client::quilt::encode(&patches[..limit], shards).is_ok());
            let one_more = baton_walrus_client::quilt::encode(&patches, shards).is_ok();
            assert_eq!(one_more, limit == MAX_BATCH, "a batch is as large as it can be");
        }
    }

    fn content(text: &str) -> Content {
        Content {
            kind: Kind::Fact,
            layer: Layer::Profile,
            author: Author::User,
            time_ms: 7,
            text: text.into(),
        }
    }

    #[test]
    fn a4_each_content_opens_only_for_its_owner_and_item_and_never_looks_the_same() {
        let (a, b) = (OwnerId([1; 32]), OwnerId([2; 32]));
        let (item, key) = (ItemId([3; 16]), StoredKey::generate());
        let sealed = seal(a, item, &key, &content("allergic to peanuts"));
        assert_eq!(open(a, item, &key, &sealed), Some(content("allergic to peanuts")));
        assert_eq!(open(b, item, &key, &sealed), None);
        assert_eq!(open(a, ItemId([4; 16]), &key, &sealed), None);
        assert_eq!(open(a, item, &StoredKey::generate(), &sealed), None);
        assert_ne!(sealed, seal(a, item, &key, &content("allergic to peanuts")));
        assert_eq!(sealed.len(), seal(a, item, &key, &content("tea")).len(), "most facts have one size");
    }
}
