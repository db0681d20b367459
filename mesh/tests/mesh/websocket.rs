//! Listening on WebSocket, which browsers speak.

use std::time::Duration;

use baton_mesh::{MeshHandle, OpenError};
use futures::StreamExt as _;
use libp2p::{
    Multiaddr, SwarmBuilder, Transport as _, core::upgrade::Version, multiaddr::Protocol, noise, ping,
    swarm::SwarmEvent, tcp, websocket, yamux,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout_at,
};

use crate::support::*;

const WEBSOCKET: &str = "/ip4/127.0.0.1/tcp/0/ws";

#[tokio::test]
async fn a_peer_connects_over_websocket_and_proves_who_it_met() {
    let (node, _incoming) = server(WEBSOCKET).await;
    let address = node.bootstrap_addrs().remove(0);
    assert!(address.to_string().contains("/ws/p2p/"), "{address}");
    assert!(is_answered(&address).await);
}

/// Whether a peer at an address proves its identity, and answers a ping.
async fn is_answered(address: &Multiaddr) -> bool {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_other_transport(|keypair| {
            websocket::Config::new(tcp::tokio::Transport::new(tcp::Config::new()))
                .upgrade(Version::V1Lazy)
                .authenticate(noise::Config::new(keypair).unwrap())
                .multiplex(yamux::Config::default())
        })
        .unwrap()
        .with_behaviour(|_| ping::Behaviour::default())
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(60)))
        .build();
    swarm.dial(address.clone()).unwrap();
    let answered = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(event) => break Some(event),
                SwarmEvent::OutgoingConnectionError { .. } => break None,
                _ => {}
            }
        }
    };
    let Some(event) = timeout_at(soon(), answered).await.expect("an end of the dial") else { return false };
    event.result.unwrap();
    assert_eq!(address.iter().last(), Some(Protocol::P2p(event.peer)));
    true
}

/// A proxy that forwards each connection after a header, and the address at which it does.
async fn proxy(node: &MeshHandle, header: &'static [u8]) -> Multiaddr {
    let target = port_of(&node.listen_addrs()[0]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            let mut server = socket.connect(([127, 0, 0, 1], target).into()).await.unwrap();
            tokio::spawn(async move {
                server.write_all(header).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let address = node.bootstrap_addrs().remove(0);
    address.replace(1, |_| Some(Protocol::Tcp(port))).unwrap()
}

#[tokio::test]
async fn a_proxied_connection_counts_as_its_clients_and_one_without_a_header_is_refused() {
    let mut config = server_config(WEBSOCKET);
    config.proxies = vec!["127.0.0.2".parse().unwrap()].into();
    config.limits.new_connections_per_minute = 1;
    let (node, _incoming) = start(config).await;
    for (header, answered) in [
        (&b"PROXY TCP4 203.0.113.7 127.0.0.1 1 1\r\n"[..], true),
        (b"PROXY TCP4 203.0.113.8 127.0.0.1 1 1\r\n", false),
        (b"PROXY TCP4 203.0.114.8 127.0.0.1 1 1\r\n", true),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x74\x07\x7f\0\0\x01\0\x01\0\x01", true),
        (b"", false),
        // The proxy speaks for itself: the pool of its own address.
        (b"PROXY UNKNOWN\r\n", true),
        (b"PROXY UNKNOWN\r\n", false),
    ] {
        assert_eq!(is_answered(&proxy(&node, header).await).await, answered, "{}", header.escape_ascii());
    }
}

#[tokio::test]
async fn a_header_of_anybody_else_is_refused_and_a_websocket_is_never_of_the_own_networks() {
    let mut config = server_config(WEBSOCKET);
    config.limits.new_connections_per_minute = 2;
    let (node, _incoming) = start(config).await;
    assert!(!is_answered(&proxy(&node, b"PROXY TCP4 203.0.113.7 127.0.0.1 1 1\r\n").await).await);
    assert!(is_answered(&proxy(&node, b"").await).await);
    assert!(!is_answered(&proxy(&node, b"").await).await, "both counted to one pool");
    assert_eq!(node.stats().inbound_refused.subnet_rate, 1);
}

#[tokio::test]
async fn a_mesh_dials_no_websocket() {
    let (node, _incoming) = server(WEBSOCKET).await;
    let refused = client().await.open(node.node_id(), &node.listen_addrs(), soon()).await;
    assert!(matches!(refused, Err(OpenError::Unreachable { .. })), "{:?}", refused.err());
}

#[tokio::test]
async fn a_message_above_the_limit_ends_the_connection() {
    let (node, _incoming) = server(WEBSOCKET).await;
    for (length, is_refused) in [(64_u64, false), ((1 << 20) + 1, true), (u64::MAX >> 1, true)] {
        let mut stream = websocket_stream(&node.listen_addrs()[0]).await;
        // A masked binary frame with an extended length (RFC 6455, section 5.2).
        let mut head = vec![0x82, 0x80 | 127];
        head.extend_from_slice(&length.to_be_bytes());
        head.extend_from_slice(&[0; 4]);
        stream.write_all(&head).await.unwrap();
        let mut rest = Vec::new();
        // The node ends a handshake that stands still, too, but later.
        let ended = tokio::time::timeout(Duration::from_secs(1), stream.read_to_end(&mut rest)).await;
        assert_eq!(ended.is_ok(), is_refused, "{length}: {rest:?}");
    }
}

fn port_of(address: &Multiaddr) -> u16 {
    address.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None }).unwrap()
}

/// A connection after the WebSocket handshake (RFC 6455, section 4).
async fn websocket_stream(address: &Multiaddr) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port_of(address))).await.unwrap();
    let request = "GET / HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(timeout_at(soon(), stream.read_u8()).await.expect("an answer").unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    stream
}
