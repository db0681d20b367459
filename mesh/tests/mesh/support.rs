//! Helpers that start meshes for the tests.

use std::time::Duration;

use baton_mesh::{Incoming, Mesh, MeshConfig, MeshHandle, Multiaddr, Networks, Reach, TurnStream};
use tokio::time::Instant;
use zeroize::Zeroizing;

pub(crate) const TCP: &str = "/ip4/127.0.0.1/tcp/0";
pub(crate) const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// A frame limit above everything the tests send.
pub(crate) const LIMIT: usize = 16 << 20;

/// A deadline so far away that only a hang reaches it.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(crate) fn addr(text: &str) -> Multiaddr {
    text.parse().expect("a multiaddr")
}

/// A random seed: parallel test runs must not share identities, since mDNS would mix them up.
pub(crate) fn seed() -> Zeroizing<[u8; 32]> {
    Zeroizing::new(rand::random())
}

/// A mesh that listens, and takes this machine for its operator's.
pub(crate) fn server_config(listen: &str) -> MeshConfig {
    let mut config = MeshConfig::server("baton-test (node)", vec![addr(listen)]);
    config.limits.own_networks = Networks::loopback();
    config
}

/// A mesh that only dials, on this machine.
pub(crate) fn dialer(agent: &str) -> MeshConfig {
    MeshConfig { reach: Some(Reach::Loopback), ..MeshConfig::dialer(agent) }
}

pub(crate) async fn start(config: MeshConfig) -> (MeshHandle, Incoming) {
    Mesh::spawn(seed(), config).await.expect("a mesh")
}

pub(crate) async fn server(listen: &str) -> (MeshHandle, Incoming) {
    start(server_config(listen)).await
}

pub(crate) async fn client() -> MeshHandle {
    start(dialer("baton-test (client)")).await.0
}

/// Opens a turn with the node and accepts it there.
pub(crate) async fn connect(
    client: &MeshHandle,
    node: &MeshHandle,
    incoming: &mut Incoming,
) -> (TurnStream, TurnStream) {
    let near = client.open(node.node_id(), &node.listen_addrs(), soon()).await.expect("an opened turn");
    let (from, far) = incoming.next().await.expect("an inbound turn");
    assert_eq!(from, client.node_id());
    assert_eq!((near.remote(), far.remote()), (node.node_id(), client.node_id()));
    (near, far)
}

/// Whether the remote peer is gone: its stream ended or failed.
pub(crate) async fn has_ended(turn: &mut TurnStream) -> bool {
    use baton_mesh::FrameError;
    matches!(turn.recv_by(LIMIT, soon()).await, Ok(None) | Err(FrameError::Io(_) | FrameError::Truncated))
}
