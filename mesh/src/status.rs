//! The network status of a mesh, as its handle reports it.

use baton_proto::ids::NodeId;
use libp2p::Multiaddr;

use crate::relays::RelayInfo;

/// Whether peers can reach a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reachability {
    /// No peer has tested it.
    #[default]
    Unknown,
    /// At its own address: one was confirmed from outside, or configured.
    Public,
    /// Only through relays: a peer tested it and could not dial it.
    Private,
}

/// A bootstrap peer and the state of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapStatus {
    /// Its address, as configured.
    pub address: Multiaddr,
    /// Its identity: the configured one, or the one that answered.
    pub node: Option<NodeId>,
    /// Whether it is connected.
    pub connected: bool,
    /// Why the last dial failed, in words; none before the first failure.
    pub failure: Option<String>,
}

/// The network status of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkStatus {
    /// Whether peers can reach it.
    pub reachability: Reachability,
    /// Its external addresses, without `/p2p/`: confirmed or configured ones, and those through relays.
    pub external: Vec<Multiaddr>,
    /// The relays that it reserves or tries to reserve.
    pub relays: Vec<RelayInfo>,
    /// Members of the DHT in the routing table.
    pub dht_members: usize,
    /// The configured bootstrap peers.
    pub bootstrap: Vec<BootstrapStatus>,
}
