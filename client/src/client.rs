//! The client: its home, its sessions, its network, and its background tasks.

pub(crate) mod home;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_keys::{files::FileSecret, session::SessionRoot};
use baton_mesh::{DhtHeads, Mesh, MeshConfig, MeshHandle};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::HistoryTurn,
    head::DeviceLease,
    ids::{DeviceId, LinkHash, NodeId, SessionId},
    link::BranchPoint,
    memory::MemoryItem,
    receipt::{ProgressNote, Receipt},
    record::Message,
    turn::{ResumePrefix, Sampling},
};
use baton_walrus_client::ShardCount;
use tokio::{sync::broadcast, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use crate::{
    config::ClientConfig,
    error::ClientError,
    evidence::{Equivocation, FOUND_QUEUE},
    index_status::IndexStatus,
    network::{
        heads::{HeadIndexes, NamedIndex},
        nodes::{Directory, NodeInfo, Setup, maintenance},
    },
    session::{
        journal::{self, EXTENSION, JournalLocation, JournalLog, file_error},
        lifetime,
        open_session::Session,
        state::{Entry, SessionHeader, State, StorageTerms, TurnMeta},
    },
};

/// A client. Clones share everything.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    /// Seals the session roots on the disk.
    pub(crate) secret: FileSecret,
    /// Location of the journals.
    pub(crate) journals: JournalLocation,
    open: Mutex<HashMap<SessionId, Arc<Session>>>,
    pub(crate) directory: Arc<Directory>,
    /// The maintenance task of the directory; it ends with `cancel`.
    maintenance: Mutex<Option<JoinHandle<()>>>,
    /// All head indexes as one.
    pub(crate) heads: Arc<HeadIndexes>,
    pub(crate) tasks: TaskTracker,
    pub(crate) cancel: CancellationToken,
    /// Announces each node found to have signed two links for one turn.
    pub(crate) found: broadcast::Sender<Equivocation>,
    owns_mesh: bool,
}

/// A session as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session.
    pub id: SessionId,
    /// Accepted turns.
    pub turns: u64,
    /// Hash of the last link; the genesis' before the first turn.
    pub head: LinkHash,
    /// When it was created here, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When the last turn was accepted, in milliseconds since the Unix epoch.
    pub last_ms: Option<u64>,
    /// The node of the last turn.
    pub last_node: Option<NodeId>,
    /// Whether a turn is unfinished.
    pub pending: bool,
    /// The part of the pending turn's answer that arrived; display only.
    pub pending_text: String,
    /// Turns whose blob is not confirmed in the store, without the turns that a later blob also holds.
    pub unstored: u64,
    /// Earliest end of storage among its blobs, in milliseconds since the Unix epoch; none before anything is
    /// stored.
    pub kept_until_ms: Option<u64>,
    /// The last trouble with the head index: a rollback or a fork.
    pub trouble: Option<ErrorCode>,
    /// Whether the head index had turns that are missing here: [`Client::reconcile`] merges them.
    pub diverged: bool,
    /// Incomplete bytes at the journal's end, until the session is next compared with the head index: turns
    /// may be missing here.
    pub torn_end_bytes: u64,
    /// Turns displaced by another device's that wait to be replayed.
    pub waiting_replays: u64,
    /// This device's id in the session.
    pub device: DeviceId,
    /// Other devices that may be writing the session, as the head index reported.
    pub others: Vec<DeviceLease>,
    /// State of each head index at the last look; empty before the first.
    pub indexes: Vec<IndexStatus>,
}

/// An accepted turn with its status.
#[derive(Debug, Clone)]
pub struct TurnView {
    /// Link and text.
    pub turn: HistoryTurn,
    /// The node's signed statement; absent in a session recovered from its root.
    pub receipt: Option<SignedObject<Receipt>>,
    /// The beginning of the answer, if another node made it and did not finish.
    pub resumed: Option<ResumePrefix>,
    /// The signed progress of those nodes, oldest first.
    pub notes: Vec<SignedObject<ProgressNote>>,
    /// Items of a relayer's memory that the node used; only this client keeps them.
    pub memory: Vec<MemoryItem>,
    /// Whether the blob is confirmed in the store.
    pub stored: bool,
    /// Whether the author has the acknowledgement.
    pub acked: bool,
    /// The displaced turn that this turn replays.
    pub replay_of: Option<ReplayOrigin>,
}

/// The former position of a displaced turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayOrigin {
    /// Its former position in the chain.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
}

/// The options of a new session.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// Pinned system text: travels with every turn, is never cut and never stored.
    pub system: Vec<Message>,
    /// The parent, if the session is a branch.
    pub branch: Option<BranchPoint>,
    /// The root to use; a random one if none.
    pub root: Option<SessionRoot>,
}

impl NewSession {
    /// A session with one system message.
    #[must_use]
    pub fn with_system(text: impl Into<String>) -> Self {
        let system = vec![Message::new(baton_proto::record::Role::System, text)];
        Self { system, ..Self::default() }
    }
}

impl Client {
    /// Opens the home folder and starts the network. Creates the folder and the device key if they are
    /// missing.
    ///
    /// # Errors
    /// [`ClientError::KeyFile`] for a wrong passphrase or permissions, [`ClientError::PassphraseUnused`],
    /// [`ClientError::File`], [`ClientError::Mesh`].
    pub async fn open(config: ClientConfig) -> Result<Self, ClientError> {
        let (home, passphrase) = (config.home.clone(), config.passphrase.clone());
        let now_ms = (config.clock)();
        let home::HomeContents { secret, journals, reputation_file, reputation } = match home {
            None => home::HomeContents::in_memory(),
            Some(home) => crate::stack_wipe::spawn_blocking(move || home::open(&home, passphrase, now_ms))
                .await
                .map_err(|_| ClientError::TaskEnded)??,
        };
        let (mesh, owns_mesh) = match &config.mesh {
            Some(mesh) => (mesh.clone(), false),
            None => (start_mesh(&config).await?, true),
        };
        let may_find = !owns_mesh || config.mdns || !config.bootstrap.is_empty() || !config.listen.is_empty();
        let heads = Arc::new(head_indexes(&config, &mesh)?);
        let (clock, timeouts, expected) = (config.clock.clone(), config.timeouts, config.bootstrap.len());
        let store = config.store.clone();
        let setup = Setup { clock, store, timeouts, expected, may_find, reputation, reputation_file };
        let directory = Arc::new(Directory::new(mesh, setup));
        let cancel = CancellationToken::new();
        let maintenance = tokio::spawn(maintenance::run(Arc::downgrade(&directory), cancel.clone()));
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                secret,
                journals,
                open: Mutex::new(HashMap::new()),
                directory,
                maintenance: Mutex::new(Some(maintenance)),
                heads,
                tasks: TaskTracker::new(),
                cancel,
                found: broadcast::channel(FOUND_QUEUE).0,
                owns_mesh,
            }),
        })
    }

    /// A separate client on the same network, with the same knowledge of nodes, for one session whose journal
    /// is in `log`. A relayer uses it to drive a session for the length of a request. [`Client::shutdown`] of
    /// that client wipes its session's keys; the network and this client stay as they are.
    #[must_use]
    pub fn log_client(&self, log: Arc<dyn JournalLog>) -> Self {
        let config = ClientConfig { home: None, passphrase: None, renew: false, ..self.inner.config.clone() };
        self.sharing_network(
            config,
            FileSecret::generate(),
            JournalLocation::Log(log),
            self.inner.heads.clone(),
        )
    }

    /// A separate client with this client's network and knowledge of nodes.
    pub(crate) fn sharing_network(
        &self,
        config: ClientConfig,
        secret: FileSecret,
        journals: JournalLocation,
        heads: Arc<HeadIndexes>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                secret,
                journals,
                open: Mutex::new(HashMap::new()),
                directory: self.inner.directory.clone(),
                // The client that opened the directory maintains it.
                maintenance: Mutex::new(None),
                heads,
                tasks: TaskTracker::new(),
                cancel: CancellationToken::new(),
                found: self.inner.found.clone(),
                owns_mesh: false,
            }),
        }
    }

    /// Opens the session of a log client's log and resumes its unfinished background work; none if the log is
    /// empty.
    ///
    /// # Errors
    /// [`ClientError::Log`]; [`ClientError::JournalDamaged`], also for another session's log.
    pub async fn open_log(&self, root: &SessionRoot) -> Result<Option<SessionId>, ClientError> {
        let JournalLocation::Log(log) = &self.inner.journals else { return Ok(None) };
        let (log, root) = (log.clone(), root.clone());
        let opened = crate::stack_wipe::spawn_blocking(move || Session::open_log(&log, &root));
        let Some(session) = opened.await.map_err(|_| ClientError::TaskEnded)?? else { return Ok(None) };
        let session = Arc::new(session);
        self.lock().insert(session.id, session.clone());
        self.spawn_background_work(session.clone());
        Ok(Some(session.id))
    }

    /// Compacts a log client's log once it has grown; returns whether it did. The new log holds only the
    /// entries that the next turn needs; earlier turns are then in the store alone.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn runs; [`ClientError::Log`], after which the session must be opened
    /// anew.
    pub async fn compact_log(&self, id: SessionId) -> Result<bool, ClientError> {
        if !matches!(self.inner.journals, JournalLocation::Log(_)) {
            return Ok(false);
        }
        let session = self.open_session(id).await?;
        let _permit = session.begin()?;
        let (journals, secret) = (self.inner.journals.clone(), self.inner.secret.clone());
        let compacted = crate::stack_wipe::spawn_blocking(move || session.compact(&journals, &secret));
        compacted.await.map_err(|_| ClientError::TaskEnded)?
    }

    /// The messages of the unfinished turn, if there is one.
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn pending_messages(&self, id: SessionId) -> Result<Option<Vec<Message>>, ClientError> {
        let session = self.open_session(id).await?;
        Ok(session.read(|state| state.unanswered().map(|turn| turn.messages.clone())))
    }

    /// The sampling of the unfinished turn, if there is one.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn pending_sampling(&self, id: SessionId) -> Result<Option<Sampling>, ClientError> {
        let session = self.open_session(id).await?;
        Ok(session.read(|state| state.unanswered().map(|turn| turn.sampling.clone())))
    }

    /// Stops the background work and the network, after waiting up to `grace` for the work to finish. The
    /// work is acknowledgements, blob IDs, head records and stores. Unfinished work is in the journals and
    /// resumes at the next start.
    pub async fn shutdown(&self, grace: Duration) {
        self.inner.tasks.close();
        let _ = tokio::time::timeout(grace, self.inner.tasks.wait()).await;
        self.inner.cancel.cancel();
        self.inner.tasks.wait().await;
        let maintenance = self.inner.maintenance.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(maintenance) = maintenance
            && maintenance.await.is_err()
        {
            tracing::warn!("the task that looks after nodes ended early");
        }
        let open: Vec<Arc<Session>> = self.lock().drain().map(|(_, session)| session).collect();
        // A write of a turn dropped midway may still run; the files are free only after it.
        let closed =
            crate::stack_wipe::spawn_blocking(move || open.iter().for_each(|session| session.close()));
        if closed.await.is_err() {
            tracing::warn!("the sessions were not closed properly");
        }
        if self.inner.owns_mesh {
            let _ = self.inner.directory.mesh().shutdown().await;
        }
    }

    /// The network handle, for callers that need it themselves.
    #[must_use]
    pub fn mesh(&self) -> &MeshHandle {
        self.inner.directory.mesh()
    }

    /// The nodes found so far, with their verified records; waits for the first up to the discovery timeout.
    pub async fn nodes(&self) -> Vec<NodeInfo> {
        let mut nodes = self.inner.directory.refresh().await;
        nodes.sort_by_key(|node| node.record.node);
        nodes
    }

    /// Creates a session.
    ///
    /// # Errors
    /// [`ClientError::SessionExists`] for a root that is already here, [`ClientError::File`],
    /// [`ClientError::MessageTooLong`] for system text that fits no turn.
    pub async fn new_session(&self, new: NewSession) -> Result<SessionId, ClientError> {
        crate::event::check_texts(&new.system)?;
        let root = new.root.unwrap_or_else(SessionRoot::generate);
        let header = SessionHeader {
            n_shards: self.inner.config.shards.get(),
            branch: new.branch,
            device_id: new_device(),
            created_ms: self.now_ms(),
            system: new.system,
        };
        let id = self.create(root, header, Vec::new(), false).await?;
        // A new session has no other writer yet.
        self.open_session(id).await?.note_look(self.now_ms(), true);
        Ok(id)
    }

    /// Creates a session with entries that follow its opening. With `replace_damaged`, a damaged journal of
    /// the session is quarantined; any other journal is an error.
    pub(crate) async fn create(
        &self,
        root: SessionRoot,
        header: SessionHeader,
        entries: Vec<Entry>,
        replace_damaged: bool,
    ) -> Result<SessionId, ClientError> {
        let id = root.session_id();
        let client = self.clone();
        let created = crate::stack_wipe::spawn_blocking(move || {
            let replaced = match client.find(&id)? {
                None => None,
                Some(path) if replace_damaged => Some(client.quarantine_damaged(id, path)?),
                Some(_) => return Err(ClientError::SessionExists(id)),
            };
            Session::create((&client.inner.journals, &client.inner.secret), root, header, entries)
                .inspect_err(|_| {
                    if let Some(replaced) = &replaced {
                        replaced.put_back();
                    }
                })
        });
        let session = created.await.map_err(|_| ClientError::TaskEnded)??;
        self.lock().insert(id, Arc::new(session));
        Ok(id)
    }

    /// The status of a session.
    ///
    /// # Errors
    /// [`ClientError::UnknownSession`], and as opening its journal.
    pub async fn session(&self, id: SessionId) -> Result<SessionInfo, ClientError> {
        Ok(info(&*self.open_session(id).await?, self.terms()))
    }

    /// The accepted turns of a session, oldest first.
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn history(&self, id: SessionId) -> Result<Vec<TurnView>, ClientError> {
        let session = self.open_session(id).await?;
        Ok(session.read(|state| {
            let turns = state.history.iter().zip(&state.meta);
            turns.map(|turn| view(state, turn)).collect()
        }))
    }

    /// The last accepted turn of a session; none before the first.
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn last_turn(&self, id: SessionId) -> Result<Option<TurnView>, ClientError> {
        Ok(self.open_session(id).await?.read(|state| state.last().map(|turn| view(state, turn))))
    }

    /// Turn reads from memory since the session was opened, repeated reads included. The reads that one more
    /// turn adds must not depend on the session's length; benchmarks show it.
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn turn_reads(&self, id: SessionId) -> Result<u64, ClientError> {
        Ok(self.open_session(id).await?.read(State::turn_reads))
    }

    /// The pinned system text of a session, with the definitions of its tools ([`baton_proto::tools`]).
    ///
    /// # Errors
    /// As [`Client::session`].
    pub async fn system(&self, id: SessionId) -> Result<Vec<Message>, ClientError> {
        Ok(self.open_session(id).await?.read(|state| state.system.to_vec()))
    }

    /// Replaces the pinned system text of a session, from the next turn on. Does nothing if the text is the
    /// same.
    ///
    /// # Errors
    /// [`ClientError::PendingTurn`] while a turn is not finished; as [`Client::session`].
    pub async fn set_system(&self, id: SessionId, system: Vec<Message>) -> Result<(), ClientError> {
        crate::event::check_texts(&system)?;
        let session = self.open_session(id).await?;
        if session.read(|state| *state.system == system) {
            return Ok(());
        }
        let _permit = session.begin()?;
        if session.read(State::has_open_message) {
            return Err(ClientError::PendingTurn);
        }
        session.record(vec![Entry::System(system)]).await
    }

    /// Closes a session's file, so that another process may open it. Does nothing while a turn runs.
    pub fn release(&self, id: SessionId) {
        let mut open = self.lock();
        if let Some(session) = open.get(&id).filter(|session| session.begin().is_ok()) {
            session.close();
            open.remove(&id);
        }
    }

    /// The open session. Opens it if needed, and resumes its unfinished background work.
    pub(crate) async fn open_session(&self, id: SessionId) -> Result<Arc<Session>, ClientError> {
        if let Some(session) = self.lock().get(&id) {
            return Ok(session.clone());
        }
        let client = self.clone();
        let opened = crate::stack_wipe::spawn_blocking(move || {
            let path = client.find(&id)?.ok_or_else(|| ClientError::UnknownSession(id.to_string()))?;
            let mut open = client.lock();
            // Another task may have been first; the file's lock would refuse a second writer.
            if let Some(session) = open.get(&id) {
                return Ok((session.clone(), false));
            }
            let session = Arc::new(Session::open(&path, &client.inner.secret)?);
            open.insert(id, session.clone());
            Ok::<_, ClientError>((session, true))
        });
        let (session, first) = opened.await.map_err(|_| ClientError::TaskEnded)??;
        if first {
            self.spawn_background_work(session.clone());
        }
        Ok(session)
    }

    /// The journal of a session. Blocking.
    pub(crate) fn find(&self, id: &SessionId) -> Result<Option<PathBuf>, ClientError> {
        if let Some(session) = self.lock().get(id)
            && self.inner.journals.folder().is_none()
        {
            // A session in memory exists only while it is open.
            return Ok(Some(PathBuf::from(session.id.to_string())));
        }
        for path in self.journals()? {
            match journal::read_root(&path, &self.inner.secret) {
                Ok(root) if root.session_id() == *id => return Ok(Some(path)),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a journal cannot be read"),
            }
        }
        Ok(None)
    }

    pub(crate) fn journals(&self) -> Result<Vec<PathBuf>, ClientError> {
        let Some(folder) = self.inner.journals.folder() else { return Ok(Vec::new()) };
        let listing = std::fs::read_dir(folder).map_err(|source| file_error("list", folder, source))?;
        let mut paths: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        paths.sort();
        Ok(paths)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.inner.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time by the client's clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.inner.config.clock)()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// A fresh device id. Each session has its own, so that it links no sessions.
pub(crate) fn new_device() -> DeviceId {
    DeviceId(baton_keys::secret::random_bytes())
}

/// A session's shard count, as configured for new ones or bound by its genesis.
pub(crate) fn shards(state: &State) -> Result<ShardCount, ClientError> {
    ShardCount::new(state.header.n_shards).map_err(|error| ClientError::Config(error.to_string()))
}

fn view(state: &State, (turn, meta): (&HistoryTurn, &TurnMeta)) -> TurnView {
    let replay_of = meta.replay_of.and_then(|link_hash| {
        let seq = state.replays.find(&link_hash)?.turn.link.seq;
        Some(ReplayOrigin { seq, link_hash })
    });
    TurnView {
        turn: turn.clone(),
        receipt: meta.receipt.clone(),
        resumed: meta.auth.as_ref().and_then(|auth| auth.resume),
        notes: meta.notes.clone(),
        memory: meta.memory.clone(),
        stored: meta.stored,
        acked: meta.acked,
        replay_of,
    }
}

pub(crate) fn info(session: &Session, terms: StorageTerms) -> SessionInfo {
    let mut info = session.read(|state| state_info(state, terms, session.trouble()));
    (info.diverged, info.indexes) = (session.is_diverged(), session.statuses());
    info
}

pub(crate) fn state_info(state: &State, terms: StorageTerms, trouble: Option<ErrorCode>) -> SessionInfo {
    let unstored = state.unstored.len() as u64;
    let pending = state.pending.as_ref();
    SessionInfo {
        id: state.session_id,
        turns: state.next_seq(),
        head: state.prev_link(),
        created_ms: state.header.created_ms,
        last_ms: state.meta.last().map(|meta| meta.accepted_ms),
        last_node: state.history.last().map(|turn| turn.link.author),
        pending: state.has_open_message(),
        pending_text: pending
            .and_then(|pending| pending.attempts.last())
            .map(|attempt| attempt.received.clone())
            .unwrap_or_default(),
        unstored,
        kept_until_ms: lifetime::kept_until_ms(state, terms),
        trouble,
        diverged: false,
        torn_end_bytes: state.torn_end,
        waiting_replays: state.replays.waiting().iter().filter(|waiting| waiting.of.is_some()).count() as u64,
        device: state.header.device_id,
        others: state.leases.clone(),
        indexes: Vec::new(),
    }
}

/// Combines the head indexes of a configuration. An index that needs the network handle joins the list here.
fn head_indexes(config: &ClientConfig, mesh: &MeshHandle) -> Result<HeadIndexes, ClientError> {
    let first = NamedIndex { name: config.heads_name.clone(), index: config.heads.clone() };
    let dht = config.heads_in_dht.then(|| NamedIndex {
        name: "the nodes' DHT".to_owned(),
        index: Arc::new(DhtHeads::new(mesh.clone())),
    });
    let members = std::iter::once(first).chain(config.more_heads.iter().cloned()).chain(dht).collect();
    HeadIndexes::new(members, config.timeouts.heads)
}

/// Starts the network under a new identity, so that it does not link a client's sessions at nodes.
async fn start_mesh(config: &ClientConfig) -> Result<MeshHandle, ClientError> {
    let mut settings = MeshConfig::dialer(concat!("baton/", env!("CARGO_PKG_VERSION"), " (client)"));
    settings.listen = config.listen.clone();
    settings.bootstrap = config.bootstrap.clone();
    settings.mdns = config.mdns;
    settings.clock = config.mesh_clock.clone();
    let seed = || Zeroizing::new(baton_keys::secret::random_bytes());
    if settings.listen.is_empty() && settings.meets_others() {
        // Hole punching through two routers needs ports that are listened on. No peer can open a turn here.
        let ports = ["/ip4/0.0.0.0/udp/0/quic-v1", "/ip4/0.0.0.0/tcp/0"];
        settings.listen = ports.iter().filter_map(|address| address.parse().ok()).collect();
        match Mesh::spawn(seed(), settings.clone()).await {
            Ok((mesh, _)) => return Ok(mesh),
            Err(error) => tracing::debug!(%error, "no port can be listened on: routers are not crossed"),
        }
        settings.listen.clear();
    }
    let (mesh, incoming) = Mesh::spawn(seed(), settings).await?;
    drop(incoming);
    Ok(mesh)
}
