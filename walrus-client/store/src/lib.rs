//! A Walrus-compatible blob store and head index in one process: Walrus's HTTP interface over files.
//!
//! The testnet and tests run it without a Walrus network. Like Walrus, it provides:
//! - real blob IDs for the configured shard count,
//! - bought objects that end with their epochs,
//! - the answers, limits and errors of Walrus's daemon.
//!
//! It is one machine's disk, not a network: nothing is erasure coded at rest.
//!
//! A 200, or an `Ok` from [`BlobStore::put`] here, means flushed to disk. Bytes with a wrong checksum are
//! reported and never served. Bodies of any length pass in chunks of 256 KiB. The caller supplies a validator
//! for head records, since this crate does not know their layout. Blob IDs, quilts and the JSON of the interface
//! come from `baton-walrus-client`.
//!
//! A program opens a store and keeps a blob in it:
//!
//! ```
//! use baton_proto::store::{BlobStore as _, PutOptions};
//! use baton_walrus_client::{ShardCount, blob_id};
//! use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let shards = ShardCount::TESTBED;
//! let folder = tempfile::tempdir()?;
//! let config = EmbeddedConfig { shards, ..EmbeddedConfig::new(folder.path()) };
//! let store = EmbeddedStore::open(config, |_| Err("this store has no heads".to_owned()))?;
//! let stored = store.put(b"sealed bytes".to_vec(), PutOptions::default()).await?;
//! assert_eq!(stored.blob_id, blob_id(b"sealed bytes", shards)?);
//! assert_eq!(store.get(stored.blob_id, 1024).await?, b"sealed bytes");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```

// Requests of others and bytes of a disk come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

mod admin;
mod answers;
mod auth;
mod clock;
mod config;
mod disk;
mod download;
mod error;
mod http;
mod jwt_secret;
mod range;
mod upload;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use baton_kit::listen;
use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use baton_walrus_client::{MAX_HEAD_BYTES, ShardCount};
use bytes::Bytes;
use tokio::{
    net::TcpListener,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};

pub use admin::{Admin, PutCounts};
pub use clock::{Clock, EpochInfo};
use config::{
    COLLECT_INTERVAL, MAX_COUNTED_BLOBS, MAX_HEAD_WRITES, MAX_ID_COMPUTATIONS, QUILT_PATCHES_KIB, QUILTS_KIB,
    SHUTDOWN_GRACE,
};
pub use config::{
    EPOCH_DURATION, EmbeddedConfig, HeadIdentity, MAX_EPOCHS, MAX_OBJECTS_PER_BLOB, MAX_PUT_BYTES,
    MAX_QUILT_BYTES, MAX_RUNNING_PUTS, MAX_WAITING_PUTS, OpenError, ServeError, ValidateHead,
};
pub use disk::{CheckReport, CollectionReport, Damage, DamageKind, Usage, check};
use disk::{Disk, PurchaseOutcome, Term};
use error::OperationError;
pub use jwt_secret::{JwtSecret, JwtSecretError};

/// For fuzz targets only: the parser of untrusted text.
#[doc(hidden)]
pub mod fuzzing {
    pub use super::range::{ByteRange, parse_range};
}

/// A shared handle on the store. The files are closed when the last clone is dropped.
#[derive(Clone)]
pub struct EmbeddedStore {
    inner: Arc<EmbeddedInner>,
}

struct EmbeddedInner {
    disk: Disk,
    damages: Vec<Damage>,
    config: EmbeddedConfig,
    validate_head: ValidateHead,
    /// PUTs over HTTP that are running or waiting.
    admitted_puts: Arc<Semaphore>,
    /// PUTs over HTTP that are running.
    running_puts: Arc<Semaphore>,
    id_computations: Arc<Semaphore>,
    head_writes: Arc<Semaphore>,
    /// Memory for received patches of quilts, in KiB.
    quilt_patches: Arc<Semaphore>,
    /// Memory for whole quilts, in KiB. A holder never waits for `quilt_patches`.
    quilts: Arc<Semaphore>,
    put_counts: Mutex<HashMap<BlobId, PutCounts>>,
    /// Signals a moved clock: an epoch may have ended.
    clock_moved: Notify,
}

impl EmbeddedInner {
    /// Counts a stored PUT, whether or not its answer arrives.
    fn count_put(&self, id: BlobId, stored: PurchaseOutcome) {
        let mut counts = self.put_counts();
        if counts.len() < MAX_COUNTED_BLOBS || counts.contains_key(&id) {
            let counts = counts.entry(id).or_default();
            counts.puts += 1;
            counts.bought += u64::from(matches!(stored, PurchaseOutcome::New(_)));
        }
    }

    fn put_counts(&self) -> std::sync::MutexGuard<'_, HashMap<BlobId, PutCounts>> {
        self.put_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens or creates the store, and reads every byte (some seconds for gigabytes). Fixes crash remains
    /// and damage, and removes expired blobs. Blocking: call it before the runtime is busy, or on a blocking
    /// thread.
    ///
    /// # Errors
    /// [`OpenError`], naming the next step. Damage is no error: see [`Self::damages`].
    pub fn open(config: EmbeddedConfig, validate_head: ValidateHead) -> Result<Self, OpenError> {
        let (disk, damages) = Disk::open(&config)?;
        match disk.collect() {
            Ok(collected) => log_collected(collected),
            // The store still serves its content, and reports that it stores nothing.
            Err(error @ OperationError::NoRoom(_)) => {
                tracing::warn!(%error, "expired blobs could not be removed")
            }
            Err(error) => {
                return Err(OpenError::Collect { path: config.path.clone(), cause: error.to_string() });
            }
        }
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let inner = EmbeddedInner {
            disk,
            damages,
            put_counts: Mutex::default(),
            admitted_puts: semaphore(config.max_running_puts + config.max_waiting_puts),
            running_puts: semaphore(config.max_running_puts),
            id_computations: semaphore(cores.min(MAX_ID_COMPUTATIONS)),
            head_writes: semaphore(MAX_HEAD_WRITES),
            quilt_patches: semaphore(QUILT_PATCHES_KIB),
            quilts: semaphore(QUILTS_KIB),
            clock_moved: Notify::new(),
            config,
            validate_head,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The damage found at open: at most 10,000 entries. Each was logged.
    #[must_use]
    pub fn damages(&self) -> &[Damage] {
        &self.inner.damages
    }

    /// The reason why nothing can be stored now, if any: the disk is full or refuses writes. Reads continue
    /// meanwhile. The state ends by itself: while it lasts, this tries a write once a second.
    pub async fn write_failure(&self) -> Option<String> {
        let inner = self.inner.clone();
        blocking(move || inner.disk.write_failure()).await
    }

    /// The shard count for its IDs.
    #[must_use]
    pub fn shards(&self) -> ShardCount {
        self.inner.config.shards
    }

    /// The current epoch, and the time until the next.
    #[must_use]
    pub fn epoch(&self) -> EpochInfo {
        self.inner.disk.epoch()
    }

    /// The stored amount, including expired blobs until they are collected.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.inner.disk.usage()
    }

    /// The expired content removed since the store was opened.
    #[must_use]
    pub fn collected(&self) -> CollectionReport {
        self.inner.disk.collected()
    }

    /// Removes expired blobs and objects. While it serves, the store does this itself at the end of each
    /// epoch. Until then they take up room and are not served.
    ///
    /// # Errors
    /// [`StoreError::OutcomeUnknown`] when the disk fails.
    pub async fn collect_expired(&self) -> Result<CollectionReport, StoreError> {
        let inner = self.inner.clone();
        let collected = blocking(move || inner.disk.collect()).await?;
        log_collected(collected);
        Ok(collected)
    }

    /// Listens on an address, with errors that name the next step. Port 0 takes any free port.
    ///
    /// # Errors
    /// [`ServeError::InUse`] or [`ServeError::Listen`].
    pub async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
        TcpListener::bind(address).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServeError::InUse { address },
            _ => ServeError::Listen { address, source },
        })
    }

    /// Serves Walrus's interface and the head index until `shutdown` ends. Running requests then have ten
    /// seconds. Returns after a last flush.
    ///
    /// # Errors
    /// [`ServeError`] when the listener or the last flush fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        self.serve_as(listener, self.router(), shutdown).await
    }

    /// The public routes: Walrus's interface and the head index.
    pub fn router(&self) -> axum::Router {
        http::router(self.clone())
    }

    /// As [`Self::serve`], with [`Self::router`] below layers of the caller.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_as(
        &self,
        listener: TcpListener,
        router: axum::Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        tokio::select! {
            served = self.serve_router(listener, router, shutdown) => served,
            never = self.collect_always() => match never {},
        }
    }

    /// Collects at the end of each epoch.
    async fn collect_always(&self) -> std::convert::Infallible {
        loop {
            let moved = self.inner.clock_moved.notified();
            let EpochInfo { epoch, until_next_ms } = self.epoch();
            if !self.inner.disk.is_collected(epoch)
                && let Err(error) = self.collect_expired().await
            {
                tracing::error!(%error, "expired blobs could not be removed; trying again");
            }
            // The store's clock may differ from the clock of the sleep.
            let pause = COLLECT_INTERVAL.min(std::time::Duration::from_millis(until_next_ms));
            let _ = tokio::time::timeout(pause, moved).await;
        }
    }

    /// Serves [`Self::admin_router`] until `shutdown` ends.
    ///
    /// # Errors
    /// [`ServeError::NotLoopback`] when other machines can reach the listener, else as [`Self::serve`].
    pub async fn serve_admin(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            return Err(ServeError::NotLoopback { address });
        }
        self.serve_router(listener, self.admin_router(), shutdown).await
    }

    async fn serve_router(
        &self,
        listener: TcpListener,
        router: axum::Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        listen::serve(listener, router, shutdown, SHUTDOWN_GRACE).await?;
        let inner = self.inner.clone();
        blocking(move || inner.disk.flush()).await.map_err(|error| ServeError::Flush(error.to_string()))
    }

    async fn blob_length(&self, id: BlobId) -> Result<Option<u64>, OperationError> {
        let inner = self.inner.clone();
        blocking(move || inner.disk.length(id)).await
    }

    async fn resolve_object(&self, object: [u8; 32]) -> Result<Option<BlobId>, OperationError> {
        let inner = self.inner.clone();
        blocking(move || inner.disk.resolve_object(object)).await
    }

    /// Validates and stores a head record of at most [`MAX_HEAD_BYTES`] (the caller checks).
    async fn store_head(&self, record: Bytes, force: bool) -> Result<HeadIdentity, OperationError> {
        let inner = self.inner.clone();
        blocking(move || {
            let head = (inner.validate_head)(&record).map_err(OperationError::InvalidHead)?;
            let now_ms = inner.config.clock.now_ms();
            if head.expires_ms <= now_ms && !force {
                return Err(OperationError::ExpiredHead);
            }
            inner.disk.put_head(head, &record, now_ms, force)?;
            Ok(head)
        })
        .await
    }

    async fn publish_head(&self, record: Vec<u8>, force: bool) -> Result<(), StoreError> {
        if record.len() > MAX_HEAD_BYTES {
            let length = record.len() as u64;
            return Err(StoreError::TooLarge { length, limit: MAX_HEAD_BYTES as u64 });
        }
        self.store_head(record.into(), force).await?;
        Ok(())
    }

    async fn load_head(&self, key: HeadIndexKey) -> Result<Option<Vec<u8>>, OperationError> {
        let inner = self.inner.clone();
        blocking(move || inner.disk.head(key, inner.config.clock.now_ms())).await
    }
}

/// The permits that a PUT over HTTP holds.
struct PutPermits {
    _admitted: OwnedSemaphorePermit,
    _running: OwnedSemaphorePermit,
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.clone().acquire_owned().await.expect("the store's semaphores are never closed")
}

/// Runs blocking work on its own thread; its panic becomes the caller's.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(stopped) => match stopped.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Blocking work is cancelled only when the runtime shuts down, and then so is the caller.
            Err(_) => std::future::pending().await,
        },
    }
}

impl BlobStore for EmbeddedStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move {
            let limit = self.inner.config.max_put_bytes;
            if bytes.len() > limit {
                return Err(StoreError::TooLarge { length: bytes.len() as u64, limit: limit as u64 });
            }
            if options.epochs == 0 || options.epochs > MAX_EPOCHS {
                return Err(StoreError::Refused { reason: format!("epochs must be from 1 to {MAX_EPOCHS}") });
            }
            let term =
                Term { permanent: options.permanent, force: false, share: false, epochs: options.epochs };
            let (blob_id, stored) = self.store_bytes(&bytes, term, None).await?;
            let (newly_created, object) = match stored {
                PurchaseOutcome::New(object) => (true, object),
                PurchaseOutcome::AlreadyCertified(object) => (false, object),
            };
            Ok(PutOutcome { blob_id, newly_created, end_epoch: Some(object.end) })
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let blob =
                self.open_blob(id).await.map_err(OperationError::of_read)?.ok_or(StoreError::NotFound)?;
            if blob.length() > limit as u64 {
                return Err(StoreError::TooLarge { length: blob.length(), limit: limit as u64 });
            }
            let bytes = blob.bytes().await.map_err(OperationError::of_read)?.ok_or(StoreError::NotFound)?;
            Ok(bytes.into())
        })
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.open_blob(id).await.map_err(OperationError::of_read)?.is_some()) })
    }
}

impl HeadIndex for EmbeddedStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(self.publish_head(record, false))
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { self.load_head(key).await.map_err(OperationError::of_read) })
    }
}

fn log_collected(collected: CollectionReport) {
    let CollectionReport { blobs, bytes, objects } = collected;
    if objects > 0 {
        tracing::info!(blobs, bytes, objects, "blobs whose epochs are over were removed");
    }
}
