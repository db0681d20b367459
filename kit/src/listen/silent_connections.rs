//! A server's port under silent connections: they do not lock out others, not even of their own subnet.

use std::{io, net::SocketAddr, time::Duration};

use axum::{
    Router,
    routing::{get, put},
};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
};

/// Far below the time after which silent connections end by themselves, and generous for a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(10);
/// More than the listener's slots.
const MANY: usize = 400;

/// A server with the limits of all servers.
async fn serve() -> (SocketAddr, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes =
        Router::new().route("/status", get(async || "OK")).route("/body", put(async |_: Bytes| "OK"));
    (address, tokio::spawn(super::serve(listener, routes, std::future::pending(), Duration::ZERO)))
}

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

/// The answer to `GET /status`, over a new connection.
async fn status(from: &str, to: SocketAddr) -> String {
    let asked = async {
        let mut stream = connect(from, to).await;
        stream.write_all(b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    tokio::time::timeout(AT_ONCE, asked).await.expect("an answer at once")
}

#[tokio::test]
async fn silent_connections_and_unfinished_requests_of_one_subnet_keep_nobody_waiting() {
    for begun in
        ["", "GET /status HTTP/1.1\r\nhost:", "PUT /body HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"]
    {
        let (address, server) = serve().await;
        let mut connections = Vec::new();
        for _ in 0..MANY {
            let mut stream = connect("127.0.0.1", address).await;
            // The oldest are closed meanwhile.
            let _ = stream.write_all(begun.as_bytes()).await;
            connections.push(stream);
        }
        // The address of the connections is answered, and another of its subnet.
        for from in ["127.0.0.2", "127.0.0.1", "127.0.0.2"] {
            assert!(status(from, address).await.ends_with("OK"), "{from}: {begun:?}");
        }
        drop(connections);
        server.abort();
    }
}
