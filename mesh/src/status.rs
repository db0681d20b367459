//! How a mesh stands in the network, as its handle shows it.

use libp2p::Multiaddr;

use crate::relays::RelayInfo;

/// Whether others can reach a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reachability {
    /// Nobody has tested it.
    #[default]
    Unknown,
    /// At an address of its own: one was confirmed from outside, or configured.
    Public,
    /// Only through relays: who tested it could not dial it.
    Private,
}

/// How a mesh stands in the network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkStatus {
    /// Whether others can reach it.
    pub reachability: Reachability,
    /// Where: confirmed or configured addresses, and those through relays, without its own `/p2p/`.
    pub external: Vec<Multiaddr>,
    /// The relays on which it is reachable, or tries to be.
    pub relays: Vec<RelayInfo>,
    /// Members of the DHT in the routing table.
    pub dht_members: usize,
}
