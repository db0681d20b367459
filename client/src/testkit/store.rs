//! A blob store and head index in memory, with scripted faults.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use baton_proto::{
    SignedObject,
    head::HeadRecord,
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture, StoreTime},
};
use baton_walrus_client::{ShardCount, blob_id};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::Clock;

#[derive(Default)]
struct StoreContents {
    blobs: HashMap<BlobId, Vec<u8>>,
    heads: HashMap<HeadIndexKey, Vec<u8>>,
    puts: usize,
    down: bool,
    silent_about_epochs: bool,
    /// The number of shards that it announces.
    shards: Option<ShardCount>,
    /// Its clock, if it reports the time.
    clock: Option<Clock>,
    /// Errors for the next reads.
    reads: VecDeque<StoreError>,
    /// Errors for the next questions whether a blob exists.
    exists: VecDeque<StoreError>,
}

#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<StoreContents>>, watch::Sender<usize>);

pub fn down() -> StoreError {
    StoreError::Unavailable { reason: "switched off".to_owned(), retry_after: None }
}

impl MemoryStore {
    /// The contents, unless the store is down.
    fn up(&self) -> Result<MutexGuard<'_, StoreContents>, StoreError> {
        let inner = self.0.lock();
        if inner.down { Err(down()) } else { Ok(inner) }
    }

    /// Sets the clock that it reports.
    pub fn set_clock(&self, clock: Clock) {
        self.0.lock().clock = Some(clock);
    }

    /// From now on computes blob IDs for this number of shards, and announces it.
    pub fn set_shards(&self, shards: ShardCount) {
        self.0.lock().shards = Some(shards);
    }

    pub fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// Whether PUT outcomes lack the end epoch, as when the blob of a lost answer was found.
    pub fn set_silent_about_epochs(&self, silent: bool) {
        self.0.lock().silent_about_epochs = silent;
    }

    /// Makes the next reads fail, one error each.
    pub fn fail_reads(&self, errors: impl IntoIterator<Item = StoreError>) {
        self.0.lock().reads.extend(errors);
    }

    /// Makes the next questions whether a blob exists fail, one error each.
    pub fn fail_exists(&self, errors: impl IntoIterator<Item = StoreError>) {
        self.0.lock().exists.extend(errors);
    }

    /// Waits until this many blobs were put.
    pub async fn put_count(&self, count: usize) {
        self.1.subscribe().wait_for(|puts| *puts >= count).await.unwrap();
    }

    pub fn puts(&self) -> usize {
        self.0.lock().puts
    }

    pub fn blobs(&self) -> Vec<(BlobId, Vec<u8>)> {
        self.0.lock().blobs.iter().map(|(id, bytes)| (*id, bytes.clone())).collect()
    }

    pub fn forget_blobs(&self) {
        self.0.lock().blobs.clear();
    }

    /// Restores these blobs, without a PUT.
    pub fn put_again(&self, blobs: Vec<(BlobId, Vec<u8>)>) {
        self.0.lock().blobs.extend(blobs);
    }

    pub fn corrupt_blobs(&self) {
        for bytes in self.0.lock().blobs.values_mut() {
            *bytes.last_mut().unwrap() ^= 1;
        }
    }

    pub fn heads(&self) -> HashMap<HeadIndexKey, Vec<u8>> {
        self.0.lock().heads.clone()
    }

    /// From now on shows these heads, whatever was published.
    pub fn set_heads(&self, heads: HashMap<HeadIndexKey, Vec<u8>>) {
        self.0.lock().heads = heads;
    }
}

impl BlobStore for MemoryStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, _: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move {
            let mut inner = self.up()?;
            let id = blob_id(&bytes, inner.shards.unwrap_or(ShardCount::TESTBED)).unwrap();
            inner.puts += 1;
            self.1.send_replace(inner.puts);
            let newly_created = inner.blobs.insert(id, bytes).is_none();
            let end_epoch = (!inner.silent_about_epochs).then_some(9);
            Ok(PutOutcome { blob_id: id, newly_created, end_epoch })
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let mut inner = self.up()?;
            inner.reads.pop_front().map_or(Ok(()), Err)?;
            let bytes = inner.blobs.get(&id).cloned().ok_or(StoreError::NotFound)?;
            assert!(bytes.len() <= limit);
            Ok(bytes)
        })
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut inner = self.up()?;
            inner.exists.pop_front().map_or(Ok(()), Err)?;
            Ok(inner.blobs.contains_key(&id))
        })
    }

    fn announced_shards<'a>(&'a self, _: Duration) -> StoreFuture<'a, Option<u16>> {
        Box::pin(async move { Ok(self.up()?.shards.map(ShardCount::get)) })
    }

    fn times<'a>(&'a self) -> StoreFuture<'a, Vec<StoreTime>> {
        let clock = self.0.lock().clock.clone();
        let name = "the test's store".to_owned();
        let time = clock.map(|clock| StoreTime { name, unix_ms: clock(), margin_ms: 500 });
        Box::pin(async move { Ok(time.into_iter().collect()) })
    }
}

impl HeadIndex for MemoryStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut inner = self.up()?;
            let offered = SignedObject::<HeadRecord>::verify_encoded(&record).unwrap();
            let key = offered.index_key();
            if let Some(stored) = inner.heads.get(&key) {
                let stored = SignedObject::<HeadRecord>::verify_encoded(stored).unwrap();
                if offered.sequence <= stored.sequence {
                    return Err(StoreError::HeadSuperseded);
                }
            }
            inner.heads.insert(key, record);
            Ok(())
        })
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { Ok(self.up()?.heads.get(&key).cloned()) })
    }
}

/// A node's stores.
#[derive(Clone)]
pub struct Stores {
    pub blobs: Arc<dyn BlobStore>,
    pub heads: Arc<dyn HeadIndex>,
}

impl From<&MemoryStore> for Stores {
    fn from(store: &MemoryStore) -> Self {
        Self { blobs: Arc::new(store.clone()), heads: Arc::new(store.clone()) }
    }
}
