//! The HTTP server: routes, limits, errors. Open routes (health, version, identity, the OpenAPI document) need no
//! caller. All other requests pass the gate, which authenticates the caller; [`Memory`] does the rest.
//!
//! This module decides on nothing beyond a caller's scopes and project. It never logs a path, a query, a body
//! or a name.

mod api_error;
mod audience;
mod body;
pub mod chat;
mod client_address;
mod completion;
mod constraints;
mod delegations;
mod extract;
mod gate;
mod identity;
mod invitation;
mod items;
mod limits;
mod open;
mod places;
mod portability;
mod removal;
mod sdk;
mod settings;
mod shapes;
#[cfg(feature = "mcp")]
mod tools;

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit, middleware};
use baton_keys::ids::PublicKey;
use baton_kit::listen;
use baton_memory::{Memory, extraction, ids::OwnerId};
use baton_mesh::{Rates, Subnet};
use baton_models::embed::Embedder;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use utoipa::openapi::{
    InfoBuilder, OpenApi, OpenApiBuilder,
    security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use api_error::ApiError;
pub(crate) use api_error::ApiErrorJson;
pub use audience::Audience;
pub use client_address::ClientAddresses;
pub(crate) use extract::Admin;
pub(crate) use extract::Chatter;
pub(crate) use extract::Input;
pub(crate) use extract::Params;
pub(crate) use extract::Reader;
pub(crate) use extract::Writer;
pub use identity::{IdentitySource, MemoryFacts, PeerCounts, RelayerIdentity};
pub use limits::Limits;

use crate::{
    budgets::Budgets,
    delegation::registry::{Records, Registry},
    owners::Owners,
    shared_slots::SharedSlots,
};

/// Time that running requests have to finish at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// Lifetime of a readiness answer: anyone may ask, and one storage query serves all of them.
const READINESS_KEPT: Duration = Duration::from_millis(500);

/// The shared state of the routes. Clones share everything.
#[derive(Clone)]
pub struct AppState {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Memory,
    registry: Registry,
    embedder: Arc<dyn Embedder>,
    writer: Option<Arc<dyn extraction::Writer>>,
    limits: Limits,
    public_url: Option<String>,
    identity: IdentitySource,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    owner_rates: Mutex<Rates<OwnerId>>,
    key_rates: Mutex<Rates<PublicKey>>,
    subnet_rates: Mutex<Rates<Subnet>>,
    addresses: ClientAddresses,
    owners: Arc<Owners>,
    budgets: Arc<Budgets>,
    audience: Audience,
    requests: SharedSlots,
    large_bodies: SharedSlots,
    tasks: TaskTracker,
    document: OnceLock<OpenApi>,
    /// Memory's last readiness answer, with its time.
    readiness: tokio::sync::Mutex<Option<(tokio::time::Instant, Result<(), String>)>>,
}

/// The configuration of the HTTP server.
pub struct ServerConfig {
    /// Memory of all owners.
    pub memory: Memory,
    /// The embedder of `/api/embed`.
    pub embedder: Arc<dyn Embedder>,
    /// The model behind `/api/ask`.
    pub writer: Option<Arc<dyn extraction::Writer>>,
    /// Limits of requests.
    pub limits: Limits,
    /// How the address of a client is known.
    pub addresses: ClientAddresses,
    /// Who may be an owner.
    pub owners: Arc<Owners>,
    /// Budgets of all owners together.
    pub budgets: Arc<Budgets>,
    /// The relayer's name in requests.
    pub audience: Audience,
    /// The URL of this server for clients, if it differs from their `Host` header.
    pub public_url: Option<String>,
    /// The answer of `/relayer`.
    pub identity: IdentitySource,
    /// The wall clock, in milliseconds since the Unix epoch.
    pub now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl AppState {
    /// Creates the routes' state.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        let ServerConfig {
            memory,
            embedder,
            writer,
            limits,
            addresses,
            owners,
            budgets,
            audience,
            public_url,
            identity,
            now_ms,
        } = config;
        let records: Arc<dyn Records> = Arc::new(memory.clone());
        Self {
            inner: Arc::new(Inner {
                registry: Registry::new(records).at(audience.relayer),
                memory,
                embedder,
                writer,
                public_url,
                identity,
                now_ms,
                owner_rates: Mutex::new(Rates::new(limits.owner_per_minute)),
                key_rates: Mutex::new(Rates::new(limits.key_per_minute)),
                subnet_rates: Mutex::new(
                    Rates::new(limits.subnet_per_minute).in_bursts_of(limits.subnet_burst()),
                ),
                addresses,
                owners,
                budgets,
                audience,
                requests: SharedSlots::new(limits.requests),
                large_bodies: SharedSlots::new(limits.large_bodies),
                limits,
                tasks: TaskTracker::new(),
                document: OnceLock::new(),
                readiness: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// The only entry to memory.
    #[must_use]
    pub(crate) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// The wall clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub(crate) fn now_ms(&self) -> u64 {
        (self.inner.now_ms)()
    }

    /// Whether memory is usable now; the error gives the reason and the next step. All callers share an
    /// answer for [`READINESS_KEPT`].
    async fn readiness(&self) -> Result<(), String> {
        let mut known = self.inner.readiness.lock().await;
        if let Some((asked, answer)) = &*known
            && asked.elapsed() < READINESS_KEPT
        {
            return answer.clone();
        }
        let answer = self.inner.memory.readiness().await;
        *known = Some((tokio::time::Instant::now(), answer.clone()));
        answer
    }

    fn registry(&self) -> &Registry {
        &self.inner.registry
    }
}

/// All routes behind the gate, with their documentation.
fn gated_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(sdk::routes())
        .merge(items::routes())
        .merge(places::routes())
        .merge(portability::routes())
        .merge(settings::routes())
        .merge(delegations::routes())
        .merge(invitation::routes())
}

/// All open routes.
fn open_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(open::health))
        .routes(routes!(open::ready))
        .routes(routes!(open::version))
        .routes(routes!(open::relayer))
        .routes(routes!(open::config))
        .routes(routes!(open::sui))
        .routes(routes!(open::document))
}

/// The OpenAPI document of all routes; `more` are further routes behind the gate.
#[must_use]
pub fn document(more: OpenApiRouter<AppState>) -> OpenApi {
    describe(gated_routes().merge(more).into_openapi(), open_routes().into_openapi())
}

fn describe(gated: OpenApi, open: OpenApi) -> OpenApi {
    let mut document = OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Baton relayer")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(DESCRIPTION))
                .build(),
        )
        .build();
    let scheme = |header: &str, about: &str| {
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(header, about)))
    };
    let mut gated = gated;
    #[cfg(feature = "mcp")]
    tools::describe(&mut gated.paths);
    let components = gated.components.get_or_insert_default();
    let mut all = SecurityRequirement::default();
    for (header, about) in open::AUTH_HEADERS {
        components.add_security_scheme(header, scheme(header, about));
        all = all.add(header, Vec::<String>::new());
    }
    components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    gated.security = None;
    for (path, item) in &mut gated.paths.paths {
        let token = (path == gate::AGENTS).then(|| SecurityRequirement::new("token", Vec::<String>::new()));
        for (_, operation) in open::operations(item) {
            operation.security = Some([Some(all.clone()), token.clone()].into_iter().flatten().collect());
        }
    }
    document.merge(gated);
    document.merge(open);
    completion::complete(&mut document);
    constraints::constrain(&mut document);
    document
}

const DESCRIPTION: &str = "Memory across conversations. Every request but those to /health, /readyz, /version, /relayer, /config, \
    /sui and /openapi.json is signed: Ed25519 over `{timestamp}.{METHOD}.{path and query}.{SHA-256 of the body, hex}.{nonce}.\
    {account id}`, in the headers x-public-key, x-signature (both hex), x-timestamp (seconds), x-nonce (a UUID) and \
    x-account-id (the Sui address of the owner's key). The query parameter `relayer`, the key at /relayer, binds a request to \
    this relayer; it may be required. A body of more than 2 MiB needs its SHA-256, hex, in \
    x-body-sha256 too, so that its signature is checked before it is read. A key that is not the owner's needs a delegation, registered or in \
    the header x-delegation. Errors are JSON with code, message, hint and request_id; a 429 or 503 says in Retry-After \
    when to come back. Times are RFC 3339. The namespace `default` is the shared pool of no project.";

/// The whole server: open routes, gated ones, and `/mcp`. `more` are further routes behind the gate.
pub fn router(app: &AppState, more: OpenApiRouter<AppState>) -> Router {
    let (gated, gated_document) = gated_routes().merge(more).split_for_parts();
    let (open, open_document) = open_routes().split_for_parts();
    let _ = app.inner.document.set(describe(gated_document, open_document));
    let gated: Router = gated.with_state(app.clone());
    #[cfg(feature = "mcp")]
    let gated = gated.clone().merge(tools::router(gated));
    let gated = gated
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), gate::gate));
    let open = open.layer(middleware::from_fn_with_state(app.clone(), gate::open)).with_state(app.clone());
    open.merge(gated)
        .fallback(async || ApiError::new(api_error::NO_ROUTE))
        .method_not_allowed_fallback(async || ApiError::new(api_error::NO_METHOD))
        .layer(middleware::from_fn(api_error::finish))
}

/// Serves until `shutdown`, then lets running requests finish.
///
/// # Errors
/// The listener's.
pub async fn serve(
    app: AppState,
    router: Router,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    listen::serve(listener, router, shutdown, SHUTDOWN_GRACE).await?;
    // Work for a disconnected client is finished anyway.
    app.inner.tasks.close();
    if tokio::time::timeout(SHUTDOWN_GRACE, app.inner.tasks.wait()).await.is_err() {
        tracing::warn!("tasks of requests still run at the end of the grace period");
    }
    Ok(())
}

/// Locks a mutex that is never held across an await.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
