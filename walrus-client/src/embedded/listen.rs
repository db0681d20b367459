//! A TCP listener with a bounded number of open connections, none of which is kept for nothing: one that neither has
//! a request under way nor moves bytes of an answer is closed, and gives its place to the next. So is one whose reader
//! takes an answer too slowly on average.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    extract::{ConnectInfo, Request, connect_info::Connected},
    middleware::{self, Next},
    response::Response,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep},
};

use super::{
    acquire,
    config::{IDLE_TIMEOUT, MAX_CONNECTIONS, MIN_READ_RATE},
};

/// Accepts no more than `MAX_CONNECTIONS` at a time; the others wait in the system's queue.
#[derive(Debug)]
pub struct Limited {
    listener: TcpListener,
    slots: Arc<Semaphore>,
    idle: Duration,
}

impl Limited {
    /// Around a bound listener.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self::with(listener, MAX_CONNECTIONS, IDLE_TIMEOUT)
    }

    fn with(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        Self { listener, slots: Arc::new(Semaphore::new(connections)), idle }
    }
}

impl Listener for Limited {
    type Io = Slotted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Slotted, SocketAddr) {
        let slot = acquire(&self.slots).await;
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Answers are small and waited for: none is held back to be sent with a next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection stays without TCP_NODELAY");
        }
        (Slotted::new(stream, slot, self.idle), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// What goes on on a connection, shared with the requests that come over it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<Busy>>);

#[derive(Debug)]
struct Busy {
    /// Requests whose head has arrived and whose answer has not begun.
    running: usize,
    /// When the last of them ended, or bytes of an answer last left; at first, when the connection began. Bytes
    /// that arrive do not count: a head has to be complete in time.
    last: Instant,
}

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Busy { running: 0, last: Instant::now() })))
    }

    fn lock(&self) -> MutexGuard<'_, Busy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> RunningRequest {
        self.lock().running += 1;
        RunningRequest(self.clone())
    }

    /// Since when nothing goes on.
    fn idle_since(&self) -> Option<Instant> {
        let busy = self.lock();
        (busy.running == 0).then_some(busy.last)
    }
}

impl Connected<IncomingStream<'_, Limited>> for Activity {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        stream.io().activity.clone()
    }
}

/// Marks a request as under way until it is dropped.
struct RunningRequest(Activity);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut busy = self.0.lock();
        busy.running -= 1;
        busy.last = Instant::now();
    }
}

/// Makes a router tell each connection of its requests. It must then be served with [`Activity`] as connect info.
pub fn watched(router: Router) -> Router {
    router.layer(middleware::from_fn(
        async |ConnectInfo(activity): ConnectInfo<Activity>, request: Request, next: Next| -> Response {
            let _running = activity.begin();
            next.run(request).await
        },
    ))
}

/// A connection that gives its slot back when it is dropped, and fails when it is idle for too long.
#[derive(Debug)]
pub struct Slotted {
    stream: TcpStream,
    activity: Activity,
    idle: Duration,
    alarm: Pin<Box<Sleep>>,
    debt: Debt,
    write_alarm: Pin<Box<Sleep>>,
    _slot: OwnedSemaphorePermit,
}

impl Slotted {
    fn new(stream: TcpStream, slot: OwnedSemaphorePermit, idle: Duration) -> Self {
        let alarm = || Box::pin(tokio::time::sleep(idle));
        Self {
            stream,
            activity: Activity::new(),
            idle,
            alarm: alarm(),
            debt: Debt::default(),
            write_alarm: alarm(),
            _slot: slot,
        }
    }

    /// What a pending read or write comes to: an error once nothing has gone on for too long. While a request runs
    /// it stays pending; whatever follows the request polls again.
    fn unless_idle<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        while let Some(since) = self.activity.idle_since() {
            let due = since + self.idle;
            if self.alarm.deadline() != due {
                self.alarm.as_mut().reset(due);
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Only this task polls, but a request may have begun or ended on another one meanwhile.
            if self.activity.idle_since().is_some_and(|since| since + self.idle <= Instant::now()) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was idle")));
            }
        }
        Poll::Pending
    }

    /// What a write comes to: what it is, unless the reader is idle or too slow.
    fn wrote(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if written.is_ready() {
            if let Poll::Ready(Ok(bytes)) = written {
                self.debt.moved(bytes, now);
            }
            self.activity.lock().last = now;
            return written;
        }
        let due = self.debt.stalled(now) + self.idle;
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

impl AsyncRead for Slotted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.unless_idle(context),
            // Also a head that comes in drops ends.
            ready if !buffer.filled().is_empty() => match self.unless_idle::<()>(context) {
                Poll::Ready(error) => Poll::Ready(error),
                Poll::Pending => ready,
            },
            ready => ready,
        }
    }
}

impl AsyncWrite for Slotted {
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

/// How far a reader lags behind [`MIN_READ_RATE`]: the time for which the server had to wait for it, less the time that
/// the bytes taken are worth. Time in which the server has nothing to send does not count.
#[derive(Debug, Default)]
struct Debt {
    time: Duration,
    since: Option<Instant>,
}

impl Debt {
    /// The reader takes nothing more for now. From when on it would have lagged if it had always stood still.
    fn stalled(&mut self, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since.checked_sub(self.time).unwrap_or(since)
    }

    /// The reader took so many bytes.
    fn moved(&mut self, bytes: usize, now: Instant) {
        let waited = self.since.take().map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        let worth = Duration::from_micros(bytes as u64 * 1_000_000 / MIN_READ_RATE);
        self.time = (self.time + waited).saturating_sub(worth);
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;

    const IDLE: Duration = Duration::from_millis(200);
    /// Far beyond [`IDLE`], also on a loaded machine.
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_reader_lags_by_its_pace_and_not_by_the_pauses_of_the_server() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let rate = usize::try_from(MIN_READ_RATE).unwrap();
        for (bytes_a_second, lags) in [(rate / 2, true), (rate, false), (2 * rate, false)] {
            let mut debt = Debt::default();
            for number in 0..100 {
                debt.stalled(start + number * second);
                debt.moved(bytes_a_second, start + (number + 1) * second);
            }
            let due = debt.stalled(start + 100 * second) + IDLE_TIMEOUT;
            assert_eq!(due <= start + 100 * second, lags, "{bytes_a_second}");
        }
        let mut debt = Debt::default();
        // An hour between two writes that are taken at once.
        debt.moved(1, start);
        debt.moved(1, start + 3600 * second);
        assert_eq!(debt.stalled(start + 3600 * second), start + 3600 * second);
    }

    /// A server whose `/slow` answers once `go` is notified.
    async fn serve(connections: usize, go: Arc<Notify>) -> (SocketAddr, JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let slow = get(async move || {
            go.notified().await;
            "done"
        });
        let router = watched(Router::new().route("/slow", slow).route("/", get(async || "done")));
        let service = router.into_make_service_with_connect_info::<Activity>();
        let serving = axum::serve(Limited::with(listener, connections, IDLE), service);
        (address, tokio::spawn(serving.into_future()))
    }

    async fn get_last(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: store\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(SOON, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
        answer
    }

    #[tokio::test]
    async fn idle_sockets_give_their_places_to_those_who_wait() {
        let (address, server) = serve(2, Arc::default()).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut halfway = TcpStream::connect(address).await.unwrap();
        halfway.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        assert!(get_last(&mut third, "/").await.ends_with("done"));
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
        // An end in good order or by a reset: what counts is that it ends, and without an answer.
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
