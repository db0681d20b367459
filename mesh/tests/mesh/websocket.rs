//! Listening on WebSocket, which browsers speak.

use std::time::Duration;

use baton_mesh::OpenError;
use futures::StreamExt as _;
use libp2p::{
    Multiaddr, SwarmBuilder, Transport as _, core::upgrade::Version, multiaddr::Protocol, noise, ping,
    swarm::SwarmEvent, tcp, websocket, yamux,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout_at,
};

use crate::support::*;

const WEBSOCKET: &str = "/ip4/127.0.0.1/tcp/0/ws";

#[tokio::test]
async fn a_peer_connects_over_websocket_and_proves_who_it_met() {
    let (node, _incoming) = server(WEBSOCKET).await;
    let address = node.bootstrap_addrs().remove(0);
    assert!(address.to_string().contains("/ws/p2p/"), "{address}");
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
                SwarmEvent::Behaviour(event) => break event,
                SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    };
    let event = timeout_at(soon(), answered).await.expect("an answer to the ping");
    event.result.unwrap();
    assert_eq!(address.iter().last(), Some(Protocol::P2p(event.peer)));
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

/// A connection after the WebSocket handshake (RFC 6455, section 4).
async fn websocket_stream(address: &Multiaddr) -> TcpStream {
    let port = address.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None });
    let mut stream = TcpStream::connect(("127.0.0.1", port.unwrap())).await.unwrap();
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
