//! The activity of a connection, and the bodies of its requests: a body that arrives too slowly ends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{ConnectInfo, Request, connect_info::Connected},
    http::{StatusCode, Version},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    serve::{IncomingStream, Listener},
};
use baton_limits::Networks;
use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::{Resets, pace::Lag, serve::OpeningListener};

/// The activity of a connection, shared with its requests.
#[derive(Debug, Clone)]
pub struct Activity(Arc<SharedActivity>);

#[derive(Debug)]
struct SharedActivity {
    /// The address of the other end.
    peer: SocketAddr,
    state: Mutex<ActivityState>,
    /// How long a peer may stand still.
    patience: Duration,
    /// The connection's own task.
    task: AtomicWaker,
    resets: Resets,
}

#[derive(Debug)]
struct ActivityState {
    /// Requests whose head has arrived and whose answer has not ended.
    running: usize,
    /// When the last of them ended, or answer bytes last left; at first, when the connection began. Arriving
    /// bytes do not count: a head must be complete in time.
    last: Instant,
    /// Since when a running request waits for its peer: to send more of the body, or to take more of the answer.
    peer_since: Option<Instant>,
    /// Whether another connection has taken its slot.
    replaced: bool,
}

impl Activity {
    pub(super) fn new(peer: SocketAddr, patience: Duration, resets: Resets) -> Self {
        let state = ActivityState { running: 0, last: Instant::now(), peer_since: None, replaced: false };
        let task = AtomicWaker::new();
        Self(Arc::new(SharedActivity { peer, state: Mutex::new(state), patience, task, resets }))
    }

    /// The address of the connection's other end: the client, or a proxy.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Resets new connections from the same subnet, and those that sent nothing yet, for `span`, but a quarter of a second
    /// at least and a second at most: for a server that would refuse each of their requests. Those of the operator's `own`
    /// networks stay. The address must not be a proxy's, which has other clients. Returns for how long: a client that waits so long meets no reset.
    pub fn reset_next(&self, span: Duration, own: &Networks) -> Duration {
        self.0.resets.insert(self.0.peer, span, own)
    }

    /// Whether new connections from the same subnet are reset now.
    pub(super) fn is_reset(&self) -> bool {
        self.0.resets.has(self.0.peer)
    }

    pub(super) fn patience(&self) -> Duration {
        self.0.patience
    }

    /// Since when the connection has been idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.0.state.lock();
        (state.running == 0).then_some(state.last)
    }

    /// Since when the server waits for the peer: for a request, for more of its body, or for the answer to leave.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        let state = self.0.state.lock();
        if state.running == 0 { Some(state.last) } else { state.peer_since }
    }

    /// Notes that bytes of an answer left.
    pub(super) fn sent(&self, now: Instant) {
        let mut state = self.0.state.lock();
        (state.last, state.peer_since) = (now, None);
    }

    /// Closes the connection: its task is woken, and its next read or write fails.
    pub(super) fn replace(&self) {
        self.0.state.lock().replaced = true;
        self.0.task.wake();
    }

    /// Whether [`Self::replace`] closed it. Registers the connection's task to be woken then.
    pub(super) fn is_replaced(&self, context: &Context<'_>) -> bool {
        self.0.task.register(context.waker());
        self.0.state.lock().replaced
    }

    fn begin(&self) -> RunningRequest {
        self.0.state.lock().running += 1;
        RunningRequest(self.clone())
    }

    /// Notes that the server waits for the peer.
    pub(super) fn stalls(&self, now: Instant) {
        self.0.state.lock().peer_since.get_or_insert(now);
    }

    fn body_moves(&self) {
        self.0.state.lock().peer_since = None;
    }
}

impl<O, I> Connected<IncomingStream<'_, OpeningListener<O, I>>> for Activity
where
    OpeningListener<O, I>: Listener<Addr = Self>,
{
    fn connect_info(stream: IncomingStream<'_, OpeningListener<O, I>>) -> Self {
        stream.remote_addr().clone()
    }
}

/// The answer to a request over HTTP/2.
const HTTP_2_REFUSED: &str = "this server speaks HTTP/1.1: let the client or the proxy use that version\n";

/// Marks a request as running until it is dropped.
struct RunningRequest(Activity);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        state.running -= 1;
        state.last = Instant::now();
    }
}

/// Makes a router report its requests to each connection, and end bodies that arrive too slowly: their reads
/// fail with [`io::ErrorKind::TimedOut`]. The router must be served with [`Activity`] as connect info.
///
/// HTTP/2 is refused: it has many requests on one connection, and the bounds here are by connection.
pub(super) fn watched(router: Router) -> Router {
    router.layer(middleware::from_fn(
        async |ConnectInfo(activity): ConnectInfo<Activity>, request: Request, next: Next| -> Response {
            let running = activity.begin();
            if request.version() > Version::HTTP_11 {
                return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, HTTP_2_REFUSED).into_response();
            }
            let request = request.map(|body| {
                if body.is_end_stream() { body } else { Body::new(PacedBody::new(body, &activity)) }
            });
            next.run(request)
                .await
                .map(|body| Body::new(PacedBody { body, pace: None, _running: Some(running) }))
        },
    ))
}

/// The body of a request, or of its answer.
struct PacedBody {
    body: Body,
    /// Of a request: its sender must not lag too far behind. An answer may pause for as long as its server wants.
    pace: Option<BodyPace>,
    /// Of an answer: its request runs until it ends.
    _running: Option<RunningRequest>,
}

/// The pace at which a request's body arrives.
struct BodyPace {
    activity: Activity,
    lag: Lag,
    alarm: Pin<Box<Sleep>>,
}

impl Drop for BodyPace {
    fn drop(&mut self) {
        self.activity.body_moves();
    }
}

impl PacedBody {
    fn new(body: Body, activity: &Activity) -> Self {
        let alarm = Box::pin(tokio::time::sleep(activity.patience()));
        let pace = BodyPace { activity: activity.clone(), lag: Lag::default(), alarm };
        Self { body, pace: Some(pace), _running: None }
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let Some(BodyPace { activity, lag, alarm }) = &mut self.pace else { return frame };
        let now = Instant::now();
        if frame.is_ready() {
            if let Poll::Ready(Some(Ok(frame))) = &frame
                && let Some(bytes) = frame.data_ref()
            {
                lag.moved(bytes.len(), now);
            }
            activity.body_moves();
            return frame;
        }
        activity.stalls(now);
        let due = lag.stalled(now) + activity.patience();
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        if alarm.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        let slow = io::Error::new(io::ErrorKind::TimedOut, "the request body comes too slowly");
        Poll::Ready(Some(Err(axum::Error::new(slow))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
