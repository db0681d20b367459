//! Walrus publishers and aggregators as a [`BlobStore`], trusting none of them.
//!
//! Every blob ID is computed here too: a publisher that names another one is found out, and what an aggregator sends
//! is checked before anybody sees it, unless the caller asks for it unchecked. Several of each can be configured;
//! they are asked in the order of their health, a further aggregator beside a slow one, and the first right answer
//! counts.
//!
//! What is repeated and what not is Walrus's rule: a read that failed on the other side is repeated after a pause, a
//! refusal never, a 404 only for seconds and only for what was just stored (every other aggregator is asked once,
//! since one lone 404 says little). A PUT is sent once. If it may have arrived, it is looked for before anything
//! else is done, because a repeated PUT buys a second object. All of it happens within one deadline.
//!
//! No redirect is followed, and never more of an answer taken into memory than was allowed. Nothing here runs
//! outside the caller's future but the computation of blob IDs, on blocking threads.
//!
//! Code map: `retry` decides what to do next, `answer` what an answer means, `health` in which order sources are
//! asked, all without I/O; `read`, `fetch`, `probe` and `write` carry it out; `reads`, `writes`, `quilts` and
//! `heads` are the calls.

mod answer;
mod config;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod heads;
mod health;
mod metrics;
mod object;
mod options;
mod payload;
mod probe;
mod quilts;
mod read;
mod reads;
mod recent;
mod retry;
mod sources;
mod times;
mod verify;
mod write;
mod writes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::{BlobStore, PutOptions, PutOutcome, StoreError, StoreFuture, StoreTime},
};
use reqwest::{Client, Url};

use crate::ShardCount;
use config::Settings;
pub use config::{Hedge, HttpStoreBuilder, HttpStoreConfigError};
use metrics::Metrics;
pub use metrics::{Ended, HttpStoreMetrics, Operation, OperationCount, SourceSnapshot};
pub use object::{ObjectId, ParseObjectIdError};
pub use options::{
    ByteRange, Consistency, Digest, ObjectOwner, Phase, Progress, ProgressFn, RangeRoute, ReadOptions,
    Sha256Digest, Stored, StoredHow, Verification, WriteOptions,
};
pub use payload::PutBody;
pub use quilts::{QuiltPatchInfo, ReadPatch, StoredPatch, StoredQuilt};
pub use reads::{BlobStat, ConcatId, ObjectBlob};
use recent::Recent;
use sources::Sources;
pub use times::http_date;

/// Publishers and aggregators (often one daemon), spoken to over HTTP. Cloning shares connections, health and
/// counters.
#[derive(Debug, Clone)]
pub struct HttpStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    publishers: Sources,
    aggregators: Sources,
    heads: Option<Url>,
    settings: Settings,
    recent: Mutex<Recent>,
    metrics: Metrics,
}

impl Inner {
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpStore {
    /// Starts from the base URLs of publisher and aggregator, and the network's shard count, without which
    /// no returned ID can be checked. More of both can be added.
    #[must_use]
    pub fn builder(publisher: &str, aggregator: &str, shards: ShardCount) -> HttpStoreBuilder {
        HttpStoreBuilder::new(&[publisher], &[aggregator], shards)
    }

    /// As [`Self::builder`], from lists, the preferred ones first. Without a publisher nothing can be stored.
    #[must_use]
    pub fn endpoints(publishers: &[&str], aggregators: &[&str], shards: ShardCount) -> HttpStoreBuilder {
        HttpStoreBuilder::new(publishers, aggregators, shards)
    }

    fn new(
        client: Client,
        publishers: Sources,
        aggregators: Sources,
        heads: Option<Url>,
        settings: Settings,
    ) -> Self {
        let recent = Mutex::new(Recent::new(settings.recently_stored_window));
        let metrics = Metrics::default();
        Self { inner: Arc::new(Inner { client, publishers, aggregators, heads, settings, recent, metrics }) }
    }

    /// The shard count that IDs are computed for.
    #[must_use]
    pub fn shards(&self) -> ShardCount {
        self.inner.settings.shards
    }

    /// The counters, and how each source does. Cheap.
    #[must_use]
    pub fn metrics(&self) -> HttpStoreMetrics {
        let inner = &self.inner;
        inner.metrics.snapshot(inner.publishers.snapshot(), inner.aggregators.snapshot())
    }

    /// As [`BlobStore::put`], for a caller that has computed the ID already.
    ///
    /// # Errors
    /// As [`Self::store`]; in particular [`StoreError::WrongContent`] when the store names another ID.
    pub async fn put_with_id(
        &self,
        bytes: Vec<u8>,
        options: PutOptions,
        id: BlobId,
    ) -> Result<PutOutcome, StoreError> {
        self.store_with_id(bytes, id, &options.into()).await.map(outcome)
    }

    /// As [`BlobStore::get`], and checks that the bytes are those of the ID (0.1 s of CPU and more at a
    /// thousand shards, on a blocking thread).
    ///
    /// # Errors
    /// As [`Self::read`]; in particular [`StoreError::WrongContent`] when the bytes have another ID.
    pub async fn get_verified(&self, id: BlobId, limit: usize) -> Result<Vec<u8>, StoreError> {
        self.read(id, &ReadOptions::new(limit as u64)).await
    }

    async fn get_with(
        &self,
        id: BlobId,
        limit: usize,
        verification: Verification,
    ) -> Result<Vec<u8>, StoreError> {
        self.read(id, &ReadOptions::new(limit as u64).verify(verification)).await
    }
}

fn outcome(stored: Stored) -> PutOutcome {
    PutOutcome {
        blob_id: stored.blob_id,
        newly_created: stored.how == StoredHow::Created,
        end_epoch: stored.end_epoch,
    }
}

impl BlobStore for HttpStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move { self.store(bytes, &options.into()).await.map(outcome) })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(self.get_with(id, limit, Verification::Off))
    }

    fn get_checked<'a>(&'a self, id: BlobId, limit: usize, digest: BlobDigest) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(self.get_with(id, limit, Verification::Digest(Digest::Blake3(digest))))
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            match self.stat(id, &ReadOptions::new(0)).await {
                Ok(_) => Ok(true),
                Err(StoreError::NotFound) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn note_stored(&self, id: BlobId) {
        self.inner.recent().stored(id, tokio::time::Instant::now());
    }

    fn times<'a>(&'a self) -> StoreFuture<'a, Vec<StoreTime>> {
        Box::pin(self.ask_times())
    }
}

/// Joins a relative path of this crate's own making to a checked base URL.
fn join(base: &Url, path: &str) -> Result<Url, StoreError> {
    base.join(path).map_err(|error| StoreError::Refused { reason: format!("the store's URL: {error}") })
}
