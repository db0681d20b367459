//! A relayer's HTTP server on a temporary folder, and clients that sign.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use baton_keys::{SecretSigningKey, account::AccountKey, master::MasterKey};
use baton_memory::{
    Clock, Memory, Parts,
    storage::embedded::{EmbeddedConfig, EmbeddedStorage},
    vault::Vault,
};
use baton_mesh::Networks;
use baton_models::embed::{EmbedFuture, EmbedRole, Embedder, Hashing};
use baton_proto::right::{MemoryAccess, Permissions, Right, RightChain, RightScope};
use baton_relayer::{
    BudgetLimits, Budgets,
    chat::Chat,
    http::{self, AppState, Audience, ClientAddresses, Limits, ServerConfig},
    owners::{OwnerPolicy, Owners},
};
use reqwest::{Client, Method, Response};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Start time of these tests' clocks.
pub(super) const START_MS: u64 = 1_795_302_840_000;

/// The hashing embedder. A text with `hold` waits for the gate.
pub(crate) struct GatedEmbedder {
    pub(crate) gate: Arc<Semaphore>,
}

impl Embedder for GatedEmbedder {
    fn id(&self) -> &str {
        Hashing.id()
    }

    fn dimensions(&self) -> usize {
        Hashing.dimensions()
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        Box::pin(async move {
            if texts.iter().any(|text| text.contains("hold")) {
                drop(self.gate.acquire().await.unwrap());
            }
            Hashing.embed(role, texts).await
        })
    }
}

/// A running server.
pub(super) struct TestServer {
    pub address: SocketAddr,
    pub now_ms: Arc<AtomicU64>,
    pub memory: Memory,
    pub budgets: Arc<Budgets>,
    /// Lets texts with `hold` be embedded; closed at first.
    pub gate: Arc<Semaphore>,
    client: Client,
    shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    _folder: Arc<tempfile::TempDir>,
}

/// An answer, read whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    pub(super) async fn read(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.unwrap() }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub(super) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Its JSON, after a check for success.
    #[track_caller]
    pub(super) fn good(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.json()
    }

    /// Checks for an error in the common shape.
    #[track_caller]
    pub(super) fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text);
        let json = self.json();
        for field in ["message", "hint", "request_id"] {
            assert!(json[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {}", self.text);
        }
        assert_eq!(self.headers["x-request-id"].to_str().unwrap(), json["request_id"]);
    }
}

/// The key of this relayer.
pub(crate) fn relayer_key() -> SecretSigningKey {
    SecretSigningKey::from_seed(&[0xab; 32])
}

/// The identity of a relayer without a network.
pub(crate) fn identity() -> http::RelayerIdentity {
    http::RelayerIdentity {
        relayer: relayer_key().public_key().to_string(),
        url: None,
        url_signature: None,
        peer_id: "12D3KooTest".to_owned(),
        addresses: vec!["/ip4/127.0.0.1/tcp/4101/p2p/12D3KooTest".to_owned()],
        version: "0.0.0".to_owned(),
        uptime_seconds: 1,
        peers: http::PeerCounts::default(),
        memory: http::MemoryFacts {
            storage: "embedded".to_owned(),
            embedder: "letters".to_owned(),
            judge: "rules".to_owned(),
            contents: "local".to_owned(),
        },
        conversations: false,
    }
}

/// A server on a memory.
pub(crate) fn config(memory: Memory, key: &SecretSigningKey, clock: Clock) -> ServerConfig {
    ServerConfig {
        memory,
        embedder: Arc::new(Hashing),
        writer: None,
        limits: Limits::default(),
        addresses: ClientAddresses::default(),
        owners: Arc::new(Owners::new(OwnerPolicy::default())),
        budgets: Arc::new(Budgets::new(BudgetLimits::default(), clock.clone())),
        audience: Audience { relayer: key.public_key(), required: false },
        public_url: None,
        identity: Arc::new(identity),
        now_ms: clock,
    }
}

/// Serves until `shutdown`, at an address of its own.
pub(crate) async fn serve(
    config: ServerConfig,
    chat: Option<Chat>,
    shutdown: &CancellationToken,
) -> (SocketAddr, JoinHandle<std::io::Result<()>>) {
    let app = AppState::new(config);
    let router = http::router(&app, chat);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(http::serve(app, router, listener, shutdown.clone().cancelled_owned())))
}

impl TestServer {
    pub(super) async fn open() -> Self {
        let own_networks = Networks::loopback();
        Self::with(Limits { owner_per_minute: 10_000, own_networks, ..Limits::default() }).await
    }

    pub(super) async fn with(limits: Limits) -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), limits).await
    }

    pub(super) async fn on(folder: Arc<tempfile::TempDir>, limits: Limits) -> Self {
        Self::for_owners(folder, limits, OwnerPolicy::default(), BudgetLimits::default()).await
    }

    /// The relayer with another key, which may require that requests name it.
    pub(super) async fn named(key: SecretSigningKey, required: bool) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let (policy, budgets) = (OwnerPolicy::default(), BudgetLimits::default());
        Self::start(folder, Limits::default(), policy, budgets, (key, required)).await
    }

    pub(super) async fn for_owners(
        folder: Arc<tempfile::TempDir>,
        limits: Limits,
        policy: OwnerPolicy,
        budgets: BudgetLimits,
    ) -> Self {
        Self::start(folder, limits, policy, budgets, (relayer_key(), false)).await
    }

    async fn start(
        folder: Arc<tempfile::TempDir>,
        limits: Limits,
        policy: OwnerPolicy,
        budgets: BudgetLimits,
        (relayer_key, required): (SecretSigningKey, bool),
    ) -> Self {
        let path = folder.path();
        let storage = EmbeddedStorage::open(&EmbeddedConfig::new(path.join("memory"))).unwrap();
        let master = MasterKey::load_or_create(&path.join("master.key"), None).unwrap();
        let vault = Vault::new(Arc::new(storage), &path.join("keys"), master).await.unwrap();
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let clock: Clock = {
            let now_ms = now_ms.clone();
            Arc::new(move || now_ms.load(Ordering::SeqCst))
        };
        let gate = Arc::new(Semaphore::new(0));
        let budgets = Arc::new(Budgets::new(budgets, clock.clone()));
        let embedder = Arc::new(GatedEmbedder { gate: gate.clone() });
        let memory = Memory::open(Parts::new(vault, embedder.clone(), clock.clone())).await.unwrap();
        let config = ServerConfig {
            embedder,
            limits,
            owners: Arc::new(Owners::new(policy)),
            budgets: budgets.clone(),
            audience: Audience { relayer: relayer_key.public_key(), required },
            ..config(memory.clone(), &relayer_key, clock)
        };
        let shutdown = CancellationToken::new();
        let (address, serving) = serve(config, None, &shutdown).await;
        let client = Client::builder().no_proxy().build().unwrap();
        Self { address, now_ms, memory, gate, budgets, client, shutdown, serving, _folder: folder }
    }

    /// Stops, and returns the folder for another server.
    pub(super) async fn close(self) -> Arc<tempfile::TempDir> {
        let Self { client, shutdown, serving, _folder, memory, .. } = self;
        drop((client, memory));
        shutdown.cancel();
        serving.await.unwrap().unwrap();
        _folder
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn seconds(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst) / 1_000
    }

    /// Sends without a signature.
    pub(super) async fn bare(&self, method: &str, path: &str, body: &str) -> Answer {
        let method: Method = method.parse().unwrap();
        Answer::read(self.client.request(method, self.url(path)).body(body.to_owned()).send().await.unwrap())
            .await
    }

    /// Sends with headers.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Vec<u8>,
    ) -> Answer {
        let method: Method = method.parse().unwrap();
        let mut request = self.client.request(method, self.url(path)).body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        Answer::read(request.send().await.unwrap()).await
    }
}

/// A person with a key.
pub(super) struct Person<'a> {
    pub server: &'a TestServer,
    pub key: AccountKey,
    pub account: String,
    pub delegation: Option<String>,
}

impl<'a> Person<'a> {
    pub(super) fn new(server: &'a TestServer) -> Self {
        let key = AccountKey::generate();
        Self { server, account: key.account_id(), key, delegation: None }
    }

    /// A new key that acts for this person.
    pub(super) fn friend(&self) -> Person<'a> {
        Person {
            server: self.server,
            key: AccountKey::generate(),
            account: self.account.clone(),
            delegation: None,
        }
    }

    /// A new key with these rights, which it shows with each request.
    pub(super) fn delegate_of(&self, scopes: &[&str], project: Option<&str>) -> Person<'a> {
        let mut friend = self.friend();
        friend.delegation = Some(self.delegate(&friend, scopes, project).to_header());
        friend
    }

    pub(super) fn headers(&self, method: &str, path: &str, body: &[u8]) -> Vec<(&'static str, String)> {
        let seconds = self.server.seconds();
        let mut headers = self.key.request_headers(&self.account, method, path, body, seconds).to_vec();
        headers.extend(self.delegation.clone().map(|delegation| ("x-delegation", delegation)));
        headers
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.server.send(method, path, &self.headers(method, path, &body), body).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, body).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, Value::Null).await
    }

    /// Remembers a fact and returns its id.
    pub(super) async fn remember(&self, text: &str, project: Option<&str>) -> String {
        let fact = json!({ "text": text, "project": project });
        self.post("/api/remember", fact).await.good()["id"].as_str().unwrap().to_owned()
    }

    /// The texts that a recall finds.
    pub(super) async fn recalls(&self, query: &str, project: Option<&str>) -> Vec<String> {
        let body = json!({ "query": query, "project": project, "memory_scope": "full", "limit": 20 });
        let answer = self.post("/api/recall", body).await.good();
        let results = answer["results"].as_array().unwrap().iter();
        results.map(|result| result["text"].as_str().unwrap().to_owned()).collect()
    }

    /// A delegation from this person to another's key, from a minute ago for an hour.
    pub(super) fn delegate(&self, friend: &Person<'_>, scopes: &[&str], project: Option<&str>) -> Delegation {
        let permissions = Permissions::named(scopes.iter().copied()).unwrap();
        let scope = RightScope::Memory(MemoryAccess { permissions, project: project.map(str::to_owned) });
        let (now, key) = (self.server.seconds() * 1_000, self.key.signing_key());
        let valid_ms = now - 60_000..now + 3_600_000;
        let right = Right::new(key.public_key(), friend.key.public_key(), scope, valid_ms);
        let chain = RightChain::issue(right, key).unwrap();
        Delegation { id: chain.last().id.to_string(), delegation: chain.to_string() }
    }
}

/// A delegation as a request registers it.
#[derive(Serialize)]
pub(super) struct Delegation {
    #[serde(skip)]
    pub id: String,
    delegation: String,
}

impl Delegation {
    /// Its form in a request's header.
    pub(super) fn to_header(&self) -> String {
        self.delegation.clone()
    }
}
