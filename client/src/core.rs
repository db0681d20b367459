//! What the parts of a client share: configuration, journals, open sessions, network and tasks.
//!
//! The layers above take `&Arc<Core>` and a session. [`crate::Client`] and [`crate::SessionHandle`] call them.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use baton_keys::session::SessionRoot;
use baton_proto::ids::{DeviceId, NodeId, SessionId};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::ClientConfig,
    error::{ClientError, log_failure},
    event::RouteOptions,
    identities::{self, Identities, SessionDht},
    network::{
        choose::Wish,
        heads::{HeadIndexes, NamedIndex},
        nodes::{Directory, maintenance},
    },
    session::{
        journal::{self, EXTENSION, JournalLocation, Journals, file_error, quarantine},
        lifetime::{self, BlobLifetime},
        open_session::{self, ReadOnly, Session},
        state::{Entry, SessionHeader, State, StorageTerms},
    },
};

/// Name of the nodes' DHT among the head indexes.
pub(crate) const DHT_INDEX: &str = "the nodes' DHT";

/// The shared parts of a client.
pub(crate) struct Core {
    pub(crate) config: ClientConfig,
    pub(crate) journals: Journals,
    open: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// The sessions of the journals that were read. A journal's name is random and its root never changes.
    journal_ids: Mutex<HashMap<PathBuf, SessionId>>,
    pub(crate) directory: Arc<Directory>,
    /// Tasks that no shutdown waits for before it cancels: the maintenance of the directory and the identities. They
    /// end with `cancel`.
    endless: Mutex<Vec<JoinHandle<()>>>,
    /// The number of shards that the store announces, once it has answered.
    pub(crate) announced_shards: OnceLock<Option<u16>>,
    /// The head indexes that all sessions share, as one.
    shared_heads: Arc<HeadIndexes>,
    /// The identities under which the client and its sessions connect.
    pub(crate) identities: Arc<Identities>,
    pub(crate) tasks: TaskTracker,
    pub(crate) cancel: CancellationToken,
    /// Whether the network ends with this client.
    owns_network: bool,
}

/// A damaged journal that was moved out of the way.
struct QuarantinedJournal {
    journal: PathBuf,
    quarantined: PathBuf,
}

impl QuarantinedJournal {
    /// Moves it back, since no journal replaced it.
    fn put_back(&self) {
        let restored = quarantine::restore(&self.quarantined, &self.journal);
        log_failure(restored, "a damaged journal was not put back");
    }
}

impl Core {
    /// The core of a client whose network and knowledge of nodes are another's to maintain.
    pub(crate) fn new(
        config: ClientConfig,
        journals: Journals,
        directory: Arc<Directory>,
        identities: Arc<Identities>,
        shared_heads: Arc<HeadIndexes>,
    ) -> Self {
        Self {
            config,
            journals,
            open: Mutex::default(),
            journal_ids: Mutex::default(),
            directory,
            endless: Mutex::default(),
            announced_shards: OnceLock::new(),
            shared_heads,
            identities,
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
            owns_network: false,
        }
    }

    /// Starts the maintenance of the directory and of the identities. The network ends with this client.
    pub(crate) fn with_maintenance(self) -> Self {
        let (nodes, meshes) = (Arc::downgrade(&self.directory), Arc::downgrade(&self.identities));
        let ended = self.cancel.clone();
        let maintenance = tokio::spawn(async move {
            tokio::join!(maintenance::run(nodes, ended.clone()), identities::sweep(meshes, ended));
        });
        Self { endless: Mutex::new(vec![maintenance]), owns_network: true, ..self }
    }

    /// The core of a separate client with this client's network and knowledge of nodes, which this client maintains.
    pub(crate) fn sharing_network(
        &self,
        config: ClientConfig,
        journals: Journals,
        heads: Option<Arc<HeadIndexes>>,
    ) -> Self {
        let heads = heads.unwrap_or_else(|| self.shared_heads.clone());
        Self::new(config, journals, self.directory.clone(), self.identities.clone(), heads)
    }

    /// Stops the tasks after waiting up to `grace` for them, closes the sessions, and stops the network if it
    /// is this client's own.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.tasks.close();
        let _ = tokio::time::timeout(grace, self.tasks.wait()).await;
        self.cancel.cancel();
        self.tasks.wait().await;
        let endless = std::mem::take(&mut *self.endless.lock());
        for task in endless {
            if task.await.is_err() {
                tracing::warn!("a task that looks after nodes ended early");
            }
        }
        let open: Vec<Arc<Session>> = self.lock().drain().map(|(_, session)| session).collect();
        let ids: Vec<SessionId> = open.iter().map(|session| session.id).collect();
        // A write of a turn dropped midway may still run; the files are free only after it.
        let (terms, now_ms) = (self.terms(), self.now_ms());
        let closed = crate::stack_wipe::blocking(move || {
            open.iter().for_each(|session| session.close(terms, now_ms));
        });
        if closed.await.is_err() {
            tracing::warn!("the sessions were not closed properly");
        }
        if self.owns_network {
            self.identities.close_all().await;
        } else {
            futures::future::join_all(ids.iter().map(|id| self.identities.close(*id))).await;
        }
    }

    /// The head indexes of a session: those that all sessions share, and the DHT under an identity of the
    /// session.
    pub(crate) fn heads_of(&self, session: SessionId) -> Arc<HeadIndexes> {
        if !self.config.heads_in_dht || !self.identities.are_by_session() {
            return self.shared_heads.clone();
        }
        let index = Arc::new(SessionDht::new(self.identities.clone(), session));
        Arc::new(self.shared_heads.with(NamedIndex { name: DHT_INDEX.to_owned(), index }))
    }

    /// The requirements of a turn by this route, apart from those of its session.
    pub(crate) fn wish<'a>(&'a self, route: &'a RouteOptions) -> Wish<'a> {
        Wish {
            model: route.model.as_deref(),
            node: route.node,
            allow_echo: route.allow_echo,
            max_price: Some(self.config.max_price),
            storage: Some(self.config.storage),
            // A relayer passes no quota on.
            quota: self.config.quota.as_deref().filter(|_| route.relayer.is_none()),
            now_ms: self.now_ms(),
            ..Wish::default()
        }
    }

    /// The node that served a session's last turn, if this client saw that a moment ago: it may still have
    /// the prompt cached.
    pub(crate) fn warm_node(&self, state: &State) -> Option<NodeId> {
        let link = &state.last()?.0.link;
        let tag = state.root.warm_key().tag(&link.author, link.link_hash().as_bytes());
        self.directory.is_warm(&tag).then_some(link.author)
    }

    /// The time by the client's clock, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.config.clock)()
    }

    /// For how long blobs are bought.
    pub(crate) fn terms(&self) -> StorageTerms {
        let config = &self.config;
        StorageTerms {
            epoch: config.epoch,
            open_epochs: config.storage.open_epochs,
            closed_epochs: config.storage.closed_epochs,
        }
    }

    /// Lifetimes of the blobs that a session needs, oldest first.
    pub(crate) fn lifetimes_of(&self, session: &Session) -> Vec<BlobLifetime> {
        let (terms, now_ms) = (self.terms(), self.now_ms());
        session.read(|state| lifetime::lifetimes(state, terms, now_ms))
    }

    /// Runs a task that ends with the client.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        tokio::spawn(self.tasks.track_future(async move {
            cancel.run_until_cancelled(work).await;
        }));
    }

    /// Runs work that blocks, on a thread whose stack is wiped.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let core = self.clone();
        crate::stack_wipe::blocking(move || work(&core)).await?
    }

    /// Creates a session with entries that follow its opening. It replaces no journal but a damaged one.
    pub(crate) async fn create(
        self: &Arc<Self>,
        root: SessionRoot,
        header: SessionHeader,
        entries: Vec<Entry>,
    ) -> Result<Arc<Session>, ClientError> {
        let id = root.session_id();
        let session = self.blocking(move |core| {
            let replaced = core.find(&id)?.map(|path| core.quarantine_damaged(id, path)).transpose()?;
            Session::create(&core.journals, root, header, entries).inspect_err(|_| {
                if let Some(replaced) = &replaced {
                    replaced.put_back();
                }
            })
        });
        Ok(self.keep(session.await?))
    }

    fn keep(&self, session: Session) -> Arc<Session> {
        let session = Arc::new(session);
        self.lock().insert(session.id, session.clone());
        session
    }

    /// Begins a session. A file is made with its first message, so that a session without one leaves nothing
    /// behind.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        root: SessionRoot,
        header: SessionHeader,
    ) -> Result<Arc<Session>, ClientError> {
        let id = root.session_id();
        let session = self.blocking(move |core| match core.find(&id)? {
            None => Session::begin_deferred(&core.journals, root, header),
            Some(_) => Err(ClientError::SessionExists(id)),
        });
        Ok(self.keep(session.await?))
    }

    /// The open session, and whether this call opened it; if `shortly`, from its snapshot on.
    pub(crate) async fn open(
        self: &Arc<Self>,
        id: SessionId,
        shortly: bool,
    ) -> Result<(Arc<Session>, bool), ClientError> {
        if let Some(session) = self.lock().get(&id) {
            return Ok((session.clone(), false));
        }
        self.blocking(move |core| {
            let path = core.find(&id)?.ok_or_else(|| ClientError::UnknownSession(id.to_string()))?;
            let mut open = core.lock();
            // Another task may have been first; the file's lock would refuse a second writer.
            if let Some(session) = open.get(&id) {
                return Ok((session.clone(), false));
            }
            let session = match Session::open(&path, &core.journals.secret, shortly) {
                Err(error) if core.config.read_in_use => {
                    let reason = ReadOnly::of(&error).ok_or(error)?;
                    Session::open_to_read(&path, &core.journals.secret, reason)?
                }
                opened => opened?,
            };
            let session = Arc::new(session);
            open.insert(id, session.clone());
            Ok((session, true))
        })
        .await
    }

    /// Opens the session of a log client's log; none if the log is empty, or this is no log client.
    pub(crate) async fn open_log(
        self: &Arc<Self>,
        root: &SessionRoot,
    ) -> Result<Option<Arc<Session>>, ClientError> {
        let JournalLocation::Log(log) = &self.journals.location else { return Ok(None) };
        let (log, root) = (log.clone(), root.clone());
        let opened = self.blocking(move |_| Session::open_log(&log, &root)).await?;
        Ok(opened.map(|session| self.keep(session)))
    }

    /// Quarantines a session's damaged journal. If the journal is whole, the session exists.
    fn quarantine_damaged(&self, id: SessionId, journal: PathBuf) -> Result<QuarantinedJournal, ClientError> {
        if self.lock().contains_key(&id) {
            return Err(ClientError::SessionExists(id));
        }
        let _file = journal::lock(&journal, &id)?;
        match open_session::peek(&journal, &self.journals.secret) {
            Err(ClientError::JournalDamaged { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(ClientError::SessionExists(id)),
        }
        let quarantined =
            quarantine::isolate(&journal).map_err(|source| file_error("move", &journal, source))?;
        Ok(QuarantinedJournal { journal, quarantined })
    }

    /// The journal of a session. Blocking.
    pub(crate) fn find(&self, id: &SessionId) -> Result<Option<PathBuf>, ClientError> {
        for path in self.journal_files()? {
            match self.session_of(&path) {
                Ok(session) if session == *id => return Ok(Some(path)),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a journal cannot be read"),
            }
        }
        // A session without a file exists only while it is open.
        let open = self.lock().get(id).map(|session| PathBuf::from(session.id.to_string()));
        Ok(open)
    }

    /// The session of a journal. Reads each file once: a search among many sessions costs each of them little.
    /// Blocking.
    pub(crate) fn session_of(&self, path: &Path) -> Result<SessionId, ClientError> {
        let lock = || self.journal_ids.lock();
        if let Some(session) = lock().get(path) {
            return Ok(*session);
        }
        let session = journal::read_root(path, &self.journals.secret)?.session_id();
        lock().insert(path.to_owned(), session);
        Ok(session)
    }

    /// The files of the journals. Blocking.
    pub(crate) fn journal_files(&self) -> Result<Vec<PathBuf>, ClientError> {
        let Some(folder) = self.journals.folder() else { return Ok(Vec::new()) };
        let listing = std::fs::read_dir(folder).map_err(|source| file_error("list", folder, source))?;
        let mut paths: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        paths.sort();
        let mut known = self.journal_ids.lock();
        if known.len() > paths.len() {
            known.retain(|path, _| paths.binary_search(path).is_ok());
        }
        Ok(paths)
    }

    /// The open sessions.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.open.lock()
    }
}

/// A fresh device id. Each session has its own, so that it links no sessions.
pub(crate) fn new_device() -> DeviceId {
    DeviceId(baton_keys::secret::random_bytes())
}
