//! Configuration of a client. Binaries read it from flags and files; nothing else here reads the clock.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_mesh::{MeshClock, MeshHandle, Multiaddr};
use baton_proto::{
    node_record::MAX_EPOCHS,
    store::{BlobStore, HeadIndex},
    turn::StoragePolicy,
};
#[cfg(not(target_family = "wasm"))]
use baton_walrus_client::HttpStore;
use baton_walrus_client::ShardCount;
use zeroize::Zeroizing;

#[cfg(not(target_family = "wasm"))]
use crate::error::ClientError;
use crate::{
    clock::{Clock, system_clock},
    network::{choose::DEFAULT_MAX_PRICE, heads::NamedIndex, quota::QuotaHolder},
    timeouts::Timeouts,
};

/// Epochs for the blob of an open segment. Each turn buys the blob anew, so this is how long a session may
/// rest: ten weeks on Walrus's mainnet, five days on its testnet.
pub const DEFAULT_OPEN_EPOCHS: u32 = 5;
/// Epochs for a full segment's blob: the maximum that Walrus sells. A node that offers less stores it for
/// less, and this client renews it.
pub const DEFAULT_CLOSED_EPOCHS: u32 = MAX_EPOCHS;
/// Length of an epoch of Walrus's mainnet; an epoch of its testnet is a day.
pub const DEFAULT_EPOCH: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Configuration of a [`Client`](crate::Client).
#[derive(Clone)]
pub struct ClientConfig {
    /// Folder of the device key and the journals (made with mode 0700). None keeps sessions in memory only.
    pub home: Option<PathBuf>,
    /// Passphrase of the device key; a new key is sealed under it.
    pub passphrase: Option<Zeroizing<String>>,
    /// Shard count of new sessions' blob IDs if the store announces none: 1000 for Walrus itself.
    pub shards: ShardCount,
    /// Addresses to listen on; none for a client that only dials.
    pub listen: Vec<Multiaddr>,
    /// Bootstrap nodes, best with a `/p2p/` suffix.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether nodes other than the bootstrap nodes may serve too, if any are named.
    pub discover: bool,
    /// Whether to find nodes on the local network by multicast.
    pub mdns: bool,
    /// A running mesh to use instead of starting one; `listen`, `bootstrap` and `mdns` are then unused.
    pub mesh: Option<MeshHandle>,
    /// The blob store.
    pub store: Arc<dyn BlobStore>,
    /// The first head index.
    pub heads: Arc<dyn HeadIndex>,
    /// Name of this index for users.
    pub heads_name: String,
    /// More head indexes, so that no single index can lose or withhold head records: at most
    /// [`MAX_HEAD_INDEXES`](crate::MAX_HEAD_INDEXES) with the first.
    pub more_heads: Vec<NamedIndex>,
    /// Whether the nodes' DHT is also a head index.
    pub heads_in_dht: bool,
    /// How blobs are stored.
    pub storage: StoragePolicy,
    /// Length of one of the store's epochs, to estimate how long blobs are stored.
    pub epoch: Duration,
    /// Whether blobs are renewed in the background before they expire. The publisher's operator pays.
    pub renew: bool,
    /// The time.
    pub clock: Clock,
    /// The time by which the client's own mesh checks signed records.
    pub mesh_clock: MeshClock,
    /// The most that one turn may cost with full context, full answer and storage, in millionths of the
    /// node's unit.
    /// Nodes that may ask for more are not chosen; 0 leaves only free nodes.
    pub max_price: u64,
    /// The quota for turns, at nodes that accept it.
    pub quota: Option<Arc<QuotaHolder>>,
    /// Whether a session that another process has open, or whose file cannot be written, is opened to read it.
    /// Every change is then refused, with [`ClientError::InUse`] or the file's error. Otherwise opening it is
    /// refused.
    pub read_in_use: bool,
    /// How long to wait.
    pub timeouts: Timeouts,
}

impl ClientConfig {
    /// A client with the given store and head index, no nodes yet and the system's clock.
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
            discover: true,
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
            read_in_use: false,
            timeouts: Timeouts::default(),
        }
    }

    /// Shifts both clocks by this many seconds, as on a machine whose clock is wrong. For tests.
    pub fn shift_clocks(&mut self, seconds: i64) {
        let clock = MeshClock::shifted(seconds);
        self.mesh_clock = clock.clone();
        self.clock = Arc::new(move || clock.now_ms());
    }

    /// A client with HTTP stores that are also the head index.
    #[cfg(not(target_family = "wasm"))]
    #[must_use]
    pub fn with_store(home: Option<&Path>, store: HttpStore) -> Self {
        let shards = store.shards();
        let store = Arc::new(store);
        Self::new(home, store.clone(), store, shards)
    }

    /// A client with one HTTP store. `heads` is the store with the head index; default is the publisher.
    ///
    /// # Errors
    /// [`ClientError::Config`] for a URL or shard count that cannot be used.
    #[cfg(not(target_family = "wasm"))]
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
