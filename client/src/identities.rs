//! The libp2p identities of a client: one for finding nodes, and two for each session.
//!
//! The client finds nodes under an identity that says nothing about sessions. Each session sends its turns
//! under an identity of its own, and uses the nodes' DHT as head index under another. So no node can link two
//! sessions by a connection, nor a turn to the place of a head record.
//!
//! All identities are random and exist in memory alone: a new start makes new ones. A turn needs no old
//! identity, because the session key signs orders, acknowledgements and status requests. A caller that gives
//! the client a running mesh, as a relayer does, uses that mesh's identity for everything.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use baton_mesh::{BootstrapStatus, DhtHeads, Mesh, MeshConfig, MeshError, MeshHandle, PeerInfo};
use baton_proto::{
    ids::{HeadIndexKey, SessionId},
    store::{HeadIndex, StoreError, StoreFuture},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, broadcast::error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

/// Most meshes of sessions at once: the gateway serves 64 requests, and each session has up to two meshes.
/// A mesh has a few sockets.
pub(crate) const MAX_SESSION_MESHES: usize = 128;
/// Most idle ones among them: a node allows 128 connections of a subnet, which several clients may share.
const MAX_IDLE_MESHES: usize = 8;
/// A session's mesh that nothing has used for this long is stopped. The session's next turn makes another.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// Bootstrap peers of a session's mesh in the DHT, taken from the client's connections if none are
/// configured.
const MAX_INTRODUCTIONS: usize = 8;
/// How long a new mesh waits for its first member of the DHT.
const JOIN_WAIT: Duration = Duration::from_secs(3);

/// What a session's mesh is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MeshUse {
    /// Frames about the session's turns.
    Turns,
    /// The nodes' DHT as head index.
    Index,
}

type MeshKey = (SessionId, MeshUse);

/// A mesh in use. The table stops no mesh that a caller still holds.
pub(crate) type SessionMesh = Arc<MeshHandle>;

struct MeshSlot {
    mesh: Arc<OnceCell<SessionMesh>>,
    used: Instant,
}

impl MeshSlot {
    /// Whether a caller holds the mesh, or is starting it.
    fn is_in_use(&self) -> bool {
        match self.mesh.get() {
            Some(mesh) => Arc::strong_count(mesh) > 1,
            None => Arc::strong_count(&self.mesh) > 1,
        }
    }
}

/// The meshes of a client.
pub(crate) struct Identities {
    /// Finds nodes.
    base: MeshHandle,
    /// The settings of `base`; none if the caller of the client gave the mesh.
    settings: Option<MeshConfig>,
    slots: Mutex<HashMap<MeshKey, MeshSlot>>,
}

impl Identities {
    /// The identities of a client whose mesh is `base`. Without `settings`, all sessions use `base`.
    pub(crate) fn new(base: MeshHandle, settings: Option<MeshConfig>) -> Self {
        Self { base, settings, slots: Mutex::default() }
    }

    /// Whether sessions have identities of their own.
    pub(crate) fn are_by_session(&self) -> bool {
        self.settings.is_some()
    }

    /// The mesh for a session's turns.
    ///
    /// # Errors
    /// [`MeshError`] when it cannot be started, as when this process has too many open files.
    pub(crate) async fn of_turns(&self, session: SessionId) -> Result<SessionMesh, MeshError> {
        self.mesh((session, MeshUse::Turns)).await
    }

    async fn mesh(&self, key: MeshKey) -> Result<SessionMesh, MeshError> {
        let Some(settings) = &self.settings else { return Ok(Arc::new(self.base.clone())) };
        let cell = self.slot(key)?;
        let started = cell.get_or_try_init(|| async {
            let config = match key.1 {
                MeshUse::Turns => settings.beside(),
                MeshUse::Index => self.index_settings(settings),
            };
            Box::pin(start(config)).await.map(Arc::new)
        });
        started.await.cloned()
    }

    /// The slot of a mesh. Stops the meshes that were idle for long, and those idle for longest among too many.
    fn slot(&self, key: MeshKey) -> Result<Arc<OnceCell<SessionMesh>>, MeshError> {
        let now = Instant::now();
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get_mut(&key) {
            slot.used = now;
            return Ok(slot.mesh.clone());
        }
        let idle = slots.iter().filter(|(_, slot)| !slot.is_in_use());
        let mut idle: Vec<(Instant, MeshKey)> = idle.map(|(key, slot)| (slot.used, *key)).collect();
        idle.sort_by_key(|(used, _)| Reverse(*used));
        for (number, (used, key)) in idle.into_iter().enumerate() {
            if number >= MAX_IDLE_MESHES || now.duration_since(used) >= IDLE {
                slots.remove(&key);
            }
        }
        if slots.len() >= MAX_SESSION_MESHES {
            return Err(MeshError::Config(format!("{MAX_SESSION_MESHES} meshes of sessions are in use")));
        }
        let slot = slots.entry(key).or_insert(MeshSlot { mesh: Arc::default(), used: now });
        Ok(slot.mesh.clone())
    }

    /// Stops the meshes that were idle for long.
    fn sweep(&self, now: Instant) {
        let mut slots = self.slots.lock();
        slots.retain(|_, slot| slot.is_in_use() || now.duration_since(slot.used) < IDLE);
    }

    /// Stops the meshes of a session that ended.
    pub(crate) async fn close(&self, session: SessionId) {
        let closed: Vec<_> = {
            let mut slots = self.slots.lock();
            [MeshUse::Turns, MeshUse::Index].iter().filter_map(|of| slots.remove(&(session, *of))).collect()
        };
        shut_down(closed).await;
    }

    /// Stops all meshes, but not a mesh that the caller of the client gave.
    pub(crate) async fn close_all(&self) {
        let closed: Vec<_> = {
            let mut slots = self.slots.lock();
            slots.drain().map(|(_, slot)| slot).collect()
        };
        shut_down(closed).await;
        if self.settings.is_some() {
            let _ = self.base.shutdown().await;
        }
    }

    /// The settings of a mesh that only uses the DHT: without named peers, those that the client is connected
    /// with introduce it.
    fn index_settings(&self, settings: &MeshConfig) -> MeshConfig {
        let mut config = settings.beside();
        config.discovery = true;
        config.nat = false;
        config.listen.clear();
        config.bootstrap.clone_from(&settings.bootstrap);
        if config.bootstrap.is_empty() {
            let connected = self.base.peers().into_iter().filter(|peer| peer.connected && peer.serves_turns);
            let named = connected.filter_map(|peer| {
                let suffix = baton_mesh::peer_id_of(peer.node)?;
                // The new mesh takes them for named ones.
                let dialable = peer.addrs.iter().find(|address| self.base.may_dial(address))?;
                dialable.clone().with_p2p(suffix).ok()
            });
            config.bootstrap = named.take(MAX_INTRODUCTIONS).collect();
        }
        config
    }
}

/// Stops meshes that were idle for long, until it is cancelled or the identities are dropped.
pub(crate) async fn sweep(identities: Weak<Identities>, cancel: CancellationToken) {
    while cancel.run_until_cancelled(tokio::time::sleep(IDLE)).await.is_some() {
        let Some(identities) = identities.upgrade() else { return };
        identities.sweep(Instant::now());
    }
}

async fn start(config: MeshConfig) -> Result<MeshHandle, MeshError> {
    let seed = Zeroizing::new(baton_keys::secret::random_bytes());
    let (mesh, incoming) = Mesh::spawn(seed, config).await?;
    // No peer can open a turn here.
    drop(incoming);
    Ok(mesh)
}

async fn shut_down(slots: Vec<MeshSlot>) {
    let meshes = slots.iter().filter_map(|slot| slot.mesh.get());
    futures::future::join_all(meshes.map(|mesh| mesh.shutdown())).await;
}

/// The nodes' DHT as head index of one session, under an identity of that session.
pub(crate) struct SessionDht {
    identities: Arc<Identities>,
    session: SessionId,
}

impl SessionDht {
    pub(crate) fn new(identities: Arc<Identities>, session: SessionId) -> Self {
        Self { identities, session }
    }

    /// The DHT, once a member is known or the wait is over.
    async fn joined(&self) -> Result<(DhtHeads, SessionMesh), StoreError> {
        let mesh = self.identities.mesh((self.session, MeshUse::Index)).await;
        let mesh = mesh.map_err(|error| StoreError::Unavailable {
            reason: format!("no network for the DHT: {error}"),
            retry_after: None,
        })?;
        // Without a member, the query itself says so. None comes when each introducing peer has said what it is.
        let settled = || {
            let (network, peers) = (mesh.network(), mesh.peers());
            let has_said = |peer: &PeerInfo| peer.connected && peer.agent.is_some();
            let is_over = |bootstrap: &BootstrapStatus| {
                bootstrap.failure.is_some()
                    || peers.iter().any(|peer| Some(peer.node) == bootstrap.node && has_said(peer))
            };
            network.dht_members > 0 || network.bootstrap.iter().all(is_over)
        };
        let (mut changes, mut events) = (mesh.network_changes(), mesh.peer_events());
        let joining = async {
            while !settled() {
                let goes_on = tokio::select! {
                    changed = changes.changed() => changed.is_ok(),
                    event = events.recv() => !matches!(event, Err(RecvError::Closed)),
                };
                if !goes_on {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(JOIN_WAIT, joining).await;
        Ok((DhtHeads::new(MeshHandle::clone(&mesh)), mesh))
    }
}

impl HeadIndex for SessionDht {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let (heads, _mesh) = self.joined().await?;
            heads.publish(record).await
        })
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let (heads, _mesh) = self.joined().await?;
            heads.resolve(key).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn identities() -> Identities {
        let settings = MeshConfig::dialer("test");
        Identities::new(start(settings.clone()).await.unwrap(), Some(settings))
    }

    fn session(number: u8) -> SessionId {
        SessionId([number; 32])
    }

    #[tokio::test]
    async fn each_session_and_each_use_has_its_own_identity_for_as_long_as_it_lasts() {
        let identities = identities().await;
        let first = identities.of_turns(session(1)).await.unwrap();
        let again = identities.of_turns(session(1)).await.unwrap();
        assert_eq!(first.node_id(), again.node_id());
        let mut nodes = vec![
            identities.base.node_id(),
            first.node_id(),
            identities.mesh((session(1), MeshUse::Index)).await.unwrap().node_id(),
            identities.of_turns(session(2)).await.unwrap().node_id(),
            identities.mesh((session(2), MeshUse::Index)).await.unwrap().node_id(),
        ];
        identities.close(session(1)).await;
        nodes.push(identities.of_turns(session(1)).await.unwrap().node_id());
        nodes.sort();
        nodes.dedup();
        assert_eq!(nodes.len(), 6);
    }

    #[tokio::test]
    async fn a_mesh_of_the_caller_serves_all_sessions() {
        let base = start(MeshConfig::dialer("test")).await.unwrap();
        let identities = Identities::new(base.clone(), None);
        for number in 1..3 {
            assert_eq!(identities.of_turns(session(number)).await.unwrap().node_id(), base.node_id());
        }
    }

    #[tokio::test]
    async fn of_many_idle_meshes_the_last_used_stay_and_a_full_table_is_an_error() {
        let identities = identities().await;
        let held = identities.of_turns(session(0)).await.unwrap();
        let number = |many: usize| SessionId([u8::try_from(many).unwrap(); 32]);
        {
            // Slots without a mesh are idle too.
            let mut slots = identities.slots.lock();
            for many in 1..MAX_SESSION_MESHES {
                let slot = MeshSlot { mesh: Arc::default(), used: Instant::now() };
                slots.insert((number(many), MeshUse::Turns), slot);
            }
        }
        identities.of_turns(number(MAX_SESSION_MESHES)).await.unwrap();
        let has = |identities: &Identities, many: usize| {
            identities.slots.lock().contains_key(&(number(many), MeshUse::Turns))
        };
        assert_eq!(identities.slots.lock().len(), MAX_IDLE_MESHES + 2);
        assert!(has(&identities, 0), "in use");
        assert!(
            !has(&identities, 1) && has(&identities, MAX_SESSION_MESHES - 1),
            "idle for longest, and last"
        );
        let cells: Vec<Arc<OnceCell<SessionMesh>>> =
            (0..MAX_SESSION_MESHES).map(|_| Arc::default()).collect();
        {
            let mut slots = identities.slots.lock();
            for (many, mesh) in cells.iter().enumerate() {
                let slot = MeshSlot { mesh: mesh.clone(), used: Instant::now() };
                slots.insert((number(many), MeshUse::Index), slot);
            }
        }
        let full = identities.of_turns(session(200)).await.map(drop).unwrap_err();
        assert!(full.to_string().contains("128 meshes of sessions are in use"), "{full}");
        drop(held);
    }

    #[tokio::test]
    async fn an_idle_mesh_is_stopped_after_a_while_and_a_held_one_is_not() {
        let identities = identities().await;
        let held = identities.of_turns(session(1)).await.unwrap();
        drop(identities.of_turns(session(2)).await.unwrap());
        identities.sweep(Instant::now());
        assert_eq!(identities.slots.lock().len(), 2);
        identities.sweep(Instant::now() + IDLE);
        let left: Vec<_> = identities.slots.lock().keys().map(|(session, _)| *session).collect();
        assert_eq!(left, [session(1)]);
        drop(held);
    }
}
