//! The network status of a mesh, as its handle reports it.

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
}
