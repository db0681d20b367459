//! Settings, limits and start-up errors of the embedded store.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use baton_proto::ids::HeadIndexKey;
use baton_walrus_client::ShardCount;

use super::{clock::Clock, jwt_secret::JwtSecret};

/// Default largest blob, in bytes: the limit of Walrus's public publishers.
pub const MAX_PUT_BYTES: usize = 10_240 * 1024;
/// Default largest body of a quilt's PUT, in bytes: the limit of Walrus's public publishers.
pub const MAX_QUILT_BYTES: usize = 102_400 * 1024;
/// Default PUTs in progress at once, as in Walrus's publisher.
pub const MAX_RUNNING_PUTS: usize = 8;
/// Default PUTs that wait for those, as in Walrus's publisher; the next gets 429.
pub const MAX_WAITING_PUTS: usize = 8;
/// Longest lifetime of a blob in epochs, as in Walrus.
pub const MAX_EPOCHS: u32 = 53;
/// Default length of an epoch, as on Walrus's mainnet.
pub const EPOCH_DURATION: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Most objects per blob at a time. Each PUT without `permanent` buys one and rewrites the blob's record, 25
/// KB at this bound. The next PUT gets 500.
pub const MAX_OBJECTS_PER_BLOB: usize = 1_000;
/// Most blob IDs computed at once, given as many cores. Each uses one core fully, and up to 110 MB at 1000
/// shards.
pub(super) const MAX_ID_COMPUTATIONS: usize = 8;
/// Memory for received forms of quilts and their patches, in KiB: of one of the largest and some more. Further
/// quilts wait.
pub(super) const QUILT_PATCHES_KIB: usize = 256 * 1024;
/// Memory for whole quilts during encoding or a patch read, in KiB. A larger quilt is refused: one large
/// patch among many small ones makes a quilt far larger than its patches.
pub(super) const QUILTS_KIB: usize = 512 * 1024;
/// Longest `_metadata` of a quilt, in bytes: parsing takes some ten times that in memory.
pub(super) const MAX_QUILT_METADATA_BYTES: usize = 4 * 1024 * 1024;
/// Most fields of a quilt's form: Walrus's quilts have at most 666 patches.
pub(super) const MAX_QUILT_FIELDS: usize = 2_048;
/// Most blobs in one concatenation: each is looked up before the answer begins.
pub(super) const MAX_CONCAT_IDS: usize = 1_024;
/// Head records accepted at once; further ones get 429. Each waits for a flush to disk.
pub(super) const MAX_HEAD_WRITES: usize = 32;
/// Extra time for a request's body beyond its time at [`MIN_BODY_RATE`], after which a stalled sender loses
/// its slot.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Slowest average pace of a request's body, in bytes a second.
pub(super) const MIN_BODY_RATE: u64 = 128 * 1024;
/// How much of a refused body is read and discarded, so that its sender can read the refusal.
pub(super) const MAX_DISCARDED_BYTES: usize = MAX_PUT_BYTES;
/// How long a refusal that needs no body waits for it. Closing a connection amid a body resets it, and the
/// sender may never see the refusal.
pub(super) const REFUSAL_DELAY: Duration = Duration::from_millis(300);
/// Time for running requests to end after the shutdown signal.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Time between two searches for expired head records while the index is full.
pub(super) const PURGE_INTERVAL_MS: u64 = 60_000;
/// Longest time between two checks for the end of an epoch.
pub(super) const COLLECT_INTERVAL: Duration = Duration::from_secs(10);
/// Most blobs with counted PUTs since the start, for [`Admin::put_counts`](super::Admin::put_counts): some
/// megabytes. Later blobs are not counted.
pub(super) const MAX_COUNTED_BLOBS: usize = 100_000;

/// Most blobs: each takes some 300 bytes of memory. A PUT of another blob gets 500.
pub(super) const MAX_BLOBS: usize = 1_000_000;
/// Most object IDs of all blobs: each takes some 100 bytes of memory. The next PUT gets 500.
pub(super) const MAX_OBJECTS: usize = 4_000_000;

/// Default limit of head records: 100 MB at the usual size of 1 KB.
const MAX_HEADS: usize = 100_000;

/// Settings of an [`EmbeddedStore`](super::EmbeddedStore). Start from [`EmbeddedConfig::new`].
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// The folder that holds the store; created if missing. One process at a time.
    pub path: PathBuf,
    /// The shard count for IDs. Fixed once the store holds anything.
    pub shards: ShardCount,
    /// Limit on the sum of blob bytes, if any. A PUT beyond it gets 500 INTERNAL_ERROR. Unfinished uploads
    /// take disk space on top: at most the running PUTs times the largest blob.
    pub quota_bytes: Option<u64>,
    /// Largest blob of a PUT, in bytes.
    pub max_put_bytes: usize,
    /// Largest body of a quilt's PUT, in bytes.
    pub max_quilt_bytes: usize,
    /// PUTs over HTTP in progress at once.
    pub max_running_puts: usize,
    /// PUTs over HTTP that wait for those.
    pub max_waiting_puts: usize,
    /// The first epoch of a new store. An existing store continues with its own.
    pub first_epoch: u64,
    /// Length of an epoch. A changed length starts the current epoch again.
    pub epoch_duration: Duration,
    /// Most head records.
    pub max_heads: usize,
    /// The clock of epochs, of head records and of publisher tokens.
    pub clock: Clock,
    /// The secret that signs publisher tokens. If set, PUTs over HTTP need a token.
    pub jwt_secret: Option<JwtSecret>,
}

impl EmbeddedConfig {
    /// A store in this folder with the limits of Walrus's publishers, 1000 shards and no quota.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            shards: ShardCount::MAINNET,
            quota_bytes: None,
            max_put_bytes: MAX_PUT_BYTES,
            max_quilt_bytes: MAX_QUILT_BYTES,
            max_running_puts: MAX_RUNNING_PUTS,
            max_waiting_puts: MAX_WAITING_PUTS,
            first_epoch: 1,
            epoch_duration: EPOCH_DURATION,
            max_heads: MAX_HEADS,
            clock: Clock::system(),
            jwt_secret: None,
        }
    }
}

/// A validator's findings in a head record with good signature and form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadIdentity {
    /// The key under which it is indexed.
    pub key: HeadIndexKey,
    /// Its sequence number; a higher one replaces a lower one.
    pub sequence: u64,
    /// Its expiry, Unix time in milliseconds.
    pub expires_ms: u64,
}

/// Checks an encoded head record (form and signature; not its time) and returns its identity. The error is a
/// short reason without any of the record's content.
pub type ValidateHead = fn(&[u8]) -> Result<HeadIdentity, String>;

/// The reason why the store cannot be opened; each text names the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be made, read or written.
    #[error(
        "cannot use {path} for the store: {source}; choose a folder this user can write, or fix its permissions"
    )]
    Path {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error("the store in {path} is open in another process; stop that process or choose another folder")]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The disk is full.
    #[error(
        "the disk of {path} has no room for the store: {source}; free some space there, then start the store again"
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The folder holds no store.
    #[error("there is no store in {path}; give the folder that the store was started with")]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// Expired blobs cannot be removed.
    #[error("the store in {path} cannot remove expired blobs: {cause}; check the disk and its permissions")]
    Collect {
        /// The folder.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// It was written by another version of this program.
    #[error(
        "the store in {path} has layout {found}, and this version reads layout {wanted}; open it with the version that \
         wrote it, or move it away to start empty"
    )]
    Layout {
        /// The folder.
        path: PathBuf,
        /// Its layout.
        found: String,
        /// The layout that this version reads and writes.
        wanted: u32,
    },
    /// It was made for another shard count.
    #[error(
        "the store in {path} was made for {found} shards, not {wanted}; set its shard count or choose another folder"
    )]
    Shards {
        /// The folder.
        path: PathBuf,
        /// Its shard count.
        found: String,
        /// The requested shard count.
        wanted: ShardCount,
    },
}

/// The reason why the store cannot be served; each text names the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another process listens there.
    #[error("{address} is in use; stop what listens there or choose another port")]
    InUse {
        /// The requested address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose an address of this machine and a port above 1023")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The admin interface may only be reached from this machine.
    #[error("the admin interface must not listen on {address}; choose a loopback address such as 127.0.0.1")]
    NotLoopback {
        /// The address that was bound.
        address: SocketAddr,
    },
    /// The listener failed while serving.
    #[error("the listener failed: {0}; start the store again")]
    Io(#[from] std::io::Error),
    /// The last flush failed.
    #[error("the store could not be flushed at shutdown: {0}; check the disk before starting it again")]
    Flush(String),
}
