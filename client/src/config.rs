//! What a client is told at its start. Binaries read it from flags and files; nothing else here reads the clock.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use baton_mesh::{MeshClock, MeshHandle, Multiaddr};
use baton_proto::{
    store::{BlobStore, HeadIndex},
    turn::StoragePolicy,
};
use baton_walrus_client::{HttpStore, ShardCount};
use zeroize::Zeroizing;

use crate::{error::ClientError, heads::NamedIndex, quota::QuotaHolder};

/// Milliseconds since the Unix epoch, from wherever the program takes its time.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Most that one turn may cost where the caller names no limit, in millionths of the node's unit: ten units, so that
/// a node's offer alone is never what the client agrees to pay.
pub const DEFAULT_MAX_PRICE: u64 = 10_000_000;
/// Epochs for the blob of a segment that still grows: each turn buys it anew, so this is how long a session may rest. Ten
/// weeks on Walrus's mainnet, five days on its testnet.
pub const DEFAULT_OPEN_EPOCHS: u32 = 5;
/// Epochs for a full segment's blob, which is bought once: as long as Walrus sells.
pub const DEFAULT_CLOSED_EPOCHS: u32 = MAX_EPOCHS;
/// Most epochs ahead that Walrus sells.
pub const MAX_EPOCHS: u32 = 53;
/// Length of an epoch of Walrus's mainnet; one of its testnet is a day.
pub const DEFAULT_EPOCH: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// How long the client waits for others.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the first usable node to appear.
    pub discovery: Duration,
    /// For a substream to open, and for a short question to be answered.
    pub open: Duration,
    /// For a node to admit or refuse a turn, the fetching of its history included.
    pub admit: Duration,
    /// Between two events of a reply; covers the reading of a long prompt by a slow node.
    pub idle: Duration,
    /// The least time for a first token, once the node has admitted the turn and nobody is ahead of it: long enough for a
    /// node that fetches a history over a slow line. A long prompt, and a node that is known to begin later, have more; see
    /// [`idle`](Self::idle) for the most.
    pub first_token: Duration,
    /// The least time without a token, in the middle of an answer, after which another node is asked to continue it; a slow
    /// node has three times as long as its latest tokens took.
    pub stall: Duration,
    /// For a whole reply, waiting in the node's queue included; half a second for each token that was asked for is
    /// added to it.
    pub reply: Duration,
    /// For a node to embed a batch of texts, waiting in its queue included.
    pub embed: Duration,
    /// How long the author of a turn stores it alone, before the client does.
    pub author_stores: Duration,
    /// Between two looks at a blob that the store says it does not have: a store of several servers may not have
    /// told all of them, and a blob that is put again is paid again.
    pub second_look: Duration,
    /// For a head index to answer; all of them are asked at once.
    pub heads: Duration,
    /// Before what the store or the head index did not take is offered again in the background; doubled up to five
    /// minutes while it fails.
    pub store_retry: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            discovery: Duration::from_secs(8),
            open: Duration::from_secs(10),
            admit: Duration::from_secs(60),
            idle: Duration::from_secs(180),
            first_token: Duration::from_secs(10),
            stall: Duration::from_secs(2),
            reply: Duration::from_secs(30 * 60),
            // A little more than a node gives them.
            embed: Duration::from_secs(95),
            author_stores: Duration::from_millis(baton_proto::limits::AUTHOR_STORES_ALONE_MS),
            second_look: Duration::from_secs(3),
            heads: Duration::from_secs(5),
            store_retry: Duration::from_secs(5),
        }
    }
}

/// Configuration of a [`Client`](crate::Client).
#[derive(Clone)]
pub struct ClientConfig {
    /// Folder of the device key and the journals (made with mode 0700). None keeps sessions in memory only.
    pub home: Option<PathBuf>,
    /// Passphrase of the device key; a new key is sealed under it.
    pub passphrase: Option<Zeroizing<String>>,
    /// Shard count of new sessions' blob IDs: 1000 for Walrus itself.
    pub shards: ShardCount,
    /// Addresses to listen on; none for a client that only dials.
    pub listen: Vec<Multiaddr>,
    /// Nodes to begin with, best with a `/p2p/` suffix.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to find nodes on the local network by multicast.
    pub mdns: bool,
    /// A running mesh to use instead of starting one; `listen`, `bootstrap` and `mdns` are then unused.
    pub mesh: Option<MeshHandle>,
    /// Where blobs are.
    pub store: Arc<dyn BlobStore>,
    /// Where head records are.
    pub heads: Arc<dyn HeadIndex>,
    /// What users are told that this index is.
    pub heads_name: String,
    /// Where they are too, so that no one index can lose or withhold them: at most
    /// [`MAX_HEAD_INDEXES`](crate::MAX_HEAD_INDEXES) with the first.
    pub more_heads: Vec<NamedIndex>,
    /// Whether the nodes' DHT is one more index.
    pub heads_in_dht: bool,
    /// How blobs are stored.
    pub storage: StoragePolicy,
    /// Length of one of the store's epochs, by which it is judged how long blobs are kept.
    pub epoch: Duration,
    /// Whether blobs are stored anew in the background before they run out. Whoever runs the publisher pays.
    pub renew: bool,
    /// The time.
    pub clock: Clock,
    /// The time by which the client's own mesh judges signed records.
    pub mesh_clock: MeshClock,
    /// Most that one turn may cost, in millionths of the node's unit, were its context and its answer full; nodes that
    /// may ask for more are not chosen. 0 leaves those that are free.
    pub max_price: u64,
    /// The quota that turns come under, at nodes where it counts.
    pub quota: Option<Arc<QuotaHolder>>,
    /// How long to wait.
    pub timeouts: Timeouts,
}

impl ClientConfig {
    /// A client with a store and a head index of the caller's, no nodes yet and the system's clock.
    #[must_use]
    pub fn new(
        home: Option<&Path>,
        store: Arc<dyn BlobStore>,
        heads: Arc<dyn HeadIndex>,
        shards: ShardCount,
    ) -> Self {
        Self {
            home: home.map(Path::to_owned),
            passphrase: None,
            shards,
            listen: Vec::new(),
            bootstrap: Vec::new(),
            mdns: false,
            mesh: None,
            store,
            heads,
            heads_name: "the head index".to_owned(),
            more_heads: Vec::new(),
            heads_in_dht: false,
            storage: StoragePolicy {
                open_epochs: DEFAULT_OPEN_EPOCHS,
                closed_epochs: DEFAULT_CLOSED_EPOCHS,
                send_object_to: None,
            },
            epoch: DEFAULT_EPOCH,
            renew: true,
            clock: system_clock(),
            mesh_clock: MeshClock::default(),
            max_price: DEFAULT_MAX_PRICE,
            quota: None,
            timeouts: Timeouts::default(),
        }
    }

    /// Moves both clocks by so many seconds from the system's, as on a machine whose clock is wrong. For tests.
    pub fn shift_clocks(&mut self, seconds: i64) {
        let clock = MeshClock::shifted(seconds);
        self.mesh_clock = clock.clone();
        self.clock = Arc::new(move || clock.now_ms());
    }

    /// A client of stores over HTTP, which have the head index too.
    #[must_use]
    pub fn with_store(home: Option<&Path>, store: HttpStore) -> Self {
        let shards = store.shards();
        let store = Arc::new(store);
        Self::new(home, store.clone(), store, shards)
    }

    /// A client of one store over HTTP. `heads` is the store with the head index, the publisher if none.
    ///
    /// # Errors
    /// [`ClientError::Config`] for a URL or shard count that cannot be used.
    pub fn with_http(
        home: Option<&Path>,
        publisher: &str,
        aggregator: &str,
        heads: Option<&str>,
        shards: u16,
    ) -> Result<Self, ClientError> {
        let shards = ShardCount::new(shards).map_err(|error| ClientError::Config(error.to_string()))?;
        let mut builder = HttpStore::builder(publisher, aggregator, shards);
        if let Some(heads) = heads {
            builder = builder.heads(heads);
        }
        let store = builder.build().map_err(|error| ClientError::Config(error.to_string()))?;
        Ok(Self::with_store(home, store))
    }
}

impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig")
            .field("home", &self.home)
            .field("shards", &self.shards)
            .field("bootstrap", &self.bootstrap)
            .field("mdns", &self.mdns)
            .finish_non_exhaustive()
    }
}
