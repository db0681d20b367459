//! What a mesh is told at its start. Read from files and flags by the binaries; nothing here reads the
//! environment.

use libp2p::{Multiaddr, StreamProtocol};

use crate::{limits::MeshLimits, turn_protocol::TURN_PROTOCOL};

/// Configuration of one mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// Addresses to listen on, such as `/ip4/0.0.0.0/tcp/4001` or `/ip4/0.0.0.0/udp/4001/quic-v1`; empty
    /// for a mesh that only dials.
    pub listen: Vec<Multiaddr>,
    /// Peers to stay connected with, best with a `/p2p/` suffix so that their identity is checked; 32 at
    /// the most. One that is lost, or that idled out, is dialled again after a jittered, growing wait.
    pub bootstrap: Vec<Multiaddr>,
    /// Addresses under which others can reach this mesh from outside, told to them by identify.
    pub external: Vec<Multiaddr>,
    /// Whether to find peers on the local network by multicast. When false, nothing is multicast.
    pub mdns: bool,
    /// Name, version and role told to peers, such as `baton/0.1.0 (node)`; 128 bytes at the most.
    pub agent: String,
    /// Versions of the turn protocol to speak, most wanted first.
    pub turn_protocols: Vec<StreamProtocol>,
    /// Whether others may open turns here; only such peers say that they speak the turn protocol.
    pub accept_turns: bool,
    /// Bounds.
    pub limits: MeshLimits,
}

impl MeshConfig {
    /// A mesh that dials and accepts nothing: a client.
    #[must_use]
    pub fn dialer(agent: &str) -> Self {
        Self {
            listen: Vec::new(),
            bootstrap: Vec::new(),
            external: Vec::new(),
            mdns: false,
            agent: agent.to_owned(),
            turn_protocols: vec![TURN_PROTOCOL],
            accept_turns: false,
            limits: MeshLimits::default(),
        }
    }

    /// A mesh that listens and accepts turns: a node.
    #[must_use]
    pub fn server(agent: &str, listen: Vec<Multiaddr>) -> Self {
        Self { listen, accept_turns: true, ..Self::dialer(agent) }
    }
}
