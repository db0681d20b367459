//! The network part of `/status`.

use serde::{Deserialize, Serialize};

/// Maximum number of listed peers; the counts cover all peers.
pub const MAX_PEERS_SHOWN: usize = 128;

/// Whether peers can open connections to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nat {
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
pub struct RelayLimits {
    /// Bytes in each direction; `None` means no limit.
    pub bytes: Option<u64>,
    /// Seconds; `None` means no limit.
    pub seconds: Option<u64>,
}

/// A known peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its Ed25519 key, hex.
    pub node: String,
    /// Its agent name, unverified.
    pub agent: Option<String>,
    /// Address of its last connection.
    pub address: Option<String>,
    /// Whether a connection is open now.
    pub connected: bool,
    /// Whether it claims to serve turns.
    pub serves_turns: bool,
}

/// Current connections, and relayed traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Connections over TCP.
    pub tcp: u64,
    /// Connections over QUIC.
    pub quic: u64,
    /// Connections through a relay.
    pub relayed: u64,
    /// Peers with a reservation on this node.
    pub reservations: u64,
    /// Circuits that this node relays.
    pub circuits: u64,
    /// Direct connections by hole punching, since the start.
    pub holes_punched: u64,
    /// Failed hole punching attempts, since the start.
    pub holes_failed: u64,
}

/// The node's view of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Whether peers can open connections to it.
    pub nat: Nat,
    /// External addresses, observed or configured.
    pub external_addrs: Vec<String>,
    /// Relays with a reservation of this node.
    pub relayed_via: Vec<String>,
    /// Limits of the strictest of these relays.
    pub relay_limits: Option<RelayLimits>,
    /// Current connections, and relayed traffic.
    #[serde(default)]
    pub traffic: Traffic,
    /// Known peers, connected ones first; at most [`MAX_PEERS_SHOWN`].
    pub peers: Vec<PeerStatus>,
}
