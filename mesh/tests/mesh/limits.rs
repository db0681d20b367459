use std::time::Duration;

use baton_mesh::{MeshHandle, MeshStats, OpenError};
use tokio::time::{Instant, interval};

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
        assert!(matches!(result, Err(OpenError::Unreachable { .. })), "{listen}: {result:?}");
        assert!(node.stats().inbound_refused >= 1);
        near.send(b"still here").await.unwrap();
        assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), Some(b"still here".to_vec()));

        first.shutdown().await;
        wait_for(&node, |stats| stats.connections == 0).await;
        connect(&second, &node, &mut incoming).await;
    }
}

#[tokio::test]
async fn refuses_turns_over_a_peers_quota_until_one_ends() {
    for listen in [TCP, QUIC] {
        let mut config = server_config(listen);
        config.limits.max_streams_per_peer = 2;
        let (node, mut incoming) = start(config).await;
        let (greedy, modest) = (client().await, client().await);
        let first = connect(&greedy, &node, &mut incoming).await;
        let _second = connect(&greedy, &node, &mut incoming).await;
        let mut third = greedy.open(node.node_id(), &[], soon()).await.unwrap();
        assert!(has_ended(&mut third).await, "{listen}");
        assert_eq!(node.stats().turns_refused_quota, 1);
        let _other = connect(&modest, &node, &mut incoming).await;
        drop(first);
        connect(&greedy, &node, &mut incoming).await;
    }
}

#[tokio::test]
async fn resets_turns_that_nobody_takes() {
    const QUEUE: u64 = 512;
    let mut config = server_config(TCP);
    config.limits.max_streams_per_peer = 300;
    config.limits.max_streams_in = 600;
    let (node, mut incoming) = start(config).await;
    // One connection carries no more than so many streams.
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
