use std::{net::TcpListener, time::Duration};

use baton_mesh::{Mesh, MeshConfig, MeshError, MeshExit, OpenError, StreamProtocol};
use baton_proto::ids::NodeId;
use tokio::time::Instant;

use crate::support::*;

#[tokio::test]
async fn refuses_another_identity_at_the_address() {
    for listen in [TCP, QUIC] {
        let (other, _incoming) = server(listen).await;
        let (wanted, _incoming) = server(listen).await;
        let client = client().await;
        match client.open(wanted.node_id(), &other.listen_addrs(), soon()).await {
            Err(OpenError::WrongIdentity { address }) => assert_eq!(vec![address], other.listen_addrs()),
            result => panic!("{listen}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn a_stale_address_does_not_hide_a_good_one() {
    let (other, _incoming) = server(TCP).await;
    let (wanted, mut incoming) = server(TCP).await;
    let client = client().await;
    for _ in 0..3 {
        let addrs = [other.listen_addrs(), wanted.listen_addrs()].concat();
        let turn = client.open(wanted.node_id(), &addrs, soon()).await.unwrap();
        assert_eq!(turn.remote(), wanted.node_id());
        incoming.next().await.unwrap();
    }
}

#[tokio::test]
async fn an_address_that_names_another_identity_is_not_dialled() {
    let (node, _incoming) = server(TCP).await;
    let client = client().await;
    let nobody = Mesh::spawn(seed(), dialer("x")).await.unwrap().0.node_id();
    let result = client.open(nobody, &node.bootstrap_addrs(), soon()).await;
    assert!(matches!(result, Err(OpenError::Unreachable { .. })), "{result:?}");
    assert_eq!(client.stats().connections, 0);
}

#[tokio::test]
async fn unreachable_names_the_address() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = addr(&format!("/ip4/127.0.0.1/tcp/{port}"));
    let (absent, client) = (client().await.node_id(), client().await);
    match client.open(absent, std::slice::from_ref(&address), soon()).await {
        Err(OpenError::Unreachable { reason }) => {
            assert!(reason.contains(&address.to_string()) && reason.contains("refused"), "{reason}");
        }
        result => panic!("{result:?}"),
    }
    let result = client.open(absent, &[], soon()).await;
    assert!(matches!(result, Err(OpenError::Unreachable { .. })), "{result:?}");
    let no_key = (0..=255u8).map(|low| NodeId([low; 32]));
    let mut refused = 0;
    for node in no_key.filter(|node| baton_mesh::peer_id_of(*node).is_none()) {
        let result = client.open(node, &[], soon()).await;
        assert!(matches!(result, Err(OpenError::Unreachable { .. })), "{result:?}");
        refused += 1;
    }
    assert!(refused > 0);
    let result = client.open(client.node_id(), &[], soon()).await;
    assert!(matches!(result, Err(OpenError::Unreachable { .. })), "{result:?}");
}

#[tokio::test]
async fn a_named_address_is_dialled_by_its_name_and_in_any_scope() {
    for listen in [TCP, QUIC] {
        let (node, _incoming) = server(listen).await;
        let bound = node.listen_addrs()[0].to_string();
        for name in ["/dns4/localhost/", "/dns/localhost/", "/ip4/127.0.0.1/"] {
            let address = addr(&bound.replace("/ip4/127.0.0.1/", name));
            // This mesh has no other address: its scope is the public one.
            let (client, _incoming) = start(MeshConfig::dialer("x")).await;
            assert!(!client.may_dial(&address), "an unknown peer's {address}");
            client.open(node.node_id(), std::slice::from_ref(&address), soon()).await.expect(name);
            assert!(client.may_dial(&address));

            let whole = address.with_p2p(baton_mesh::peer_id_of(node.node_id()).unwrap()).unwrap();
            let config = MeshConfig { bootstrap: vec![whole], ..MeshConfig::dialer("x") };
            let (client, _incoming) = start(config).await;
            let connected = client.wait_for_peers(soon(), |peers| peers.iter().any(|peer| peer.connected));
            assert!(connected.await.is_some(), "{:?}", client.network().bootstrap);
        }
    }
}

#[tokio::test]
async fn a_name_that_leads_nowhere_is_named_in_plain_words() {
    let (absent, client) = (client().await.node_id(), client().await);
    let address = addr("/dns4/nowhere.invalid/tcp/1");
    match client.open(absent, std::slice::from_ref(&address), soon()).await {
        Err(OpenError::Unreachable { reason }) => assert_eq!(reason, format!("{address}: name not found")),
        result => panic!("{result:?}"),
    }
}

#[tokio::test]
async fn a_silent_address_times_out_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = addr(&format!("/ip4/127.0.0.1/tcp/{}", silent.local_addr().unwrap().port()));
    let (absent, client) = (client().await.node_id(), client().await);
    let begun = Instant::now();
    let result = client.open(absent, &[address], begun + Duration::from_millis(300)).await;
    assert_eq!(result.unwrap_err(), OpenError::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn refuses_a_peer_that_does_not_serve_turns() {
    let mut config = server_config(TCP);
    config.accept_turns = false;
    let (relayer, _incoming) = start(config).await;
    let result = client().await.open(relayer.node_id(), &relayer.listen_addrs(), soon()).await;
    assert_eq!(result.unwrap_err(), OpenError::ProtocolUnsupported);
}

#[tokio::test]
async fn refuses_a_peer_without_a_common_version() {
    let (node, _incoming) = server(QUIC).await;
    let mut config = dialer("future");
    config.turn_protocols = vec![StreamProtocol::new("/baton/turn/3")];
    let result = start(config).await.0.open(node.node_id(), &node.listen_addrs(), soon()).await;
    assert_eq!(result.unwrap_err(), OpenError::ProtocolUnsupported);
}

async fn listen_failure(listen: &str) -> String {
    let error = Mesh::spawn(seed(), server_config(listen)).await.expect_err("a refusal");
    assert!(matches!(error, MeshError::Listen { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(listen), "{text}");
    text
}

#[tokio::test]
async fn a_port_in_use_fails_the_start_and_says_what_to_do() {
    for listen in [TCP, QUIC] {
        let (first, _incoming) = server(listen).await;
        let taken = first.listen_addrs()[0].to_string();
        let text = listen_failure(&taken).await;
        assert!(text.contains("choose another port"), "{text}");
    }
    // The same holds when another program holds the port.
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = listen_failure(&format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port())).await;
    assert!(text.contains("choose another port"), "{text}");
}

#[tokio::test]
async fn an_unusable_listen_address_fails_the_start() {
    let text = listen_failure("/ip4/198.51.100.7/tcp/40000").await;
    assert!(text.contains("no such address"), "{text}");
    let text = listen_failure("/ip4/127.0.0.1/sctp/1").await;
    assert!(text.contains("/tcp/PORT"), "{text}");
}

#[tokio::test]
async fn refuses_a_configuration_over_its_limits() {
    let many = vec![addr("/ip4/127.0.0.1/tcp/1"); 33];
    let base = || dialer("x");
    let faults = [
        MeshConfig { bootstrap: many, ..base() },
        MeshConfig { agent: "x".repeat(129), ..base() },
        MeshConfig { agent: "a\nb".to_owned(), ..base() },
        MeshConfig { turn_protocols: vec![], ..base() },
    ];
    for config in faults {
        let error = Mesh::spawn(seed(), config).await.expect_err("a refusal");
        assert!(matches!(error, MeshError::Config(_)), "{error}");
    }
}

#[tokio::test]
async fn shutdown_ends_turns_and_frees_the_port() {
    let (node, mut incoming) = server(TCP).await;
    let client = client().await;
    let (mut near, _far) = connect(&client, &node, &mut incoming).await;
    assert_eq!(node.shutdown().await, MeshExit::Stopped);
    assert!(has_ended(&mut near).await);
    assert!(incoming.next().await.is_none());
    let result = node.open(client.node_id(), &[], soon()).await;
    assert_eq!(result.unwrap_err(), OpenError::Closed);
    let listen = node.listen_addrs()[0].to_string();
    let (again, mut incoming) = server(&listen).await;
    connect(&client, &again, &mut incoming).await;
}

#[tokio::test]
async fn a_mesh_without_handles_stops() {
    let (node, mut incoming) = server(TCP).await;
    drop(node);
    assert!(incoming.next().await.is_none());
}
