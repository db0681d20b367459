//! Walrus publishers and aggregators as a [`BlobStore`], without trust in any of them.
//!
//! The client also computes every blob ID itself. So it detects a publisher that names another ID. It checks
//! an aggregator's bytes before it returns them, unless the caller opts out. Several publishers and
//! aggregators can be configured. The client asks them in the order of their health. It asks a further
//! aggregator beside a slow one, and the first right answer counts.
//!
//! Repetition follows Walrus's rules:
//! - A read that failed on the server's side is repeated after a pause.
//! - A refusal is never repeated.
//! - A 404 is repeated only for seconds, and only for a blob stored just before. Every other aggregator is
//!   asked once, since a lone 404 says little.
//! - A PUT is sent once. If it may have arrived, the client first looks for the blob, because a repeated PUT
//!   buys a second object.
//!
//! One deadline bounds all of it.
//!
//! The client follows a few redirects: never from https to http, nor from another machine into this one. It never takes more of an answer into memory than the limit. All work runs
//! in the caller's future, except the computation of blob IDs on blocking threads.
//!
//! Code map:
//! - without I/O: `retry` decides the next step, `answer` interprets answers, `health` orders the sources;
//! - `read`, `fetch`, `probe` and `write` carry it out;
//! - `reads`, `writes`, `quilts` and `heads` are the calls.

mod answer;
mod config;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod heads;
mod health;
mod options;
mod payload;
mod permission;
mod probe;
mod quilts;
mod read;
mod reads;
mod recent_blobs;
mod retry;
mod shards;
mod sources;
mod times;
mod verify;
mod write;
mod writes;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::{BlobStore, PutOptions, PutOutcome, StoreError, StoreFuture, StoreTime},
};
use parking_lot::{Mutex, MutexGuard};
use reqwest::{Client, Url};

use crate::{ShardCount, http_client::is_direct, jwt::PublisherToken};
pub use config::{HttpStoreBuilder, HttpStoreConfigError, RetryPolicy};
pub use options::{StoredBlob, StoredHow, Verification};
pub use permission::PutPermission;
pub use quilts::StoredQuilt;
use reads::head_plan;
use recent_blobs::RecentBlobs;
pub use shards::{SHARDS_HEADER, SHARDS_WAIT, differing_shards};
use sources::StoreSources;
pub use times::http_date;
use verify::ContentCheck;

/// Publishers and aggregators (often one daemon) over HTTP. Clones share connections and health.
#[derive(Debug, Clone)]
pub struct HttpStore {
    inner: Arc<HttpStoreInner>,
}

#[derive(Debug)]
struct HttpStoreInner {
    clients: Clients,
    publishers: StoreSources,
    aggregators: StoreSources,
    token: Option<PublisherToken>,
    heads: Option<Url>,
    shards: ShardCount,
    /// The announced shard count, or none, once a server has answered, or if the given one counts in any case.
    announced: OnceLock<Option<ShardCount>>,
    policy: RetryPolicy,
    recent: Mutex<RecentBlobs>,
}

/// The clients for servers to which no proxy leads, as those on this machine, and for all others.
#[derive(Debug)]
struct Clients {
    direct: Client,
    elsewhere: Client,
}

impl HttpStoreInner {
    /// The client for requests to this URL.
    fn client(&self, url: &Url) -> &Client {
        if is_direct(url) { &self.clients.direct } else { &self.clients.elsewhere }
    }

    fn recent(&self) -> MutexGuard<'_, RecentBlobs> {
        self.recent.lock()
    }
}

impl HttpStore {
    /// Starts from the base URLs of publisher and aggregator, and the network's shard count. No returned ID
    /// can be checked without that count. More of both can be added.
    #[must_use]
    pub fn builder(publisher: &str, aggregator: &str, shards: ShardCount) -> HttpStoreBuilder {
        HttpStoreBuilder::new(&[publisher], &[aggregator], shards)
    }

    /// As [`Self::builder`], from lists in order of preference. Storing needs at least one publisher.
    #[must_use]
    pub fn endpoints(publishers: &[&str], aggregators: &[&str], shards: ShardCount) -> HttpStoreBuilder {
        HttpStoreBuilder::new(publishers, aggregators, shards)
    }

    /// The shard count for blob IDs.
    #[must_use]
    pub fn shards(&self) -> ShardCount {
        self.inner.shards()
    }
}

fn outcome(stored: StoredBlob) -> PutOutcome {
    PutOutcome {
        blob_id: stored.blob_id,
        newly_created: stored.how == StoredHow::Created,
        end_epoch: stored.end_epoch,
    }
}

impl BlobStore for HttpStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move { self.store(bytes, &options).await.map(outcome) })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(self.read(id, limit as u64, Verification::Off))
    }

    fn get_checked<'a>(&'a self, id: BlobId, limit: usize, digest: BlobDigest) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(self.read(id, limit as u64, Verification::Digest(digest)))
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            match self.inner.read(&head_plan(id, ContentCheck::Off)).await {
                Ok(_) => Ok(true),
                Err(StoreError::NotFound) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn announced_shards<'a>(&'a self, wait: Duration) -> StoreFuture<'a, Option<u16>> {
        Box::pin(async move { Ok(self.inner.ask_shards(wait).await?.map(ShardCount::get)) })
    }

    fn note_stored(&self, id: BlobId) {
        self.inner.recent().stored(id, tokio::time::Instant::now());
    }

    fn times<'a>(&'a self) -> StoreFuture<'a, Vec<StoreTime>> {
        Box::pin(self.ask_times())
    }
}

/// Joins a relative path from this crate to a checked base URL.
fn join(base: &Url, path: &str) -> Result<Url, StoreError> {
    base.join(path).map_err(|error| StoreError::Refused { reason: format!("the store's URL: {error}") })
}
