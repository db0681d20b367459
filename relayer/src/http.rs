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
mod constraints;
mod delegations;
mod document;
mod extract;
mod gate;
mod identity;
mod items;
mod limits;
mod namespaces;
mod open;
mod operation;
mod operations;
mod owner;
mod places;
mod recall;
mod remember;
mod removal;
mod shapes;
#[cfg(feature = "mcp")]
mod tools;

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Router, middleware};
use baton_kit::listen;
use baton_limits::{Buckets, Rate, Slots, Subnet};
use baton_memory::{Memory, extraction, ids::OwnerId};
use baton_models::embed::Embedder;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

pub(crate) use api_error::ApiError;
pub use audience::Audience;
pub use client_address::ClientAddresses;
pub use identity::{IdentitySource, MemoryFacts, PeerCounts, RelayerIdentity};
pub use limits::Limits;

use chat::Chat;

use crate::{budgets::Budgets, delegation::registry::Registry, owners::Owners, slots::slots};

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
    config: ServerConfig,
    registry: Registry,
    owner_rates: Mutex<Buckets<OwnerId>>,
    subnet_rates: Mutex<Buckets<Subnet>>,
    requests: Slots,
    large_bodies: Slots,
    tasks: TaskTracker,
    document: OnceLock<Value>,
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
    pub writer: Option<extraction::ModelWriter>,
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
        let limits = &config.limits;
        Self {
            inner: Arc::new(Inner {
                registry: Registry::new(config.memory.clone(), config.audience.relayer),
                owner_rates: Mutex::new(Buckets::new(Rate::per_minute(limits.owner_per_minute.into()))),
                subnet_rates: Mutex::new(Buckets::new(limits.subnet_rate())),
                requests: slots(limits.requests),
                large_bodies: slots(limits.large_bodies),
                tasks: TaskTracker::new(),
                document: OnceLock::new(),
                readiness: tokio::sync::Mutex::default(),
                config,
            }),
        }
    }

    /// The only entry to memory.
    #[must_use]
    pub(crate) fn memory(&self) -> &Memory {
        &self.inner.config.memory
    }

    /// The wall clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub(crate) fn now_ms(&self) -> u64 {
        (self.inner.config.now_ms)()
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
        let answer = self.inner.config.memory.readiness().await;
        *known = Some((tokio::time::Instant::now(), answer.clone()));
        answer
    }

    fn registry(&self) -> &Registry {
        &self.inner.registry
    }
}

/// The whole server: open routes, those of the table, conversations if there are any, and `/mcp`.
pub fn router(app: &AppState, chat: Option<Chat>) -> Router {
    let operations: Vec<_> = operations::table().into_iter().chain(chat.map(chat::operation)).collect();
    let _ = app.inner.document.set(document::document(&operations));
    let routes = open::routes().into_iter();
    let open = routes.fold(Router::new(), |router, (_, path, _, handler)| router.route(path, handler));
    let mut router =
        open.layer(middleware::from_fn_with_state(app.clone(), gate::open)).with_state(app.clone());
    #[cfg(feature = "mcp")]
    {
        router = router.merge(tools::router(app, &operations));
    }
    for operation in operations {
        router = operation.route(app, router);
    }
    router
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
