//! The network part of `/status`.

use serde::{Deserialize, Serialize};

/// Maximum number of listed peers; the counts cover all peers.
pub(crate) const MAX_PEERS_SHOWN: usize = 128;

/// Whether peers can open connections to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Nat {
    /// Not known yet.
    #[default]
    Unknown,
    /// Peers can reach it.
    Public,
    /// It is behind a NAT that admits no connection from outside.
    Private,
}

/// Limits of a relay on one relayed connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayLimits {
    /// Bytes in each direction; `None` means no limit.
    pub(crate) bytes: Option<u64>,
    /// Seconds; `None` means no limit.
    pub(crate) seconds: Option<u64>,
}

/// A known peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerStatus {
    /// Its Ed25519 key, hex.
    pub(crate) node: String,
    /// Its agent name, unverified.
    pub(crate) agent: Option<String>,
    /// Address of its last connection.
    pub(crate) address: Option<String>,
    /// Whether a connection is open now.
    pub(crate) connected: bool,
    /// Whether it claims to serve turns.
    pub(crate) serves_turns: bool,
}

/// Current connections, and relayed traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Traffic {
    /// Connections over TCP.
    pub(crate) tcp: u64,
    /// Connections over QUIC.
    pub(crate) quic: u64,
    /// Connections through a relay.
    pub(crate) relayed: u64,
    /// Peers with a reservation on this node.
    pub(crate) reservations: u64,
    /// Circuits that this node relays.
    pub(crate) circuits: u64,
    /// Direct connections by hole punching, since the start.
    pub(crate) holes_punched: u64,
    /// Failed hole punching attempts, since the start.
    pub(crate) holes_failed: u64,
}

/// The node's view of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkStatus {
    /// Whether peers can open connections to it.
    pub(crate) nat: Nat,
    /// External addresses, observed or configured.
    pub(crate) external_addrs: Vec<String>,
    /// Relays with a reservation of this node.
    pub(crate) relayed_via: Vec<String>,
    /// Limits of the strictest of these relays.
    pub(crate) relay_limits: Option<RelayLimits>,
    /// Current connections, and relayed traffic.
    #[serde(default)]
    pub(crate) traffic: Traffic,
    /// Known peers, connected ones first; at most [`MAX_PEERS_SHOWN`].
    pub(crate) peers: Vec<PeerStatus>,
}
