//! The client: its home, its network, and its sessions.

use std::{path::PathBuf, sync::Arc, time::Duration};

use baton_keys::session::SessionRoot;
use baton_mesh::{DhtHeads, Mesh, MeshConfig, MeshHandle};
use baton_proto::{
    ids::{ModelId, NodeId, SessionId},
    link::BranchPoint,
    record::Message,
    turn::StoragePolicy,
};
use zeroize::Zeroizing;

use crate::{
    attempt::embed::{self, Embeddings},
    background,
    clocks::ClockDifference,
    config::ClientConfig,
    core::{Core, DHT_INDEX, new_device},
    error::ClientError,
    event::{DEFAULT_OUTPUT_TOKENS, RouteOptions},
    home,
    identities::Identities,
    network::{
        choose::{NoChoice, Wish},
        exchange::answering_nodes,
        heads::{HeadIndexes, NamedIndex, NoHeadIndex},
        nodes::{Directory, NodeExplanation, NodeInfo, Setup},
    },
    proofs,
    restore::{self, RecoveryReport},
    session::{
        info::SessionInfo,
        journal::{JournalLocation, JournalLog, Journals},
        state::SessionHeader,
    },
    session_handle::SessionHandle,
    sync::{
        conversation::{self, Conversation},
        search::{self, SearchMatch},
        sessions::{self, Listing},
    },
};

/// The shortest time for which a blob is bought.
const SHORTEST_EPOCHS: u32 = 1;

/// How long a node may take to answer a short request.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// A client. Clones share everything.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
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
    /// The project that the session belongs to, in this home alone; none for the home's owner.
    pub project: Option<String>,
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
        let contents = match home {
            None => home::HomeContents::in_memory(),
            Some(home) => {
                crate::stack_wipe::blocking(move || home::open(&home, passphrase, now_ms)).await??
            }
        };
        let home::HomeContents { journals, reputation_file, reputation } = contents;
        let (mesh, settings) = match &config.mesh {
            Some(mesh) => (mesh.clone(), None),
            None => start_mesh(&config).await.map(|(mesh, settings)| (mesh, Some(settings)))?,
        };
        let named = config.mdns || !config.bootstrap.is_empty() || !config.listen.is_empty();
        let may_find = settings.is_none() || named;
        let only_named = settings.is_some() && !config.discover && !config.bootstrap.is_empty();
        let by_session = settings.is_some();
        let identities = Arc::new(Identities::new(mesh.clone(), settings));
        let heads = Arc::new(head_indexes(&config, &mesh, &identities)?);
        let setup = Setup {
            clock: config.clock.clone(),
            store: config.store.clone(),
            timeouts: config.timeouts,
            expected: config.bootstrap.len().max(1),
            may_find,
            only_named,
            by_session,
        };
        let directory = Arc::new(Directory::new(mesh, setup, reputation, reputation_file));
        let core = Core::new(config, journals, directory, identities, heads).with_maintenance();
        Ok(Self { core: Arc::new(core) })
    }

    /// A separate client on the same network, with the same knowledge of nodes, for one session whose journal
    /// is in `log`. A relayer uses it to drive a session for the length of a request. [`Client::shutdown`] of
    /// that client wipes its session's keys; the network and this client stay as they are.
    #[must_use]
    pub fn log_client(&self, log: Arc<dyn JournalLog>) -> Self {
        let config = ClientConfig { home: None, passphrase: None, renew: false, ..self.core.config.clone() };
        let journals = Journals::without_files(JournalLocation::Log(log));
        Self { core: Arc::new(self.core.sharing_network(config, journals, None)) }
    }

    /// A separate ephemeral client on the same network, with the same knowledge of nodes, for conversations of
    /// which nothing is kept. Its sessions are in no journal, list or head index, and its blobs are bought for the
    /// shortest time. [`Client::shutdown`] ends it and wipes its sessions' keys; the network and this client
    /// stay as they are.
    ///
    /// # Errors
    /// [`ClientError::Config`], which a configuration already accepted does not give.
    pub fn ephemeral(&self) -> Result<Self, ClientError> {
        let storage = StoragePolicy {
            open_epochs: SHORTEST_EPOCHS,
            closed_epochs: SHORTEST_EPOCHS,
            ..self.core.config.storage
        };
        let config = ClientConfig {
            home: None,
            passphrase: None,
            renew: false,
            heads_in_dht: false,
            storage,
            ..self.core.config.clone()
        };
        let index = NamedIndex { name: "nowhere".to_owned(), index: Arc::new(NoHeadIndex) };
        let heads = HeadIndexes::new(vec![index], config.timeouts.heads)?;
        let journals = Journals::without_files(JournalLocation::Memory);
        Ok(Self { core: Arc::new(self.core.sharing_network(config, journals, Some(Arc::new(heads)))) })
    }

    /// Opens the session of a log client's log and resumes its unfinished background work; none if the log is
    /// empty.
    ///
    /// # Errors
    /// [`ClientError::Log`]; [`ClientError::JournalDamaged`], also for another session's log.
    pub async fn open_log(&self, root: &SessionRoot) -> Result<Option<SessionId>, ClientError> {
        let Some(session) = self.core.open_log(root).await? else { return Ok(None) };
        background::spawn_background_work(&self.core, session.clone());
        Ok(Some(session.id))
    }

    /// Stops the background work and the network, after waiting up to `grace` for the work to finish. The
    /// work is acknowledgements, blob IDs, head records and stores. Unfinished work is in the journals and
    /// resumes at the next start.
    pub async fn shutdown(&self, grace: Duration) {
        self.core.shutdown(grace).await;
    }

    /// The handle of the network that finds nodes, for callers that need it themselves. Sessions connect under
    /// identities of their own, unless the caller gave the mesh.
    #[must_use]
    pub fn mesh(&self) -> &MeshHandle {
        self.core.directory.mesh()
    }

    /// The nodes found so far, with their verified records; waits for the first up to the discovery timeout.
    pub async fn nodes(&self) -> Vec<NodeInfo> {
        let mut nodes = self.core.directory.refresh().await;
        nodes.sort_by_key(|node| node.record.node);
        nodes
    }

    /// The number of nodes that the network reports now and that may serve. Asks nobody.
    #[must_use]
    pub fn reported_nodes(&self) -> usize {
        self.core.directory.serving(&self.mesh().peers()).count()
    }

    /// Whether nodes of the local network are found by multicast.
    #[must_use]
    pub fn uses_multicast(&self) -> bool {
        self.core.config.mdns
    }

    /// Those of these nodes that answer a short request now.
    pub async fn answering(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        answering_nodes(self.mesh(), nodes, ANSWER_WAIT).await
    }

    /// Why no node was found, as far as the nodes that may not serve show it.
    pub async fn why_no_node(&self) -> NoChoice {
        let directory = &self.core.directory;
        directory.clock_difference(None).await.map_or_else(|| directory.no_nodes(), NoChoice::ClocksDiffer)
    }

    /// Creates a session. A file for it is made with its first message.
    ///
    /// # Errors
    /// [`ClientError::SessionExists`] for a root that is already here, [`ClientError::File`],
    /// [`ClientError::MessageTooLong`] for system text that fits no turn.
    pub async fn new_session(&self, new: NewSession) -> Result<SessionId, ClientError> {
        crate::event::check_texts(&new.system)?;
        let root = new.root.unwrap_or_else(SessionRoot::generate);
        let now_ms = self.core.now_ms();
        let header = SessionHeader {
            n_shards: self.core.config.shards.get(),
            branch: new.branch,
            device_id: new_device(),
            created_ms: now_ms,
            system: new.system,
            project: new.project,
        };
        let session = self.core.begin(root, header).await?;
        // A new session has no other writer yet.
        session.indexes(|view| view.note_look(now_ms, true));
        Ok(session.id)
    }

    /// A session of this home.
    #[must_use]
    pub fn session(&self, id: SessionId) -> SessionHandle {
        SessionHandle::new(self.core.clone(), id)
    }

    /// The sessions of this home, last used first.
    ///
    /// # Errors
    /// [`ClientError::File`]. Unreadable journals are left out; [`Client::listing`] has them.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, ClientError> {
        Ok(self.listing().await?.sessions)
    }

    /// The sessions of this home and its unreadable journals. Reads every journal whole; to find a session
    /// use [`Client::session_ids`] or [`Client::last_session`].
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn listing(&self) -> Result<Listing, ClientError> {
        self.core.blocking(sessions::list).await
    }

    /// The ids of the sessions of this home, including damaged ones, in no order. Reads only the beginning of
    /// each journal.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn session_ids(&self) -> Result<Vec<SessionId>, ClientError> {
        self.core.blocking(sessions::session_ids).await
    }

    /// The last used session: the first of [`Client::sessions`], but reads only the journals that may be it.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn last_session(&self) -> Result<Option<SessionId>, ClientError> {
        self.core.blocking(sessions::find_last).await
    }

    /// The sessions of this home with all these words, in any case, in their title or in any message; last used
    /// first, and at most [`MAX_MATCHES`](crate::MAX_MATCHES). With a project, only its sessions.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn search(&self, words: &str, project: Option<&str>) -> Result<Vec<SearchMatch>, ClientError> {
        let (words, project) = (words.to_owned(), project.map(str::to_owned));
        self.core.blocking(move |core| search::search(core, &words, project.as_deref())).await
    }

    /// Hands the conversations of this home to `look`, last changed first, one in memory at a time. Takes at
    /// most `limit`, and only files changed at `since_ms` (Unix milliseconds) or later. Skips a journal that
    /// cannot be read. A client without a home has no files, and hands over every session.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn each_conversation(
        &self,
        since_ms: u64,
        limit: usize,
        look: impl FnMut(Conversation) + Send + 'static,
    ) -> Result<(), ClientError> {
        self.core.blocking(move |core| conversation::each_conversation(core, since_ms, limit, look)).await
    }

    /// Recovers a session from its root alone: finds the head in the index, reads the chain from the store
    /// and verifies all of it. The store has no receipts, authorisations and acknowledgements, so they stay
    /// unknown. A damaged journal of the session is kept under another name.
    ///
    /// # Errors
    /// - [`ClientError::HeadMissing`], [`ClientError::Deleted`].
    /// - [`ClientError::SessionExists`] when the session is here, as complete as in the index.
    /// - [`baton_proto::ErrorCode::RollbackDetected`] or [`baton_proto::ErrorCode::ForkDetected`] when it is here and the index
    ///   disagrees.
    /// - The chain's errors.
    pub async fn recover(&self, root: &SessionRoot) -> Result<SessionId, ClientError> {
        restore::recover(&self.core, root).await
    }

    /// As [`Client::recover`]. But if neither the store nor a node has some of the session's blobs, it recovers
    /// the newest turns that can be read, and names the lost ones. If the newest blob is lost, an earlier head
    /// that an index shows may name its predecessor. Turns before a gap stay readable
    /// ([`SessionHandle::branches`]).
    ///
    /// Another device with the lost turns can still restore them; [`SessionHandle::publish_over`] continues
    /// without lost turns at the end.
    ///
    /// # Errors
    /// As [`Client::recover`]; the first error if nothing can be read.
    pub async fn recover_available(&self, root: &SessionRoot) -> Result<RecoveryReport, ClientError> {
        restore::recover_available(&self.core, root).await
    }

    /// Imports a session from an export with its root, after verifying all of it, Walrus IDs included. A
    /// damaged journal of the session is kept under another name.
    ///
    /// # Errors
    /// [`ClientError::Export`] for a text that is no export, or an export without a root;
    /// [`ClientError::Protocol`] for an export that does not verify; [`ClientError::SessionExists`].
    pub async fn import(&self, text: &str) -> Result<SessionId, ClientError> {
        restore::import(&self.core, text).await
    }

    /// Embeds texts with a model, by name or hex id, or with any offered model. All texts get the same model,
    /// but batches may go to different nodes. Each reply is sealed for this request and signed by its node,
    /// which pins the claim and does not prove that the model ran. The nodes see the texts.
    ///
    /// # Errors
    /// [`ClientError::EmptyMessage`] without any text, [`ClientError::MessageTooLong`] for a text of more
    /// than 8 KiB, [`ClientError::NoNode`] when no node offers the model, [`ClientError::EmbedFailed`].
    pub async fn embed(&self, texts: &[String], model: Option<&str>) -> Result<Embeddings, ClientError> {
        embed::embed(&self.core, texts, model).await
    }

    /// The proofs of contradictions in this home, oldest first.
    ///
    /// # Errors
    /// [`ClientError::File`].
    pub async fn proofs(&self) -> Result<Vec<PathBuf>, ClientError> {
        self.core.blocking(proofs::proofs).await
    }

    /// Explains for each known node why it would be chosen for a turn or not, ordered by id. With a session,
    /// for its next turn.
    ///
    /// # Errors
    /// As opening the session, if a session is named.
    pub async fn explain(
        &self,
        session: Option<SessionId>,
        route: &RouteOptions,
    ) -> Result<Vec<NodeExplanation>, ClientError> {
        let mut wish = Wish { output_tokens: DEFAULT_OUTPUT_TOKENS, ..self.core.wish(route) };
        let mut of_session = None;
        if let Some(id) = session {
            let session = background::open(&self.core, id, true).await?;
            (of_session, wish.warm) = session.read(|state| (state.last_model(), self.core.warm_node(state)));
        }
        let of_session = of_session.map(|model| model.to_string());
        wish.model = wish.model.or(of_session.as_deref());
        Ok(self.core.directory.explain(&wish).await)
    }

    /// The wrong clock, if every node that answers gives a record that is out of time by this machine's.
    pub async fn clock_difference(&self) -> Option<ClockDifference> {
        self.core.directory.clock_difference(None).await
    }

    /// The name of a model that served a turn of this home, as its node said.
    #[must_use]
    pub fn model_name(&self, model: ModelId) -> Option<String> {
        self.core.directory.model_name(model)
    }

    /// The time by the client's clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.core.now_ms()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.core.config).finish_non_exhaustive()
    }
}

/// Combines the head indexes of a configuration. An index that needs the network handle joins the list here.
/// Sessions with identities of their own ask the DHT under them instead.
fn head_indexes(
    config: &ClientConfig,
    mesh: &MeshHandle,
    identities: &Identities,
) -> Result<HeadIndexes, ClientError> {
    let first = NamedIndex { name: config.heads_name.clone(), index: config.heads.clone() };
    let shares_mesh = config.heads_in_dht && !identities.are_by_session();
    let dht = shares_mesh
        .then(|| NamedIndex { name: DHT_INDEX.to_owned(), index: Arc::new(DhtHeads::new(mesh.clone())) });
    let members = std::iter::once(first).chain(config.more_heads.iter().cloned()).chain(dht).collect();
    HeadIndexes::new(members, config.timeouts.heads)
}

/// Starts the network that finds nodes, under a new identity. Returns its settings too.
async fn start_mesh(config: &ClientConfig) -> Result<(MeshHandle, MeshConfig), ClientError> {
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
            Ok((mesh, _)) => return Ok((mesh, settings)),
            Err(error) => tracing::debug!(%error, "no port can be listened on: routers are not crossed"),
        }
        settings.listen.clear();
    }
    let (mesh, incoming) = Mesh::spawn(seed(), settings.clone()).await?;
    drop(incoming);
    Ok((mesh, settings))
}
