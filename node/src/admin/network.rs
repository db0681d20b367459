//! The node's place in the network, as `/status` shows it.

use serde::{Deserialize, Serialize};

/// Most peers shown one by one; the counts are of all.
pub const MAX_PEERS_SHOWN: usize = 128;

/// Whether others can open connections to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nat {
    /// Nobody has found out yet.
    #[default]
    Unknown,
    /// Others reach it.
    Public,
    /// It stands behind an address translation that lets nobody in by itself.
    Private,
}

/// What a relay grants to one connection through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayLimits {
    /// Bytes in each direction; `None` where it sets no limit.
    pub bytes: Option<u64>,
    /// Seconds; `None` where it sets no limit.
    pub seconds: Option<u64>,
}

/// A known peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its Ed25519 key, hex.
    pub node: String,
    /// What it calls itself, unverified.
    pub agent: Option<String>,
    /// Where it was last met.
    pub address: Option<String>,
    /// Whether a connection is open now.
    pub connected: bool,
    /// Whether it says that it serves turns.
    pub serves_turns: bool,
}

/// Connections now, and what is carried for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Connections over TCP.
    pub tcp: u64,
    /// Connections over QUIC.
    pub quic: u64,
    /// Connections through a relay.
    pub relayed: u64,
    /// Peers that others reach through this node.
    pub reservations: u64,
    /// Circuits between others that it carries.
    pub circuits: u64,
    /// Direct connections that came about by hole punching, since the start.
    pub holes_punched: u64,
    /// Attempts at one that failed, since the start.
    pub holes_failed: u64,
}

/// The node's place in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Whether others can open connections to it.
    pub nat: Nat,
    /// Addresses under which it is known or said to be reachable from outside.
    pub external_addrs: Vec<String>,
    /// Relays through which others reach it.
    pub relayed_via: Vec<String>,
    /// What the narrowest of these grants to one connection.
    pub relay_limits: Option<RelayLimits>,
    /// Connections now, and what is carried for others.
    #[serde(default)]
    pub traffic: Traffic,
    /// Known peers, those with a connection first; at most [`MAX_PEERS_SHOWN`].
    pub peers: Vec<PeerStatus>,
}
