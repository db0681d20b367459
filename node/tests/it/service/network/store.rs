//! A blob store and head index in memory, with configurable faults.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use baton_proto::{
    SignedObject,
    head::HeadRecord,
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use baton_walrus_client::{ShardCount, blob_id};

/// Shards of the tests' blob IDs: few, so that an ID costs little.
pub(crate) const SHARDS: u16 = 40;

#[derive(Default)]
pub(crate) struct MemoryStore {
    pub blobs: Mutex<HashMap<BlobId, Vec<u8>>>,
    pub heads: Mutex<HashMap<HeadIndexKey, Vec<u8>>>,
    /// PUTs and GETs fail as unavailable.
    pub down: AtomicBool,
    /// GETs are never answered.
    pub silent: AtomicBool,
    /// PUTs are stored, but their answers are lost.
    pub lose_answers: AtomicBool,
    /// The number of next GETs that return NotFound.
    pub late: AtomicUsize,
    pub puts: AtomicUsize,
    pub gets: AtomicUsize,
}

pub(crate) fn id_of(bytes: &[u8]) -> BlobId {
    blob_id(bytes, ShardCount::new(SHARDS).unwrap()).unwrap()
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { reason: "down for a test".to_owned(), retry_after: None }
}

impl MemoryStore {
    /// Flips a bit of every blob.
    pub(crate) fn corrupt(&self) {
        for blob in self.blobs.lock().unwrap().values_mut() {
            let middle = blob.len() / 2;
            blob[middle] ^= 1;
        }
    }
}

impl BlobStore for MemoryStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, _options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move {
            if self.down.load(SeqCst) {
                return Err(unavailable());
            }
            self.puts.fetch_add(1, SeqCst);
            let blob_id = id_of(&bytes);
            let newly_created = self.blobs.lock().unwrap().insert(blob_id, bytes).is_none();
            if self.lose_answers.load(SeqCst) {
                return Err(StoreError::OutcomeUnknown { reason: "lost for a test".to_owned() });
            }
            Ok(PutOutcome { blob_id, newly_created, end_epoch: Some(7) })
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async move {
            self.gets.fetch_add(1, SeqCst);
            if self.silent.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            if self.down.load(SeqCst) {
                return Err(unavailable());
            }
            if self.late.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(StoreError::NotFound);
            }
            let found = self.blobs.lock().unwrap().get(&id).cloned().ok_or(StoreError::NotFound)?;
            if found.len() > limit {
                return Err(StoreError::TooLarge { length: found.len() as u64, limit: limit as u64 });
            }
            Ok(found)
        })
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            if self.down.load(SeqCst) {
                return Err(unavailable());
            }
            Ok(self.blobs.lock().unwrap().contains_key(&id))
        })
    }
}

impl HeadIndex for MemoryStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = SignedObject::<HeadRecord>::verify_encoded(&record)
                .map_err(|code| StoreError::Refused { reason: code.to_string() })?
                .index_key();
            self.heads.lock().unwrap().insert(key, record);
            Ok(())
        })
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { Ok(self.heads.lock().unwrap().get(&key).cloned()) })
    }
}
