//! A local endpoint that speaks OpenAI's API, so that the programs people already have keep their conversations in
//! sealed sessions without knowing of them.
//!
//! A program sends the whole conversation with every request. What stands before its new messages finds the session
//! (`threads.rs`); a request that says something else from some point on becomes an edit of the last turn, or a session
//! that branches off; one that is not known begins a session with what it says. Nothing that was said is lost by that.
//!
//! Only programs with the bearer key are served, under a loopback name or one that was allowed, and pages of other
//! origins only where their origin was.

mod answer;
mod chat;
mod embeddings;
mod fault;
mod format;
mod guard;
mod logprobs;
mod models;
mod page;
mod place;
mod session_header;
mod threads;
mod tools;
mod wire;

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router, middleware,
    routing::{get, post},
};
use baton_proto::{ids::SessionId, record::Message};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use baton_client::{Client, ClientError, MemoryHint, TurnInput, TurnOutcome};
use fault::Fault;
use threads::{MAX_THREADS, Threads};

/// Requests served at once: more than the programs of one person make.
const MAX_REQUESTS: usize = 64;
/// How much coarser a file system's times may be than the clock.
const FILE_TIME_SLACK_MS: u64 = 2_000;
/// How long a session's file is kept after its last turn before other processes may have it.
const KEEP_OPEN: Duration = Duration::from_secs(30);
/// How often files are looked through for that.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How the endpoint is served.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// What every request must carry as `Authorization: Bearer`; none serves every program of this machine.
    pub key: Option<Zeroizing<String>>,
    /// Origins of pages that may ask, such as `https://chat.example`.
    pub origins: Vec<String>,
    /// Names beside loopback ones by which the endpoint may be called (the host of a URL, without a port).
    pub hosts: Vec<String>,
    /// How turns are asked for where a request says nothing else; its messages are unused.
    pub template: TurnInput,
    /// What has turns recalled by the template's relayer, and remembers them; none recalls nothing.
    pub memory: Option<Arc<dyn GatewayMemory>>,
}

/// Memory for the turns of an endpoint.
pub trait GatewayMemory: std::fmt::Debug + Send + Sync {
    /// What the relayer is told to recall for a turn with these new messages.
    fn hint(&self, session: SessionId, messages: &[Message]) -> MemoryHint;

    /// Has an accepted exchange remembered, if that is wanted; a failure is its own affair.
    fn remember<'a>(
        &'a self,
        messages: &'a [Message],
        outcome: &'a TurnOutcome,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// The endpoint.
#[derive(Debug, Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    config: GatewayConfig,
    threads: Mutex<Threads>,
    /// Sessions with when they were used last, to let go of their files.
    open: Mutex<Vec<(SessionId, Instant)>>,
    slots: Arc<Semaphore>,
    /// When the home was last looked through, in milliseconds since the Unix epoch, a little before.
    looked_ms: AtomicU64,
    turns: TaskTracker,
}

impl Gateway {
    /// An endpoint over a client; reads the last used sessions of its home, to find them by what was said.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn open(client: Client, config: GatewayConfig) -> Result<Self, ClientError> {
        let inner = Arc::new(Inner {
            client,
            config,
            threads: Mutex::new(Threads::default()),
            open: Mutex::new(Vec::new()),
            slots: Arc::new(Semaphore::new(MAX_REQUESTS)),
            looked_ms: AtomicU64::new(0),
            turns: TaskTracker::new(),
        });
        let gateway = Self { inner };
        gateway.refresh().await?;
        Ok(gateway)
    }

    /// Learns what changed in the home since the last look.
    async fn refresh(&self) -> Result<(), ClientError> {
        let now = self.client().now_ms();
        let since = self.inner.looked_ms.swap(now.saturating_sub(FILE_TIME_SLACK_MS), Ordering::Relaxed);
        let known = self.inner.clone();
        let learn = move |conversation| known.threads().learn(&conversation);
        self.client().each_conversation(since, MAX_THREADS, learn).await
    }

    /// Serves until `stop` is done, then lets the requests under way end.
    ///
    /// # Errors
    /// Those of the listener.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let letting_go = tokio::spawn(let_go_of_files(self.clone()));
        let served = axum::serve(listener, self.router()).with_graceful_shutdown(stop).await;
        letting_go.abort();
        self.inner.turns.close();
        self.inner.turns.wait().await;
        served
    }

    fn router(&self) -> Router {
        let api = Router::new()
            .route("/v1/chat/completions", post(chat::complete))
            .route("/v1/completions", post(chat::complete_text))
            .route("/v1/models", get(models::list))
            .route("/v1/models/{*model}", get(models::one))
            .route("/v1/embeddings", post(embeddings::create))
            .merge(page::routes())
            .fallback(guard::nothing_here)
            .method_not_allowed_fallback(guard::wrong_method)
            .layer(middleware::from_fn_with_state(self.clone(), guard::admit));
        let files = page::files().layer(middleware::from_fn_with_state(self.clone(), guard::by_allowed_name));
        api.merge(files).with_state(self.clone())
    }

    fn client(&self) -> &Client {
        &self.inner.client
    }

    fn config(&self) -> &GatewayConfig {
        &self.inner.config
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.inner.threads()
    }

    /// Room for one more request, taken before its body is read: what is held in memory is bounded by it.
    fn slot(&self) -> Result<OwnedSemaphorePermit, Fault> {
        self.inner.slots.clone().try_acquire_owned().map_err(|_| Fault::crowded())
    }

    /// Learns what a session says now; it was used.
    async fn learn(&self, session: SessionId) -> Result<(), ClientError> {
        let conversation = self.client().conversation(session).await?;
        self.threads().learn(&conversation);
        Ok(())
    }

    fn opened(&self) -> MutexGuard<'_, Vec<(SessionId, Instant)>> {
        self.inner.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a session's file is open.
    fn used(&self, session: SessionId) {
        let mut open = self.opened();
        open.retain(|(id, _)| *id != session);
        open.push((session, Instant::now()));
    }
}

impl Inner {
    fn threads(&self) -> MutexGuard<'_, Threads> {
        // It is a cache of proposals: whatever a panic left there is compared with the words.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets other processes have the sessions that were not used for a while and have nothing left to do.
async fn let_go_of_files(gateway: Gateway) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let idle: Vec<SessionId> = {
            let open = gateway.opened();
            open.iter().filter(|(_, used)| used.elapsed() >= KEEP_OPEN).map(|(id, _)| *id).collect()
        };
        for session in idle {
            let busy = gateway.client().session(session).await.is_ok_and(|info| info.unstored > 0);
            if !busy {
                gateway.client().release(session);
                gateway.opened().retain(|(id, used)| *id != session || used.elapsed() < KEEP_OPEN);
            }
        }
    }
}

/// Whether an address is of this machine alone.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().is_loopback()
}
