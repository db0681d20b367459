//! Settings, limits and start-up errors of the embedded store.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use baton_proto::ids::HeadIndexKey;

use super::{auth::JwtSecret, clock::Clock, faults::FaultPlan};
use crate::ShardCount;

/// Default largest blob, in bytes: the limit of Walrus's public publishers.
pub const MAX_PUT_BYTES: usize = 10_240 * 1024;
/// Default largest body of a quilt's PUT, in bytes: the limit of Walrus's public publishers.
pub const MAX_QUILT_BYTES: usize = 102_400 * 1024;
/// PUTs worked on at once by default, as in Walrus's publisher.
pub const MAX_RUNNING_PUTS: usize = 8;
/// PUTs that wait for one of those by default, as in Walrus's publisher; the next one is answered 429.
pub const MAX_WAITING_PUTS: usize = 8;
/// Most epochs a blob can be stored for, as in Walrus.
pub const MAX_EPOCHS: u32 = 53;
/// Default length of an epoch: that of Walrus's mainnet.
pub const EPOCH_DURATION: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Most objects that keep one blob at a time: each PUT without `permanent` buys one, and a blob's record of 25 KB is
/// written anew each time. The next PUT is answered 500.
pub const MAX_OBJECTS_PER_BLOB: usize = 1_000;
/// Most blob IDs computed at once, where there are as many cores: each keeps one busy, and takes up to 110 MB at 1000
/// shards.
pub(super) const MAX_ID_COMPUTATIONS: usize = 8;
/// Memory for the patches of quilts that are being received, in KiB: two of the largest and some. Further ones wait.
pub(super) const QUILT_PATCHES_KIB: usize = 256 * 1024;
/// Memory for whole quilts that are being encoded or of which a patch is read, in KiB. A quilt above it is refused:
/// one large patch among many small ones makes a quilt far larger than its patches.
pub(super) const QUILTS_KIB: usize = 512 * 1024;
/// Longest `_metadata` of a quilt, in bytes: its JSON takes some ten times that in memory while it is read.
pub(super) const MAX_QUILT_METADATA_BYTES: usize = 4 * 1024 * 1024;
/// Most fields of a quilt's form: Walrus's quilts have at most 666 patches.
pub(super) const MAX_QUILT_FIELDS: usize = 2_048;
/// Most blobs in one concatenation: each is looked up before the answer begins.
pub(super) const MAX_CONCAT_IDS: usize = 1_024;
/// Head records taken in at once; further ones are answered 429. Each waits for a flush to disk.
pub(super) const MAX_HEAD_WRITES: usize = 32;
/// Connections with a slot: each may hold two chunks of 256 KiB in memory.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Those of one IPv4 address or one IPv6 /64 network. The others are a reserve for other addresses.
pub(super) const MAX_CONNECTIONS_PER_ADDRESS: usize = 192;
/// Accepted connections that wait for a slot: sockets alone, nothing is read from them. Past it, the oldest of the address
/// with most of them is closed.
pub(super) const MAX_WAITING_CONNECTIONS: usize = 256;
/// How long a connection may have no request under way and send no byte of an answer before it is closed, so that
/// idle sockets cannot keep everybody else out. Also the time for a whole request head. Clients keep connections for
/// some seconds between requests; past this they open another one.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Slowest pace, in bytes a second, at which a peer may take an answer or send a request's body on average, not counting
/// [`IDLE_TIMEOUT`]. The slowest mobile connections are some times faster.
pub(super) const MIN_TRANSFER_RATE: u64 = 8 * 1024;
/// How long a request's body may take to arrive beyond the time that [`MIN_BODY_RATE`] gives it, so that a stalled
/// sender gives its place free.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Slowest pace of a request's body, in bytes a second, on average.
pub(super) const MIN_BODY_RATE: u64 = 128 * 1024;
/// How much of a refused body is read and thrown away, so that its sender gets to read the refusal.
pub(super) const MAX_DISCARDED_BYTES: usize = MAX_PUT_BYTES;
/// How long a refusal that needs no body waits for it: a connection that is closed with a body half read is reset, and
/// its sender may never see the refusal.
pub(super) const REFUSAL_DELAY: Duration = Duration::from_millis(300);
/// How long running requests may take to end after the shutdown signal.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Time between two searches for expired head records while the index is full.
pub(super) const PURGE_INTERVAL_MS: u64 = 60_000;
/// Longest time between two looks at whether an epoch has ended.
pub(super) const COLLECT_INTERVAL: Duration = Duration::from_secs(10);
/// Most blobs whose PUTs are counted since the start, for [`Admin::put_counts`](super::Admin::put_counts): some
/// megabytes. Those after it are not counted.
pub(super) const MAX_COUNTED_BLOBS: usize = 100_000;

/// Most blobs: each takes some 300 bytes of memory. The next PUT of another is answered 500.
pub(super) const MAX_BLOBS: usize = 1_000_000;
/// Most object IDs of all blobs: each takes some 100 bytes of memory. The next PUT is answered 500.
pub(super) const MAX_OBJECTS: usize = 4_000_000;

/// Default number of head records kept: 100 MB at the most usual size of 1 KB.
const MAX_HEADS: usize = 100_000;

/// Settings of an [`EmbeddedStore`](super::EmbeddedStore). Start from [`EmbeddedConfig::new`].
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// The folder that holds the store; created if missing. One process at a time.
    pub path: PathBuf,
    /// For how many shards IDs are computed. Fixed once the store holds anything.
    pub shards: ShardCount,
    /// Largest sum of blob bytes kept, if bounded. A PUT beyond it is answered 500 INTERNAL_ERROR. Uploads that are
    /// not finished take room on disk beside it: at most the running PUTs times the largest blob.
    pub quota_bytes: Option<u64>,
    /// Largest blob taken by PUT, in bytes.
    pub max_put_bytes: usize,
    /// Largest body taken by PUT of a quilt, in bytes.
    pub max_quilt_bytes: usize,
    /// PUTs over HTTP that are worked on at once.
    pub max_running_puts: usize,
    /// PUTs over HTTP that wait for one of those.
    pub max_waiting_puts: usize,
    /// The first epoch of a new store. A store that exists goes on with its own.
    pub first_epoch: u64,
    /// How long an epoch lasts. Another duration than before begins the current epoch anew.
    pub epoch_duration: Duration,
    /// Most head records kept.
    pub max_heads: usize,
    /// The clock of epochs, of head records and of publisher tokens.
    pub clock: Clock,
    /// What publisher tokens are signed with. With it, PUTs over HTTP need a token.
    pub jwt_secret: Option<JwtSecret>,
    /// What goes wrong on purpose over HTTP: nothing, by default.
    pub faults: FaultPlan,
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
            faults: FaultPlan::default(),
        }
    }
}

/// What a validator finds in a head record whose signature and form are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadIdentity {
    /// The key under which it is indexed.
    pub key: HeadIndexKey,
    /// Its sequence number; a higher one replaces a lower one.
    pub sequence: u64,
    /// When it ends, Unix time in milliseconds.
    pub expires_ms: u64,
}

/// Checks an encoded head record (form and signature; not its time) and names what it is. The error is a
/// short reason that holds none of the record's content.
pub type ValidateHead = fn(&[u8]) -> Result<HeadIdentity, String>;

/// Why the store cannot be opened; each text names the next step.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be made, read or written.
    #[error(
        "cannot use {path} for the store: {source}; choose a folder this user can write, or fix its permissions"
    )]
    Path {
        /// The folder.
        path: PathBuf,
        /// What the system said.
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
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing to look at.
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
        /// What failed.
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
        /// The layout it has.
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
        /// The shard count it was made for.
        found: String,
        /// The shard count asked for.
        wanted: ShardCount,
    },
}

impl OpenError {
    /// What the system said of a store's folder or of something in it.
    pub(super) fn path(path: &std::path::Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        if super::disk::is_no_room(&source) {
            Self::NoRoom { path, source }
        } else {
            Self::Path { path, source }
        }
    }
}

/// Why the store cannot be served; each text names the next step.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something listens there already.
    #[error("{address} is in use; stop what listens there or choose another port")]
    InUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose an address of this machine and a port above 1023")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
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
