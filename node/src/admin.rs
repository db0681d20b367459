//! The admin port: health, readiness, metrics, status and its page, over HTTP on a loopback address only.
//!
//! `daemon` binds and runs it. `baton-node status` and monitoring query it. It changes nothing, and shows addresses,
//! counts, states and options, never a session, a text or a key.

pub(crate) mod network;
mod page;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use baton_kit::listen;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::{PeerCounts, Speed, TurnCounts, exposition::MEDIA_TYPE};
pub(crate) use network::NetworkStatus;

/// Time for running answers after the stop. An open connection must not delay the node's shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A model in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelInfo {
    /// Display name.
    pub(crate) name: String,
    /// The model's ID, hex.
    pub(crate) model: String,
    /// `native`, `proxied` or `echo`.
    pub(crate) engine: String,
    /// Tokens of context.
    pub(crate) context_tokens: u32,
}

/// The store, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreStatus {
    /// Base URLs for writing blobs, in order of preference.
    pub(crate) publishers: Vec<String>,
    /// Base URLs for reading blobs, in order of preference.
    pub(crate) aggregators: Vec<String>,
    /// Whether the store answered recently.
    pub(crate) reachable: bool,
    /// Seconds since the store last answered; `None` if it never did.
    pub(crate) answered_seconds_ago: Option<u64>,
}

/// The node's state; the answer of `/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The process runs and answers.
    pub(crate) healthy: bool,
    /// The node takes turns and can store them.
    pub(crate) ready: bool,
    /// Reasons why the node is not ready, for people.
    pub(crate) not_ready: Vec<String>,
    /// Running turns may finish; new turns are refused.
    #[serde(default)]
    pub(crate) draining: bool,
    /// The node's Ed25519 key, hex.
    pub(crate) node: String,
    /// The node's libp2p peer ID.
    pub(crate) peer_id: String,
    /// Version of the program.
    pub(crate) version: String,
    /// Seconds since the start.
    pub(crate) uptime_seconds: u64,
    /// Addresses that the node listens on, each with the node's identity.
    pub(crate) listen: Vec<String>,
    /// Peers.
    pub(crate) peers: PeerCounts,
    /// Models served.
    pub(crate) models: Vec<ModelInfo>,
    /// Turns that may be served at once.
    pub(crate) slots: u32,
    /// Turns that may wait for a slot.
    pub(crate) queue: u32,
    /// Counts of turns, now and since the start.
    pub(crate) turns: TurnCounts,
    /// Speed of the answers of the last minute.
    #[serde(default)]
    pub(crate) speed: Speed,
    /// The store.
    pub(crate) store: StoreStatus,
    /// Resident memory, where the system reports it.
    pub(crate) resident_bytes: Option<u64>,
    /// The node's view of the network, once it has joined.
    #[serde(default)]
    pub(crate) network: Option<NetworkStatus>,
}

/// The data behind the admin port. No method may block.
pub(crate) trait StatusSource: Send + Sync {
    /// The current status.
    fn status(&self) -> Status;
    /// All metrics, as text.
    fn metrics(&self) -> String;
    /// The options in force as lines of a configuration file, without secrets.
    fn settings(&self) -> String;
}

type Source = Arc<dyn StatusSource>;

/// The routes.
fn router(source: Source) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/settings", get(settings))
        .with_state(source)
        .merge(page::routes())
        .layer(middleware::from_fn(refuse_other_hosts))
}

/// Serves until `stop`, then gives running answers a moment.
///
/// # Errors
/// The listener's.
pub(crate) async fn serve(
    listener: TcpListener,
    source: Source,
    stop: CancellationToken,
) -> std::io::Result<()> {
    listen::serve(listener, router(source), stop.cancelled_owned(), SHUTDOWN_GRACE).await
}

async fn ready(State(source): State<Source>) -> (StatusCode, String) {
    let status = source.status();
    if status.ready {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", status.not_ready.join("; ")))
    }
}

async fn metrics(State(source): State<Source>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], source.metrics())
}

async fn status(State(source): State<Source>) -> Json<Status> {
    Json(source.status())
}

async fn settings(State(source): State<Source>) -> String {
    source.settings()
}

/// Refuses requests whose `Host` is not loopback. A web page may point its own name at 127.0.0.1, and a local
/// browser would then send its requests here.
async fn refuse_other_hosts(request: Request, next: Next) -> Response {
    if is_loopback_host(request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "ask for this machine's loopback address\n").into_response()
    }
}

fn is_loopback_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.parse::<SocketAddr>() {
        Ok(address) => return address.ip().is_loopback(),
        Err(_) => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct FixedStatus {
        ready: AtomicBool,
    }

    impl StatusSource for FixedStatus {
        fn status(&self) -> Status {
            let ready = self.ready.load(Ordering::SeqCst);
            let not_ready = if ready { Vec::new() } else { vec!["the store does not answer".to_owned()] };
            Status { healthy: true, ready, not_ready, ..Status::default() }
        }

        fn metrics(&self) -> String {
            "m 1\n".to_owned()
        }

        fn settings(&self) -> String {
            "slots = 3\n".to_owned()
        }
    }

    struct Server {
        address: SocketAddr,
        source: Arc<FixedStatus>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<std::io::Result<()>>,
        client: reqwest::Client,
    }

    impl Server {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (source, stop) = (Arc::new(FixedStatus::default()), CancellationToken::new());
            let task = tokio::spawn(serve(listener, source.clone(), stop.clone()));
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            Self { address, source, stop, task, client }
        }

        async fn get(&self, path: &str) -> (u16, String, String) {
            let answer = self.client.get(format!("http://{}{path}", self.address)).send().await.unwrap();
            let media =
                answer.headers().get(header::CONTENT_TYPE).map(|media| media.to_str().unwrap().to_owned());
            (answer.status().as_u16(), media.unwrap_or_default(), answer.text().await.unwrap())
        }
    }

    #[tokio::test]
    async fn answers_health_readiness_metrics_and_status_and_stops() {
        let server = Server::start().await;
        assert_eq!(server.get("/healthz").await.0, 200);
        let (code, _, text) = server.get("/readyz").await;
        assert_eq!((code, text.as_str()), (503, "not ready: the store does not answer\n"));
        server.source.ready.store(true, Ordering::SeqCst);
        assert_eq!(server.get("/readyz").await.0, 200);
        let (_, media, text) = server.get("/metrics").await;
        assert_eq!((media.as_str(), text.as_str()), (MEDIA_TYPE, "m 1\n"));
        let (_, media, text) = server.get("/status").await;
        assert_eq!(media, "application/json");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), server.source.status());
        assert_eq!(server.get("/settings").await.2, "slots = 3\n");
        assert_eq!(server.get("/other").await.0, 404);
        server.stop.cancel();
        server.task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody() {
        let server = Server::start().await;
        for (path, media) in [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")]
        {
            let answer = server.client.get(format!("http://{}{path}", server.address)).send().await.unwrap();
            let header = |name| answer.headers().get(name).unwrap().to_str().unwrap().to_owned();
            assert!(header(header::CONTENT_TYPE).starts_with(media), "{path}");
            let policy = header(header::CONTENT_SECURITY_POLICY);
            for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
                assert!(policy.contains(part), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }

    #[tokio::test]
    async fn refuses_other_methods_and_requests_under_another_name() {
        let server = Server::start().await;
        let url = format!("http://{}/status", server.address);
        assert_eq!(server.client.post(&url).send().await.unwrap().status(), 405);
        for host in ["rebound.example", "rebound.example:9464", "10.0.0.1", "localhost.example:1", ""] {
            let answer = server.client.get(&url).header(header::HOST, host).send().await.unwrap();
            assert!(matches!(answer.status().as_u16(), 400 | 403), "{host}: {}", answer.status());
        }
        for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:1"] {
            let answer = server.client.get(&url).header(header::HOST, host).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{host}");
        }
    }
}
