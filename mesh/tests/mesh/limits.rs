use std::time::Duration;

use baton_mesh::{MeshHandle, MeshStats, Networks, OpenError, Subnet};
use futures::StreamExt as _;
use libp2p::{
    SwarmBuilder,
    multiaddr::Protocol,
    noise,
    swarm::{SwarmEvent, dummy},
    tcp, yamux,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{Instant, interval, timeout_at},
};

use crate::support::*;

/// Counters have no event to wait on.
async fn wait_for(handle: &MeshHandle, condition: impl Fn(MeshStats) -> bool) {
    let deadline = soon();
    let mut tick = interval(Duration::from_millis(5));
    while !condition(handle.stats()) {
        assert!(Instant::now() < deadline, "{:?}", handle.stats());
        tick.tick().await;
    }
}

#[tokio::test]
async fn refuses_connections_over_the_limit() {
    for listen in [TCP, QUIC] {
        let mut config = server_config(listen);
        config.limits.max_connections_in = 1;
        let (node, mut incoming) = start(config).await;
        let (first, second) = (client().await, client().await);
        let (mut near, mut far) = connect(&first, &node, &mut incoming).await;
        let result = second.open(node.node_id(), &node.listen_addrs(), soon()).await;
        assert!(matches!(result, Err(OpenError::Declined { .. })), "{listen}: {result:?}");
        assert!(node.stats().inbound_refused.limits >= 1, "{:?}", node.stats());
        near.send(b"still here").await.unwrap();
        assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), Some(b"still here".to_vec()));

        first.shutdown().await;
        wait_for(&node, |stats| stats.connections == 0).await;
        connect(&second, &node, &mut incoming).await;
    }
}

#[tokio::test]
async fn refuses_turns_over_a_subnets_quota_until_one_ends() {
    for listen in [TCP, QUIC] {
        let mut config = server_config(listen);
        config.limits.max_streams_per_subnet = 2;
        config.limits.own_networks = Networks::default();
        let (node, mut incoming) = start(config).await;
        let (one, other) = (client().await, client().await);
        let first = connect(&one, &node, &mut incoming).await;
        let _second = connect(&other, &node, &mut incoming).await;
        let mut third = one.open(node.node_id(), &[], soon()).await.unwrap();
        assert!(has_ended(&mut third).await, "{listen}");
        assert_eq!(node.stats().turns_refused_quota, 1);
        drop(first);
        connect(&one, &node, &mut incoming).await;
    }
}

#[tokio::test]
async fn resets_turns_that_nobody_takes() {
    const QUEUE: u64 = 512;
    let mut config = server_config(TCP);
    config.limits.max_streams_in = 600;
    let (node, mut incoming) = start(config).await;
    // One connection carries a limited number of streams.
    let (client, other) = (client().await, client().await);
    let mut turns = Vec::new();
    for number in 0..QUEUE + 3 {
        let opener = if number % 2 == 0 { &client } else { &other };
        turns.push(opener.open(node.node_id(), &node.listen_addrs(), soon()).await.unwrap());
    }
    wait_for(&node, |stats| stats.turns_refused_queue == 3).await;
    assert_eq!(node.stats().turns_accepted, QUEUE);
    for turn in turns.iter_mut().rev().take(3) {
        assert!(has_ended(turn).await);
    }
    incoming.next().await.unwrap();
    client.open(node.node_id(), &[], soon()).await.unwrap();
    wait_for(&node, |stats| stats.turns_accepted == QUEUE + 1).await;
}

#[tokio::test]
async fn dials_nobody_when_the_process_uses_too_much_memory() {
    let (node, _incoming) = server(TCP).await;
    let mut config = dialer("full");
    config.limits.max_process_memory_bytes = Some(1);
    let full = start(config).await.0;
    let result = full.open(node.node_id(), &node.listen_addrs(), soon()).await;
    assert_eq!(result.unwrap_err(), OpenError::Busy);
}

/// A connection from this local address that never sends a byte.
async fn silent(from: &str, node: &MeshHandle) -> std::io::Result<TcpStream> {
    let target = node.listen_addrs().into_iter().next().unwrap();
    let port = target.iter().find_map(|part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    });
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(format!("127.0.0.1:{}", port.unwrap()).parse().unwrap()).await
}

/// Waits until the other side closes a connection, ignoring any bytes before.
async fn closed(mut socket: TcpStream) {
    let mut buffer = [0; 256];
    while socket.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
}

#[tokio::test]
async fn silent_handshakes_of_one_network_keep_nobody_else_out() {
    let mut config = server_config(TCP);
    config.limits.own_networks = Networks::default();
    config.proxies = vec!["127.0.0.2".parse().unwrap()].into();
    let (node, mut incoming) = start(config).await;
    let mut held = Vec::new();
    // More than the limit of pending connections.
    for _ in 0..100 {
        // A refused one is reset at once, before or after this side has noticed that it is open.
        let Ok(mut socket) = silent("127.0.0.2", &node).await else { continue };
        if socket.write_all(b"PROXY TCP4 198.51.100.7 127.0.0.1 1 1\r\n").await.is_ok() {
            held.push(socket);
        }
    }
    wait_for(&node, |stats| stats.inbound_refused.subnet_count == 92).await;
    let client = client().await;
    let begun = Instant::now();
    connect(&client, &node, &mut incoming).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "before any of the silent ones is closed");
    assert_eq!(node.stats().inbound_refused.handshake, 0);
    for socket in held {
        timeout_at(soon(), closed(socket)).await.expect("a silent connection is closed");
    }
    wait_for(&node, |stats| stats.inbound_refused.handshake == 8).await;
}

#[tokio::test]
async fn silent_handshakes_of_ones_own_network_end_after_their_time() {
    let (node, mut incoming) = server(TCP).await;
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(silent("127.0.0.1", &node).await.unwrap());
    }
    for socket in held {
        timeout_at(soon(), closed(socket)).await.expect("a silent connection is closed");
    }
    connect(&client().await, &node, &mut incoming).await;
}

#[tokio::test]
async fn a_full_mesh_refuses_a_connection_and_evicts_an_idle_peer_for_the_next() {
    let mut config = server_config(TCP);
    config.limits.max_connections_in = 8;
    config.limits.new_connections_per_minute = 10_000;
    config.limits.new_connections_at_once = 10_000;
    let (node, mut incoming) = start(config).await;
    let (mut clients, mut turns) = (Vec::new(), Vec::new());
    for number in 0..8 {
        let client = client().await;
        let turn = connect(&client, &node, &mut incoming).await;
        // All but two have no streams.
        if number < 2 {
            turns.push(turn);
        }
        clients.push(client);
    }
    let late_client = client().await;
    let result = late_client.open(node.node_id(), &node.listen_addrs(), soon()).await;
    assert!(matches!(result, Err(OpenError::Declined { .. })), "{result:?}");
    assert_eq!(node.stats().inbound_refused.limits, 1);
    assert_eq!(node.stats().connections, 8, "nobody is idle yet");
    let mut tick = interval(Duration::from_millis(500));
    let deadline = soon();
    loop {
        tick.tick().await;
        match late_client.open(node.node_id(), &node.listen_addrs(), soon()).await {
            Ok(_) => break,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    let peers = node.peers();
    let stays =
        |client: &MeshHandle| peers.iter().any(|peer| peer.node == client.node_id() && peer.connected);
    assert!(clients[..2].iter().all(stays), "those with streams");
    assert!(!clients.iter().all(stays));
}

#[tokio::test]
async fn fast_streams_of_an_unknown_subnet_are_reset_and_those_of_a_trusted_one_are_not() {
    let mut config = server_config(TCP);
    config.limits.own_networks = Networks::default();
    config.limits.new_streams_at_once = 8;
    config.limits.new_streams_per_second = 1;
    let (node, mut incoming) = start(config).await;
    let opener = client().await;
    let (mut near, _far) = connect(&opener, &node, &mut incoming).await;
    for all in [false, true] {
        if all {
            // The subnet of this machine.
            node.trust(Subnet::V4([127, 0, 0]));
        }
        let before = node.stats();
        let mut turns = Vec::new();
        for _ in 0..48 {
            turns.push(opener.open(node.node_id(), &node.listen_addrs(), soon()).await.unwrap());
        }
        let counts = |stats: MeshStats| {
            let accepted = stats.turns_accepted - before.turns_accepted;
            (accepted, stats.turns_refused_quota - before.turns_refused_quota)
        };
        wait_for(&node, |stats| counts(stats).0 + counts(stats).1 == 48).await;
        let (accepted, refused) = counts(node.stats());
        if all {
            assert_eq!((accepted, refused), (48, 0));
        } else {
            // On a busy machine, this may have taken seconds.
            assert!((7..30).contains(&accepted), "{accepted}");
            assert!(has_ended(turns.last_mut().unwrap()).await);
        }
    }
    near.send(b"still here").await.unwrap();
}

#[tokio::test]
async fn a_peer_that_refuses_pings_is_closed() {
    let (node, _incoming) = server(TCP).await;
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| dummy::Behaviour)
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build();
    swarm.dial(node.bootstrap_addrs().remove(0)).unwrap();
    let ended =
        async { while !matches!(swarm.select_next_some().await, SwarmEvent::ConnectionClosed { .. }) {} };
    timeout_at(soon(), ended).await.expect("the node closes the connection");
}
