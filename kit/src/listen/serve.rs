//! Serves a router through the bounded listener, and ends in bounded time.

use std::{
    future::{Future, ready},
    io,
    time::Duration,
};

use axum::{Router, serve::Listener};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::oneshot,
    task::JoinSet,
};

use super::{Activity, BoundedListener, SlotStream, activity::watched};

/// Serves `router` until `shutdown` ends. Requests that run then have the time `grace`, and are cut off after it.
///
/// A handler gets the [`Activity`] of its connection as `ConnectInfo`. Dropping this future closes the listener, and
/// does not wait for running requests.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> io::Result<()> {
    serve_through(listener, router, shutdown, grace, |stream| ready(Some(stream))).await
}

/// As [`serve`], with each connection's bytes through `open`, such as TLS. No connection waits for another's handshake,
/// and each keeps its slot and its limits meanwhile. A connection for which `open` gives no stream has ended.
///
/// # Errors
/// The listener's.
pub async fn serve_through<I, F>(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
    open: impl Fn(SlotStream) -> F + Send + 'static,
) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<I>> + Send + 'static,
{
    let (stopping, stopped) = oneshot::channel();
    let service = watched(router).into_make_service_with_connect_info::<Activity>();
    let listener = OpeningListener::new(BoundedListener::new(listener), open);
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        shutdown.await;
        // The receiver is gone only when the server has ended by itself.
        let _ = stopping.send(());
    });
    tokio::select! {
        biased;
        ended = server.into_future() => ended?,
        () = async {
            // An error means that the shutdown future was dropped with the server: the other arm ends.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(grace).await;
        } => tracing::warn!("requests still running at the end of the grace period are cut off"),
    }
    Ok(())
}

/// The bounded listener, with each connection opened.
pub(super) struct OpeningListener<O, I> {
    listener: BoundedListener,
    open: O,
    /// The connections that are being opened; each has a slot.
    opening: JoinSet<Option<(I, Activity)>>,
}

impl<O, I: 'static> OpeningListener<O, I> {
    pub(super) fn new(listener: BoundedListener, open: O) -> Self {
        Self { listener, open, opening: JoinSet::new() }
    }
}

impl<O, F, I> Listener for OpeningListener<O, I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<I>> + Send + 'static,
    O: Fn(SlotStream) -> F + Send + 'static,
{
    type Io = I;
    type Addr = Activity;

    async fn accept(&mut self) -> (I, Activity) {
        loop {
            // Each arm may be dropped: an accepted connection is in the listener or in the set.
            tokio::select! {
                (stream, activity) = self.listener.accept() => {
                    let opened = (self.open)(stream);
                    self.opening.spawn(async move { Some((opened.await?, activity)) });
                }
                Some(opened) = self.opening.join_next() => {
                    if let Ok(Some(opened)) = opened {
                        return opened;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Activity> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;

    /// A server whose one route reports the start of a request, and answers when it is released.
    struct TestServer {
        address: SocketAddr,
        begun: Arc<Notify>,
        released: Arc<Notify>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<io::Result<()>>,
    }

    async fn start(grace: Duration) -> TestServer {
        let (begun, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (starts, ends) = (begun.clone(), released.clone());
        let answer = async move || {
            starts.notify_one();
            ends.notified().await;
            "answered"
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap() };
        let task = tokio::spawn(serve(listener, Router::new().route("/", get(answer)), shutdown, grace));
        TestServer { address, begun, released, stop, task }
    }

    async fn request(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await.unwrap();
        stream
    }

    #[tokio::test]
    async fn a_running_request_is_answered_after_the_shutdown_signal() {
        let server = start(Duration::from_secs(3600)).await;
        let mut stream = request(server.address).await;
        server.begun.notified().await;
        server.stop.send(()).unwrap();
        server.released.notify_one();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("answered"), "{answer}");
        server.task.await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[tokio::test]
    async fn a_request_that_runs_past_the_grace_period_does_not_keep_the_server() {
        let server = start(Duration::ZERO).await;
        let _stream = request(server.address).await;
        server.begun.notified().await;
        server.stop.send(()).unwrap();
        server.task.await.unwrap().unwrap();
    }
}
