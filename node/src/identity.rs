//! The node's identity: its Ed25519 key, its rotating exchange keys, and the signed record of both.
//!
//! `daemon` opens it and refreshes it. The turn service takes secrets, signatures and the record from it.
//! Secrets exist only here: in 0600 files, and in memory that is wiped. The caller provides the clock.

mod backup;
mod ring;
mod rotation;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_keys::{
    SecretSigningKey,
    exchange::ExchangeSecret,
    files::{self, FileSecret, KeyFileError},
    ids::{ExchangeKeyId, NodeId},
};
use baton_mesh::{Multiaddr, PeerId, Reach, peer_id_of, reach_of_address};
use baton_proto::{
    limits::{MAX_RECORD_LIST, MAX_RECORD_TEXT_BYTES, NODE_RECORD_VERSION, VERSION},
    node_record::{ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    signed::{SignedBytes, SignedObject},
};
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroizing;

use crate::service::{ClockMs, NodeIdentity};

pub(crate) use backup::{back_up, back_up_words, restore, restore_words};
pub(crate) use ring::{KeyRing, ROTATE_AFTER_MS};
pub(crate) use rotation::{exchange_keys, retired_keys, rotate_exchange_keys, rotate_node_key};

/// The node key's file in the data directory.
pub(crate) const NODE_KEY_FILE: &str = "node.key";
/// The exchange keys' file in the data directory.
pub(crate) const EXCHANGE_KEYS_FILE: &str = "exchange.keys";
/// The kind in a node key file.
const NODE_KEY_KIND: &str = "node";
/// What the exchange keys' file calls itself in errors.
const RING_KIND: &str = "exchange key";
/// Largest exchange key file: eight keys are below two kilobytes.
const MAX_RING_BYTES: u64 = 8 * 1024;
/// Lifetime of a record. It is short, so that peers soon forget addresses of a departed node. It is half of
/// the rotation time, so that each record names a valid key for its whole life.
pub(crate) const RECORD_LIFETIME_MS: u64 = ROTATE_AFTER_MS / 2;
/// Age at which a record is replaced: half of its lifetime, so that clients with clock skew hold a valid one.
pub(crate) const RECORD_REFRESH_MS: u64 = RECORD_LIFETIME_MS / 2;

/// Why the node's keys could not be loaded or stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// A key file.
    #[error(transparent)]
    NodeKey(#[from] KeyFileError),
    /// The exchange keys' file cannot be read or written.
    #[error("cannot {action} the exchange keys {path}: {source}")]
    Ring {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The parts of the node's record besides keys and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Models served.
    pub(crate) models: Vec<ModelOffer>,
    /// The node's limits.
    pub(crate) limits: NodeLimits,
    /// The node's terms of storage.
    pub(crate) storage: StorageOffer,
    /// Name and version of the software.
    pub(crate) software: String,
}

/// The node's keys and its current record.
pub(crate) struct Identity {
    signing: SecretSigningKey,
    ring_path: PathBuf,
    clock: ClockMs,
    profile: Profile,
    ring: RwLock<KeyRing>,
    record: RwLock<Arc<SignedObject<NodeRecord>>>,
    /// Held during a whole refresh, including the file write, so that two refreshes never interleave. Readers
    /// do not take it.
    refreshing: Mutex<RefreshState>,
}

/// State of the last refresh.
#[derive(Default)]
struct RefreshState {
    addresses: Vec<String>,
    /// Whether the last write of the exchange keys failed.
    unsaved: bool,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("node", &self.node_id()).finish_non_exhaustive()
    }
}

/// Creates a node key in the data directory, unless there is one. Returns whether it created one.
///
/// # Errors
/// [`KeyFileError`] when it cannot be written.
pub(crate) fn create_node_key(data_dir: &Path) -> Result<bool, KeyFileError> {
    let path = data_dir.join(NODE_KEY_FILE);
    if fs::exists(&path).unwrap_or(true) {
        return Ok(false);
    }
    files::create(&path, NODE_KEY_KIND, &FileSecret::generate(), None)?;
    Ok(true)
}

/// Reads the node key.
///
/// # Errors
/// [`KeyFileError`], by cause.
pub(crate) fn load_node_key(data_dir: &Path) -> Result<SecretSigningKey, KeyFileError> {
    let secret = files::load(&data_dir.join(NODE_KEY_FILE), NODE_KEY_KIND, None)?;
    Ok(SecretSigningKey::from_seed(secret.expose()))
}

/// The libp2p peer ID of a node key.
///
/// # Panics
/// Never: the public key of a secret key is a point of the curve.
#[must_use]
pub(crate) fn peer_id(node: NodeId) -> PeerId {
    peer_id_of(node).expect("the public key of a secret key is a valid point")
}

impl Identity {
    /// Loads the node key and the exchange keys, creates missing exchange keys, and signs a first record
    /// without addresses. Blocking.
    ///
    /// # Errors
    /// [`IdentityError`], by cause.
    pub(crate) fn open(data_dir: &Path, profile: Profile, clock: ClockMs) -> Result<Self, IdentityError> {
        let signing = load_node_key(data_dir)?;
        let ring_path = data_dir.join(EXCHANGE_KEYS_FILE);
        let mut ring = load_ring(&ring_path)?;
        let now_ms = clock();
        if ring.advance(now_ms) {
            store_ring(&ring_path, &ring)?;
        }
        let record = Arc::new(sign_record(&signing, &profile, &ring, &[], now_ms, 0));
        Ok(Self {
            signing,
            ring_path,
            clock,
            profile,
            ring: RwLock::new(ring),
            record: RwLock::new(record),
            refreshing: Mutex::default(),
        })
    }

    /// The node's ID: its Ed25519 public key.
    #[must_use]
    pub(crate) fn node_id(&self) -> NodeId {
        self.signing.node_id()
    }

    /// The seed, for the libp2p identity.
    #[must_use]
    pub(crate) fn seed(&self) -> Zeroizing<[u8; 32]> {
        self.signing.expose_seed()
    }

    /// The current signed record.
    #[must_use]
    pub(crate) fn current_record(&self) -> Arc<SignedObject<NodeRecord>> {
        self.record.read().clone()
    }

    /// Signs a new record with the same keys and addresses, so that peers see that the node is alive.
    pub(crate) fn renew_record(&self) -> Arc<SignedObject<NodeRecord>> {
        let last = self.refreshing.lock();
        self.publish(self.keys(), &last.addresses)
    }

    fn keys(&self) -> KeyRing {
        self.ring.read().clone()
    }

    /// Signs a record of these keys and addresses, and makes all of them the current ones.
    fn publish(&self, ring: KeyRing, addresses: &[String]) -> Arc<SignedObject<NodeRecord>> {
        let sequence = self.current_record().sequence + 1;
        let now_ms = (self.clock)();
        let signed = sign_record(&self.signing, &self.profile, &ring, addresses, now_ms, sequence);
        let signed = Arc::new(signed);
        *self.ring.write() = ring;
        *self.record.write() = signed.clone();
        signed
    }

    /// Rotates exchange keys that are due. Signs a new record if keys or addresses changed, or if half of the
    /// record's life is over. Returns whether there is a new record. Blocking: it may write a file.
    ///
    /// # Errors
    /// [`IdentityError::Ring`] when the keys could not be written. The node then continues with the keys in
    /// memory, and the next call tries again.
    pub(crate) fn refresh(&self, addresses: &[Multiaddr]) -> Result<bool, IdentityError> {
        let mut last = self.refreshing.lock();
        let now_ms = (self.clock)();
        let mut ring = self.keys();
        let rotated = ring.advance(now_ms);
        let stored = if rotated || last.unsaved { store_ring(&self.ring_path, &ring) } else { Ok(()) };
        last.unsaved = stored.is_err();
        let record = self.current_record();
        let addresses = publishable(addresses);
        let aged = now_ms < record.issued_ms || now_ms - record.issued_ms >= RECORD_REFRESH_MS;
        let due = rotated || aged || last.addresses != addresses;
        if due {
            self.publish(ring, &addresses);
            last.addresses = addresses;
        }
        stored.map(|()| due)
    }
}

fn load_ring(path: &Path) -> Result<KeyRing, IdentityError> {
    let Some(text) = files::read_secret(path, RING_KIND, MAX_RING_BYTES)? else {
        return Ok(KeyRing::default());
    };
    let ring = std::str::from_utf8(&text).ok().and_then(KeyRing::parse);
    ring.ok_or_else(|| IdentityError::Ring {
        action: "read",
        path: path.to_owned(),
        source: io::Error::other("it is damaged; remove it, and new keys are made at the next start"),
    })
}

/// Writes the exchange keys. The old file's secrets are destroyed: a disk that is read later opens no recorded
/// exchange.
fn store_ring(path: &Path, ring: &KeyRing) -> Result<(), IdentityError> {
    files::replace_secret(path, ring.render().as_bytes()).map_err(|source| IdentityError::Ring {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// The addresses to publish. Includes loopback addresses only if there are no others (a network on one
/// machine).
fn publishable(addresses: &[Multiaddr]) -> Vec<String> {
    let is_loopback = |address: &&Multiaddr| reach_of_address(address) == Some(Reach::Loopback);
    let has_others = !addresses.iter().all(|address| is_loopback(&address));
    let mut texts: Vec<String> = Vec::new();
    for address in addresses.iter().filter(|address| !(has_others && is_loopback(address))) {
        let text = address.to_string();
        if text.len() <= MAX_RECORD_TEXT_BYTES && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.truncate(MAX_RECORD_LIST);
    texts
}

/// Signs a record. The sequence is at least the time, so it rises over restarts without being stored.
fn sign_record(
    signing: &SecretSigningKey,
    profile: &Profile,
    ring: &KeyRing,
    addresses: &[String],
    now_ms: u64,
    least_sequence: u64,
) -> SignedObject<NodeRecord> {
    let record = NodeRecord {
        version: NODE_RECORD_VERSION,
        node: signing.node_id(),
        sequence: now_ms.max(least_sequence),
        addresses: addresses.to_vec(),
        keys: ring.published(now_ms),
        models: profile.models.clone(),
        limits: profile.limits,
        storage: profile.storage,
        versions: vec![VERSION],
        software: profile.software.clone(),
        issued_ms: now_ms,
        expires_ms: now_ms.saturating_add(RECORD_LIFETIME_MS),
    };
    SignedObject::sign(record, signing)
}

impl NodeIdentity for Identity {
    fn signing_key(&self) -> &SecretSigningKey {
        &self.signing
    }

    fn exchange_secret(&self, key: &ExchangeKeyId, now_ms: u64) -> Option<ExchangeSecret> {
        self.ring.read().secret(key, now_ms).cloned()
    }

    fn record(&self) -> SignedBytes {
        self.current_record().bytes().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::PermissionsExt as _,
        sync::atomic::{AtomicU64, Ordering},
    };

    use baton_proto::{ids::ModelId, receipt::EngineKind};

    use super::*;

    const HOUR: u64 = 3600 * 1000;
    const START: u64 = 400_000 * HOUR;

    struct Node {
        folder: tempfile::TempDir,
        time: Arc<AtomicU64>,
    }

    impl Node {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            assert!(create_node_key(folder.path()).unwrap());
            Self { folder, time: Arc::new(AtomicU64::new(START)) }
        }

        fn open(&self) -> Identity {
            let time = self.time.clone();
            Identity::open(self.folder.path(), profile(), Arc::new(move || time.load(Ordering::SeqCst)))
                .unwrap()
        }

        fn set(&self, now_ms: u64) {
            self.time.store(now_ms, Ordering::SeqCst);
        }
    }

    fn profile() -> Profile {
        let offer = ModelOffer {
            model: ModelId([3; 32]),
            name: "echo".to_owned(),
            engine: EngineKind::Echo,
            context_tokens: 4096,
            input_price: 1,
            output_price: 2,
        };
        let limits = NodeLimits { slots: 2, queue: 4, turns_per_minute: 60, max_output_tokens: 512 };
        let storage = StorageOffer::default();
        Profile { models: vec![offer], limits, storage, software: "baton-node/0.1.0".to_owned() }
    }

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_record_verifies_and_offers_a_key_whose_secret_the_node_holds() {
        let node = Node::new();
        let identity = node.open();
        identity.refresh(&addresses(&["/ip4/10.0.0.1/tcp/4001"])).unwrap();
        let record = SignedObject::<NodeRecord>::verify_encoded(&identity.current_record().encode()).unwrap();
        assert_eq!(record.node, identity.node_id());
        assert_eq!(record.addresses, ["/ip4/10.0.0.1/tcp/4001"]);
        assert_eq!((record.models.clone(), record.limits), (profile().models, profile().limits));
        let key = record.current_key(START).unwrap();
        assert_eq!(identity.exchange_secret(&key.id(), START).unwrap().public_key(), *key);
        assert!(identity.exchange_secret(&ExchangeKeyId([9; 32]), START).is_none());
    }

    #[test]
    fn a_restart_keeps_the_exchange_keys_in_a_private_file() {
        let node = Node::new();
        let first = node.open().current_record().keys.clone();
        node.set(START + HOUR);
        let again = node.open();
        assert_eq!(again.current_record().keys, first);
        assert!(again.exchange_secret(&first[0].key.id(), START).is_some());
        let ring = node.folder.path().join(EXCHANGE_KEYS_FILE);
        assert_eq!(fs::metadata(ring).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn records_follow_time_keys_and_addresses_with_rising_sequence() {
        let node = Node::new();
        let identity = node.open();
        let here = addresses(&["/ip4/10.0.0.1/tcp/1"]);
        assert!(identity.refresh(&here).unwrap());
        assert!(!identity.refresh(&here).unwrap(), "nothing changed");
        let mut last = identity.current_record();
        let moved = addresses(&["/ip4/10.0.0.2/tcp/1"]);
        assert!(identity.refresh(&moved).unwrap(), "another address");
        for hours in 1..60 {
            node.set(START + hours * HOUR);
            identity.refresh(&moved).unwrap();
            let record = identity.current_record();
            assert!(record.current_key(START + hours * HOUR).is_ok(), "{hours}");
            if record.issued_ms != last.issued_ms {
                assert!(record.sequence > last.sequence && record.issued_ms < last.expires_ms, "{hours}");
                last = record;
            }
        }
        let renewed = identity.renew_record();
        assert!(renewed.sequence > last.sequence && renewed.addresses == last.addresses);
        assert_eq!((&renewed.keys, &renewed.models), (&last.keys, &last.models));
        let sequence = node.open().current_record().sequence;
        assert!(sequence >= last.sequence, "also over a restart");
    }

    #[test]
    fn old_secrets_leave_memory_and_the_old_file_is_destroyed() {
        let node = Node::new();
        let identity = node.open();
        let old = identity.current_record().keys[0].key.id();
        let secret = hex::encode(identity.exchange_secret(&old, START).unwrap().expose().as_slice());
        let ring = node.folder.path().join(EXCHANGE_KEYS_FILE);
        let before = fs::read_to_string(&ring).unwrap();
        assert!(before.contains(&secret));
        // The blocks of the old file, which a reader of the disk could find.
        let blocks = node.folder.path().join("blocks");
        fs::hard_link(&ring, &blocks).unwrap();
        node.set(START + 25 * HOUR + 1);
        assert!(identity.refresh(&[]).unwrap(), "the keys are due");
        assert!(identity.exchange_secret(&old, START).is_none());
        assert!(!fs::read_to_string(&ring).unwrap().contains(&secret));
        assert_eq!(fs::read(&blocks).unwrap(), vec![0; before.len()]);
    }

    #[test]
    fn a_full_disk_is_reported_and_the_node_goes_on_with_fresh_keys() {
        let node = Node::new();
        let identity = node.open();
        let folder = node.folder.path().join("away");
        let broken = Identity { ring_path: folder.join("ring"), ..identity };
        node.set(START + 13 * HOUR);
        assert!(matches!(broken.refresh(&[]), Err(IdentityError::Ring { action: "write", .. })));
        let record = broken.current_record();
        let key = record.current_key(START + 13 * HOUR).unwrap();
        assert!(broken.exchange_secret(&key.id(), START + 13 * HOUR).is_some());
        fs::create_dir(&folder).unwrap();
        assert!(!broken.refresh(&[]).unwrap(), "the same record");
        assert!(fs::read_to_string(folder.join("ring")).unwrap().starts_with("baton-exchange-keys"));
    }

    #[test]
    fn refuses_rings_that_are_damaged_or_readable_by_others() {
        let node = Node::new();
        node.open();
        let path = node.folder.path().join(EXCHANGE_KEYS_FILE);
        let open = || Identity::open(node.folder.path(), profile(), Arc::new(|| START));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(open(), Err(IdentityError::NodeKey(KeyFileError::Permissions { mode: 0o644, .. }))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for damaged in [&b"nonsense"[..], b"\xff\xfe", b""] {
            fs::write(&path, damaged).unwrap();
            assert!(open().unwrap_err().to_string().contains("remove it"), "{damaged:?}");
        }
    }

    #[test]
    fn loopback_is_published_only_where_there_is_nothing_else() {
        let loopback = addresses(&["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1", "/ip4/127.0.0.1/tcp/1"]);
        assert_eq!(publishable(&loopback), ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"]);
        let mixed =
            addresses(&["/ip4/127.0.0.1/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1"]);
        assert_eq!(publishable(&mixed), ["/ip4/10.0.0.1/tcp/1"]);
        let many: Vec<_> =
            (1..100).map(|port| format!("/ip4/10.0.0.1/tcp/{port}").parse().unwrap()).collect();
        assert_eq!(publishable(&many).len(), MAX_RECORD_LIST);
    }
}
