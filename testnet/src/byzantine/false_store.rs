//! A store that calls blobs stored without storing them, as a node does that saves the price.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use baton_proto::{
    ids::BlobId,
    store::{BlobStore, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use baton_walrus_client::{HttpStore, ShardCount, blob_id};

/// The end epoch that it names.
const CLAIMED_EPOCH: u64 = 1000;

/// The store of a byzantine node's honest half.
pub(super) struct FalseStore {
    store: Arc<HttpStore>,
    shards: ShardCount,
    /// Whether a PUT is answered and not made.
    claims: Arc<AtomicBool>,
}

impl FalseStore {
    pub(super) fn new(store: Arc<HttpStore>, shards: ShardCount, claims: Arc<AtomicBool>) -> Self {
        Self { store, shards, claims }
    }
}

impl BlobStore for FalseStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        if !self.claims.load(Ordering::Relaxed) {
            return self.store.put(bytes, options);
        }
        let blob_id = blob_id(&bytes, self.shards).map_err(|_| StoreError::WrongContent);
        Box::pin(async move {
            Ok(PutOutcome { blob_id: blob_id?, newly_created: true, end_epoch: Some(CLAIMED_EPOCH) })
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        self.store.get(id, limit)
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        self.store.exists(id)
    }
}
