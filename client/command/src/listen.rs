//! A TCP listener with a bounded number of open connections, shared fairly among addresses.
//!
//! A connection is closed in time if it has no request and moves no bytes of an answer. So is one whose peer
//! takes an answer or sends a body too slowly on average. While slots are few, a new connection takes the
//! slot of a silent peer from the address with the most connections: see `shares`. Every program's HTTP
//! listener serves through it: [`serve()`], or [`serve_through`] below TLS.

mod activity;
mod pace;
mod resets;
mod serve;
mod shares;
#[cfg(test)]
mod silent_connections;

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep},
};

pub use activity::Activity;
use pace::Lag;
use resets::ResetOrigins;
pub use serve::{serve, serve_through};
use shares::{Admission, Connection, Origin, Slots};

/// Connections with a slot: each of the embedded store may hold two chunks of 256 KiB in memory.
const MAX_CONNECTIONS: usize = 256;
/// Sockets of a listener for each slot: the slot's own, one that another connection replaced and that closes, and
/// one that waits for a slot. From a waiting one, nothing is read.
const SOCKETS_PER_SLOT: usize = 3;
/// Time without a request and without sent answer bytes after which a connection is closed. So idle sockets
/// cannot lock out other peers. Also the time for a whole request head. Clients keep connections for some
/// seconds between requests; later they open new ones.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Slowest average pace in bytes a second at which a peer may take an answer or send a request's body, apart
/// from [`IDLE_TIMEOUT`]. The slowest mobile connections are some times faster.
const MIN_TRANSFER_RATE: u64 = 8 * 1024;
/// How often waiting connections look for a slot: a request may have ended. Also the pause after a failed accept.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections into a bounded number of slots, shared by address. A connection without a free slot
/// waits. When too many wait, the oldest connection of the address with the most is closed.
#[derive(Debug)]
struct BoundedListener {
    listener: TcpListener,
    table: Arc<ConnectionTable>,
    waiting: VecDeque<(TcpStream, SocketAddr)>,
    /// Open sockets with a slot, and replaced sockets whose tasks have not ended yet.
    sockets: Arc<Semaphore>,
    slots: Slots,
    idle: Duration,
}

/// The connections with a slot.
#[derive(Debug, Default)]
struct ConnectionTable {
    connections: Mutex<HashMap<u64, (Origin, Activity)>>,
    next_id: AtomicU64,
    /// Signals a freed slot.
    freed: Notify,
    resets: Arc<ResetOrigins>,
}

impl ConnectionTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Origin, Activity)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present connections.
    fn snapshot(&self) -> Vec<Connection> {
        let connections = self.lock();
        let each = connections.iter();
        each.map(|(id, (origin, activity))| Connection {
            id: *id,
            origin: *origin,
            silent_since: activity.silent_since(),
        })
        .collect()
    }
}

impl BoundedListener {
    /// Wraps a bound listener.
    fn new(listener: TcpListener) -> Self {
        Self::with(listener, Slots::new(open_files()), IDLE_TIMEOUT)
    }

    fn with(listener: TcpListener, slots: Slots, idle: Duration) -> Self {
        let sockets = Arc::new(Semaphore::new(2 * slots.all));
        Self { listener, table: Arc::default(), waiting: VecDeque::new(), sockets, slots, idle }
    }

    /// The first waiting connection that may have a slot now. Closes the connection that it replaces.
    fn admit(&mut self) -> Option<(TcpStream, SocketAddr)> {
        if self.waiting.is_empty() {
            return None;
        }
        let open = self.table.snapshot();
        let decided = self.waiting.iter().enumerate().find_map(|(index, (_, address))| {
            match self.slots.admit(&open, address.ip().into()) {
                Admission::Wait => None,
                decided => Some((index, decided)),
            }
        });
        let (index, admission) = decided?;
        if let Admission::Replace(id) = admission
            && let Some((_, activity)) = self.table.lock().remove(&id)
        {
            activity.replace();
        }
        self.waiting.remove(index)
    }

    /// Queues a new connection, or resets it if its address is to be. When too many wait, closes one of them.
    fn wait(&mut self, stream: TcpStream, address: SocketAddr) {
        if self.table.resets.has(address.ip().into(), Instant::now()) {
            reset(&stream);
            return;
        }
        self.waiting.push_back((stream, address));
        if self.waiting.len() > self.slots.all {
            self.refuse_waiting();
        }
    }

    /// Closes the oldest waiting connection of the address with the most.
    fn refuse_waiting(&mut self) {
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        for (_, address) in &self.waiting {
            *counts.entry(address.ip().into()).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let oldest = most.and_then(|(origin, _)| {
            self.waiting.iter().position(|(_, address)| Origin::from(address.ip()) == origin)
        });
        if let Some(oldest) = oldest {
            self.waiting.remove(oldest);
        }
    }
}

/// Makes the close of a connection a reset. Closed without one, the socket would stay in the kernel for a minute.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "a refused connection is closed without a reset");
    }
}

/// The number of files that this process may have open.
fn open_files() -> Option<usize> {
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    let limit: Option<u64> = None;
    limit.and_then(|files| usize::try_from(files).ok())
}

impl Listener for BoundedListener {
    type Io = SlotStream;
    type Addr = Activity;

    async fn accept(&mut self) -> (SlotStream, Activity) {
        let socket = self.sockets.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            if let Some((stream, address)) = self.admit() {
                // Answers are small and awaited, so none may be delayed to join a later one.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection stays without TCP_NODELAY");
                }
                let slot = Slot::take(self.table.clone(), address, self.idle, socket);
                let activity = slot.activity.clone();
                return (SlotStream::new(stream, slot), activity);
            }
            let some_wait = !self.waiting.is_empty();
            // Each arm may be dropped: an accepted connection is in `waiting` before the next await.
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, address)) => self.wait(stream, address),
                    Err(error) => {
                        tracing::debug!(%error, "a connection was not accepted");
                        // The program may have no file descriptor left.
                        self.refuse_waiting();
                        tokio::time::sleep(WAIT_PAUSE).await;
                    }
                },
                () = self.table.freed.notified(), if some_wait => {}
                () = tokio::time::sleep(WAIT_PAUSE), if some_wait => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<Activity> {
        Ok(Activity::new(self.listener.local_addr()?, self.idle, self.table.resets.clone()))
    }
}

/// An entry in the table, freed on drop.
#[derive(Debug)]
struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
    activity: Activity,
    _socket: OwnedSemaphorePermit,
}

impl Slot {
    fn take(
        table: Arc<ConnectionTable>,
        address: SocketAddr,
        idle: Duration,
        socket: OwnedSemaphorePermit,
    ) -> Self {
        let id = table.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Activity::new(address, idle, table.resets.clone());
        table.lock().insert(id, (address.ip().into(), activity.clone()));
        Self { table, id, activity, _socket: socket }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.table.lock().remove(&self.id);
        self.table.freed.notify_one();
    }
}

/// A connection that frees its slot on drop, and fails when it is idle for too long or replaced.
#[derive(Debug)]
pub struct SlotStream {
    stream: TcpStream,
    slot: Slot,
    /// Whether nothing has been read yet.
    fresh: bool,
    alarm: Pin<Box<Sleep>>,
    lag: Lag,
    write_alarm: Pin<Box<Sleep>>,
}

impl SlotStream {
    fn new(stream: TcpStream, slot: Slot) -> Self {
        let alarm = || Box::pin(tokio::time::sleep(slot.activity.patience()));
        Self { stream, fresh: true, alarm: alarm(), lag: Lag::default(), write_alarm: alarm(), slot }
    }

    fn activity(&self) -> &Activity {
        &self.slot.activity
    }

    /// An error once another connection has taken its slot.
    fn unless_replaced(&self, context: &Context<'_>) -> io::Result<()> {
        if !self.activity().is_replaced(context) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the connection was silent while slots were few",
        ))
    }

    /// The result of a pending read or write: an error after too long without activity. During a request it
    /// stays pending; the end of the request polls again.
    fn unless_idle<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let patience = self.activity().patience();
        while let Some(since) = self.activity().idle_since() {
            let due = since + patience;
            if self.alarm.deadline() != due {
                self.alarm.as_mut().reset(due);
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Only this task polls, but a request may have begun or ended in another task meanwhile.
            if self.activity().idle_since().is_some_and(|since| since + patience <= Instant::now()) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was idle")));
            }
        }
        Poll::Pending
    }

    /// The result of a write, or an error if the reader is idle or too slow.
    fn wrote(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if written.is_ready() {
            if let Poll::Ready(Ok(bytes)) = written {
                self.lag.moved(bytes, now);
            }
            self.activity().sent(now);
            return written;
        }
        self.unless_replaced(context)?;
        self.activity().stalls(now);
        let due = self.lag.stalled(now) + self.activity().patience();
        if self.write_alarm.deadline() != due {
            self.write_alarm.as_mut().reset(due);
        }
        if self.write_alarm.as_mut().poll(context).is_ready() {
            let slow = io::Error::new(io::ErrorKind::TimedOut, "the reader takes its answer too slowly");
            return Poll::Ready(Err(slow));
        }
        self.unless_idle(context)
    }
}

impl AsyncRead for SlotStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.unless_replaced(context)?;
        // Of a burst of connections, many are accepted before the first of them is refused.
        if self.fresh && self.activity().is_reset() {
            reset(&self.stream);
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.fresh &= read.is_pending();
        match read {
            Poll::Pending => self.unless_idle(context),
            // A head that arrives drop by drop also ends.
            ready if !buffer.filled().is_empty() => match self.unless_idle::<()>(context) {
                Poll::Ready(error) => Poll::Ready(error),
                Poll::Pending => ready,
            },
            ready => ready,
        }
    }
}

impl AsyncWrite for SlotStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(written, context)
    }

    /// Otherwise every body would be copied behind its head before it is sent.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        extract::ConnectInfo,
        routing::{get, post},
    };
    use bytes::Bytes;
    use futures::{StreamExt as _, stream};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Notify,
        task::JoinHandle,
    };

    use super::{activity::watched, serve::OpeningListener, *};

    const IDLE: Duration = Duration::from_millis(200);
    /// Far beyond [`IDLE`], even on a loaded machine.
    const SOON: Duration = Duration::from_secs(20);

    type Server = (SocketAddr, JoinHandle<io::Result<()>>);

    async fn serve_routes(routes: Router, connections: usize, idle: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = watched(routes).into_make_service_with_connect_info::<Activity>();
        let slots = Slots { all: connections, per_origin: connections };
        let listener = BoundedListener::with(listener, slots, idle);
        let serving = axum::serve(OpeningListener { listener, open: |stream| stream }, service);
        (address, tokio::spawn(serving.into_future()))
    }

    /// A server whose `/slow` answers once `go` is notified, and whose `/body` reads a whole body first.
    async fn serve(connections: usize, go: Arc<Notify>) -> Server {
        let slow = get(async move || {
            go.notified().await;
            "done"
        });
        let routes = Router::new().route("/slow", slow).route("/", get(async || "done"));
        serve_routes(routes.route("/body", post(async |_: Bytes| "done")), connections, IDLE).await
    }

    async fn get_last(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: store\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
        answer
    }

    #[tokio::test]
    async fn idle_sockets_free_their_slots_for_waiting_connections() {
        let (address, server) = serve(2, Arc::default()).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut halfway = TcpStream::connect(address).await.unwrap();
        halfway.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        assert!(get_last(&mut third, "/").await.ends_with("done"));
        server.abort();
    }

    #[tokio::test]
    async fn connections_of_a_refused_address_are_reset_for_a_moment() {
        let refuse = get(async |ConnectInfo(activity): ConnectInfo<Activity>| {
            activity.reset_next(Duration::from_secs(60));
            "refused"
        });
        let (address, server) = serve_routes(Router::new().route("/", refuse), 8, IDLE).await;
        let connect = async || TcpStream::connect(address).await.unwrap();
        assert!(get_last(&mut connect().await, "/").await.ends_with("refused"));
        let error = connect().await.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(get_last(&mut connect().await, "/").await.ends_with("refused"));
        server.abort();
    }

    #[tokio::test]
    async fn a_refusal_resets_the_connections_that_were_accepted_before_it_and_said_nothing() {
        let refuse = get(async |ConnectInfo(activity): ConnectInfo<Activity>| {
            activity.reset_next(Duration::from_secs(60));
            "refused"
        });
        let routes = Router::new().route("/", refuse).route("/other", get(async || "other"));
        let (address, server) = serve_routes(routes, 8, SOON).await;
        let request = b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n";
        let answer = async |stream: &mut TcpStream| {
            let mut answer = Vec::new();
            while !answer.ends_with(b"other") {
                assert_ne!(stream.read_buf(&mut answer).await?, 0, "an end without an answer");
            }
            io::Result::Ok(())
        };
        let (mut kept, mut fresh) =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        kept.write_all(request).await.unwrap();
        answer(&mut kept).await.unwrap();
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert!(get_last(&mut refused, "/").await.ends_with("refused"));
        fresh.write_all(request).await.unwrap();
        assert_eq!(answer(&mut fresh).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        kept.write_all(request).await.unwrap();
        answer(&mut kept).await.expect("a connection in use goes on");
        server.abort();
    }

    #[tokio::test]
    async fn a_head_in_drops_does_not_keep_a_connection() {
        let (address, server) = serve(2, Arc::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let (mut from, mut to) = stream.split();
        let dripping = async {
            let mut pause = tokio::time::interval(IDLE / 10);
            loop {
                pause.tick().await;
                if to.write_all(b"x: y\r\n").await.is_err() {
                    return;
                }
            }
        };
        let mut answer = Vec::new();
        // A clean end or a reset: it must only end, and without an answer.
        let ended = async { drop(from.read_to_end(&mut answer).await) };
        let closed = async {
            tokio::select! {
                () = ended => {}
                () = dripping => {}
            }
        };
        tokio::time::timeout(SOON, closed).await.expect("the server closes it");
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
        server.abort();
    }

    #[tokio::test]
    async fn a_body_in_drops_ends() {
        let (address, server) = serve(2, Arc::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n").await.unwrap();
        let (mut from, mut to) = stream.split();
        let dripping = async {
            let mut pause = tokio::time::interval(IDLE / 10);
            // Until the server closes the connection.
            while to.write_all(b"d").await.is_ok() {
                pause.tick().await;
            }
        };
        let mut answer = Vec::new();
        let ended = async { drop(from.read_to_end(&mut answer).await) };
        let closed = async {
            tokio::select! {
                () = ended => {}
                () = dripping => {}
            }
        };
        tokio::time::timeout(SOON, closed).await.expect("the server closes it");
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
        server.abort();
    }

    #[tokio::test]
    async fn a_request_without_its_body_gives_its_slot_to_another() {
        let routes =
            Router::new().route("/body", post(async |_: Bytes| "done")).route("/", get(async || "done"));
        // Nothing ends by itself within this test.
        let (address, server) = serve_routes(routes, 1, 10 * SOON).await;
        let mut waits = TcpStream::connect(address).await.unwrap();
        waits.write_all(b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nb").await.unwrap();
        for _ in 0..3 {
            let mut next = TcpStream::connect(address).await.unwrap();
            assert!(get_last(&mut next, "/").await.ends_with("done"));
        }
        server.abort();
    }

    #[tokio::test]
    async fn a_connection_waits_while_every_slot_works() {
        let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (inside, leave) = (entered.clone(), go.clone());
        let slow = get(async move || {
            inside.notify_one();
            leave.notified().await;
            "slow"
        });
        let routes = Router::new().route("/slow", slow).route("/", get(async || "done"));
        let (address, server) = serve_routes(routes, 1, IDLE).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        let asking = tokio::spawn(async move { get_last(&mut busy, "/slow").await });
        entered.notified().await;
        let mut waits = TcpStream::connect(address).await.unwrap();
        let mut answered = Box::pin(get_last(&mut waits, "/"));
        tokio::select! {
            _ = &mut answered => panic!("the only slot works"),
            () = tokio::time::sleep(3 * IDLE) => go.notify_one(),
        }
        assert!(answered.await.ends_with("done"));
        assert!(asking.await.unwrap().ends_with("slow"));
        server.abort();
    }

    /// An answer whose first byte comes at once, and the second once `go` is notified.
    fn pausing(go: Arc<Notify>) -> Router {
        let body = move || {
            let go = go.clone();
            let later = stream::once(async move {
                go.notified().await;
                Ok::<_, io::Error>(Bytes::from("b"))
            });
            axum::body::Body::from_stream(stream::iter([Ok(Bytes::from("a"))]).chain(later))
        };
        Router::new().route("/", get(async || "done")).route("/pausing", get(async move || body()))
    }

    #[tokio::test]
    async fn an_answer_may_pause_for_longer_than_an_idle_connection_lives() {
        let go = Arc::new(Notify::new());
        let (address, server) = serve_routes(pausing(go.clone()), 2, IDLE).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        busy.write_all(b"GET /pausing HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"a") {
            assert_ne!(busy.read_buf(&mut answer).await.unwrap(), 0);
        }
        for _ in 0..2 {
            let mut silent = TcpStream::connect(address).await.unwrap();
            let closed = tokio::time::timeout(SOON, silent.read(&mut [0])).await.expect("it is closed");
            assert_eq!(closed.unwrap_or(0), 0);
        }
        // It is not silent either: its server is.
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(get_last(&mut others[2], "/").await.ends_with("done"));
        go.notify_one();
        tokio::time::timeout(SOON, busy.read_to_end(&mut answer)).await.expect("the rest").unwrap();
        assert!(answer.ends_with(b"ab"));
        server.abort();
    }

    #[tokio::test]
    async fn a_peer_that_does_not_take_its_answer_gives_its_slot_to_another() {
        let large = get(async || vec![0_u8; 32 * 1024 * 1024]);
        let routes = Router::new().route("/large", large).route("/", get(async || "done"));
        let (address, server) = serve_routes(routes, 1, 10 * SOON).await;
        let mut waits = TcpStream::connect(address).await.unwrap();
        waits.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        waits.read_exact(&mut [0]).await.unwrap();
        let mut next = TcpStream::connect(address).await.unwrap();
        assert!(get_last(&mut next, "/").await.ends_with("done"));
        server.abort();
    }

    #[tokio::test]
    async fn a_request_may_take_longer_than_an_idle_connection_lives() {
        let go = Arc::new(Notify::new());
        let (address, server) = serve(2, go.clone()).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        let asking = tokio::spawn(async move { get_last(&mut busy, "/slow").await });
        for _ in 0..2 {
            // A connection that lives for the whole idle time while the request runs.
            let mut silent = TcpStream::connect(address).await.unwrap();
            let closed = tokio::time::timeout(SOON, silent.read(&mut [0])).await.expect("it is closed");
            assert_eq!(closed.unwrap_or(0), 0);
        }
        go.notify_one();
        assert!(asking.await.unwrap().ends_with("done"));
        server.abort();
    }
}
