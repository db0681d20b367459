//! A TCP listener with a bounded number of open connections, shared fairly among subnets.
//!
//! A connection is closed in time if it has no request and moves no bytes of an answer. So is one whose peer
//! takes an answer or sends a body too slowly on average. While slots are few, a new connection takes the
//! slot of a silent peer from the subnet with the most connections: see `shares`. Every program's HTTP
//! listener serves through it: [`serve()`], or [`serve_through`] below TLS.

mod activity;
mod pace;
mod serve;
mod shares;
#[cfg(test)]
mod silent_connections;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use baton_limits::{Expiring, Networks, Subnet};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep},
};

pub use activity::Activity;
use pace::Lag;
pub use serve::{serve, serve_through};
use shares::{Admission, Connection, Slots};

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
/// Shortest time for which a subnet is reset after one refusal: with less, a flood gets an answer for each request that
/// its rate is short of.
const SHORTEST_RESET: Duration = Duration::from_millis(250);
/// Longest time: an impatient client learns soon that it may ask again.
const LONGEST_RESET: Duration = Duration::from_secs(1);
/// How often waiting connections look for a slot: a request may have ended. Also the pause after a failed accept.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections into a bounded number of slots, shared by subnet. A connection without a free slot
/// waits. When too many wait, the oldest connection of the subnet with the most is closed.
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
    connections: Mutex<HashMap<u64, (Subnet, Activity)>>,
    next_id: AtomicU64,
    /// Signals a freed slot.
    freed: Notify,
    resets: Resets,
}

/// Subnets whose new connections are reset for a moment: the server would refuse their requests anyway, and a reset costs
/// it a hundredth of an answer. Clones share them.
#[derive(Debug, Clone)]
struct Resets {
    began: Instant,
    state: Arc<Mutex<ResetState>>,
}

#[derive(Debug, Default)]
struct ResetState {
    subnets: Expiring<Subnet>,
    /// The operator's own networks, which are never reset.
    own: Networks,
}

impl Default for Resets {
    fn default() -> Self {
        Self { began: Instant::now(), state: Arc::default() }
    }
}

impl Resets {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Resets new connections of an address's subnet for about `span`, but those of own networks; returns for how long.
    fn insert(&self, address: SocketAddr, span: Duration, own: &Networks) -> Duration {
        let span = span.clamp(SHORTEST_RESET, LONGEST_RESET);
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.state.lock();
        state.own = own.clone();
        state.subnets.insert(address.ip().into(), self.now_ms() + span_ms);
        span
    }

    /// Whether a new connection of an address is reset now.
    fn has(&self, address: SocketAddr) -> bool {
        let state = self.state.lock();
        state.subnets.has(&address.ip().into(), self.now_ms()) && !state.own.has(address.ip())
    }
}

impl ConnectionTable {
    /// The present connections.
    fn snapshot(&self) -> Vec<Connection> {
        let connections = self.connections.lock();
        let each = connections.iter();
        each.map(|(id, (subnet, activity))| Connection {
            id: *id,
            subnet: *subnet,
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
            && let Some((_, activity)) = self.table.connections.lock().remove(&id)
        {
            activity.replace();
        }
        self.waiting.remove(index)
    }

    /// Queues a new connection, or resets it if its subnet is to be. When too many wait, closes one of them.
    fn wait(&mut self, stream: TcpStream, address: SocketAddr) {
        if self.table.resets.has(address) {
            reset(&stream);
            return;
        }
        self.waiting.push_back((stream, address));
        if self.waiting.len() > self.slots.all {
            self.refuse_waiting();
        }
    }

    /// Closes the oldest waiting connection of the subnet with the most.
    fn refuse_waiting(&mut self) {
        let mut counts: HashMap<Subnet, usize> = HashMap::new();
        for (_, address) in &self.waiting {
            *counts.entry(address.ip().into()).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let oldest = most.and_then(|(subnet, _)| {
            self.waiting.iter().position(|(_, address)| Subnet::from(address.ip()) == subnet)
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
                let stream = SlotStream::new((stream, address), self.table.clone(), self.idle, socket);
                let activity = stream.activity.clone();
                return (stream, activity);
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

/// A connection with an entry in the table, which is freed on drop. It fails when it is idle for too long or replaced.
#[derive(Debug)]
pub struct SlotStream {
    stream: TcpStream,
    table: Arc<ConnectionTable>,
    id: u64,
    activity: Activity,
    _socket: OwnedSemaphorePermit,
    /// Whether nothing has been read yet.
    fresh: bool,
    alarm: Pin<Box<Sleep>>,
    lag: Lag,
    write_alarm: Pin<Box<Sleep>>,
}

impl Drop for SlotStream {
    fn drop(&mut self) {
        self.table.connections.lock().remove(&self.id);
        self.table.freed.notify_one();
    }
}

impl SlotStream {
    fn new(
        (stream, address): (TcpStream, SocketAddr),
        table: Arc<ConnectionTable>,
        idle: Duration,
        socket: OwnedSemaphorePermit,
    ) -> Self {
        let id = table.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Activity::new(address, idle, table.resets.clone());
        table.connections.lock().insert(id, (address.ip().into(), activity.clone()));
        let [alarm, write_alarm] = [(); 2].map(|()| Box::pin(tokio::time::sleep(idle)));
        let lag = Lag::default();
        Self { stream, table, id, activity, _socket: socket, fresh: true, alarm, lag, write_alarm }
    }

    /// An error once another connection has taken its slot.
    fn unless_replaced(&self, context: &Context<'_>) -> io::Result<()> {
        if !self.activity.is_replaced(context) {
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
        let patience = self.activity.patience();
        while let Some(since) = self.activity.idle_since() {
            let due = since + patience;
            if self.alarm.deadline() != due {
                self.alarm.as_mut().reset(due);
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Only this task polls, but a request may have begun or ended in another task meanwhile.
            if self.activity.idle_since().is_some_and(|since| since + patience <= Instant::now()) {
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
            self.activity.sent(now);
            return written;
        }
        self.unless_replaced(context)?;
        self.activity.stalls(now);
        let due = self.lag.stalled(now) + self.activity.patience();
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
        if self.fresh && self.activity.is_reset() {
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
