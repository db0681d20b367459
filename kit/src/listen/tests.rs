//! The listener with small limits, over real sockets.

use axum::{
    Router,
    extract::ConnectInfo,
    routing::{get, post},
};
use baton_limits::Networks;
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
    let slots = Slots { all: connections, per_subnet: connections };
    let listener = BoundedListener::with(listener, slots, idle);
    let serving =
        axum::serve(OpeningListener::new(listener, |stream| std::future::ready(Some(stream))), service);
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
async fn a_refusal_resets_new_connections_of_the_subnet_for_a_moment_and_those_that_said_nothing() {
    let refuse = get(async |ConnectInfo(activity): ConnectInfo<Activity>| {
        activity.reset_next(Duration::from_secs(60), &Networks::default());
        "refused"
    });
    let routes = Router::new().route("/", refuse).route("/other", get(async || "other"));
    let (address, server) = serve_routes(routes, 8, SOON).await;
    let connect = async || TcpStream::connect(address).await.unwrap();
    let request = b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = async |stream: &mut TcpStream| {
        let mut answer = Vec::new();
        while !answer.ends_with(b"other") {
            assert_ne!(stream.read_buf(&mut answer).await?, 0, "an end without an answer");
        }
        io::Result::Ok(())
    };
    let (mut kept, mut fresh) = (connect().await, connect().await);
    kept.write_all(request).await.unwrap();
    answer(&mut kept).await.unwrap();
    assert!(get_last(&mut connect().await, "/").await.ends_with("refused"));
    let error = connect().await.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    fresh.write_all(request).await.unwrap();
    assert_eq!(answer(&mut fresh).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    kept.write_all(request).await.unwrap();
    answer(&mut kept).await.expect("a connection in use goes on");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(get_last(&mut connect().await, "/").await.ends_with("refused"), "it is served again");
    server.abort();
}

#[tokio::test]
async fn a_head_or_a_body_in_drops_does_not_keep_a_connection() {
    for (begin, drop_of) in [
        ("GET / HTTP/1.1\r\n", "x: y\r\n"),
        ("POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n", "d"),
    ] {
        let (address, server) = serve(2, Arc::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let (mut from, mut to) = stream.split();
        let dripping = async {
            let mut pause = tokio::time::interval(IDLE / 10);
            // Until the server closes the connection.
            while to.write_all(drop_of.as_bytes()).await.is_ok() {
                pause.tick().await;
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
}

#[tokio::test]
async fn a_request_without_its_body_gives_its_slot_to_another() {
    let routes = Router::new().route("/body", post(async |_: Bytes| "done")).route("/", get(async || "done"));
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

/// Waits while connections live for the whole idle time, one after the other.
async fn outlast_idle_connections(address: SocketAddr) {
    for _ in 0..2 {
        let mut silent = TcpStream::connect(address).await.unwrap();
        let closed = tokio::time::timeout(SOON, silent.read(&mut [0])).await.expect("it is closed");
        assert_eq!(closed.unwrap_or(0), 0);
    }
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
    outlast_idle_connections(address).await;
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
    outlast_idle_connections(address).await;
    go.notify_one();
    assert!(asking.await.unwrap().ends_with("done"));
    server.abort();
}
