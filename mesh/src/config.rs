//! Configuration of a mesh at its start. The binaries fill it from files and flags; nothing here reads the
//! environment.

use std::{fmt, sync::Arc};

use baton_limits::Networks;
use libp2p::{Multiaddr, StreamProtocol};
use web_time::{SystemTime, UNIX_EPOCH};

use crate::{
    address_scope::{self, Reach},
    limits::MeshLimits,
    turn_protocol::TURN_PROTOCOL,
};

/// The time in milliseconds since the Unix epoch, used to check signed records.
#[derive(Clone)]
pub struct MeshClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl MeshClock {
    /// A clock supplied by the caller.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// The system clock, shifted by `seconds`; negative values shift it back. For tests of wrong clocks.
    #[must_use]
    pub fn shifted(seconds: i64) -> Self {
        let shift_ms = seconds.saturating_mul(1000);
        let system = Self::default();
        Self::new(move || system.now_ms().saturating_add_signed(shift_ms))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for MeshClock {
    /// The system clock.
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

impl fmt::Debug for MeshClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshClock")
    }
}

/// Configuration of one mesh.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    /// Addresses to listen on, such as `/ip4/0.0.0.0/tcp/4001`, `/ip4/0.0.0.0/udp/4001/quic-v1` or, for browsers,
    /// `/ip4/0.0.0.0/udp/4002/webrtc-direct`; empty for a mesh that only dials.
    pub listen: Vec<Multiaddr>,
    /// Peers to stay connected with, 32 at most. A `/p2p/` suffix makes the mesh check a peer's identity.
    ///
    /// After a lost or idle connection closes, the mesh dials again, with a growing, jittered wait.
    pub bootstrap: Vec<Multiaddr>,
    /// External addresses of this mesh, announced to peers by identify. One of WebRTC needs no hash of the certificate.
    pub external: Vec<Multiaddr>,
    /// Whether to find peers on the local network by multicast. When false, the mesh sends no multicast.
    pub mdns: bool,
    /// Name, version and role announced to peers, such as `baton/0.1.0 (node)`; 128 bytes at most.
    pub agent: String,
    /// Versions of the turn protocol to speak, in order of preference.
    pub turn_protocols: Vec<StreamProtocol>,
    /// Other protocols in which peers may open streams here, if `accept_turns` is set.
    pub side_protocols: Vec<StreamProtocol>,
    /// Whether peers may open turns here. Only then does this mesh announce the turn protocol.
    pub accept_turns: bool,
    /// Whether to discover peers through the DHT and gossip.
    ///
    /// A mesh that accepts turns also stores records for others, unless it knows that it is unreachable.
    pub discovery: bool,
    /// Whether to test if this mesh is reachable from outside, to reserve relays if it is not, and to punch
    /// holes through routers.
    pub nat: bool,
    /// Relays to reserve in any case, each with a `/p2p/` suffix.
    pub relays: Vec<Multiaddr>,
    /// Whether to carry other peers' circuits.
    pub relay: bool,
    /// Limits of each carried circuit, if `relay` is set.
    pub relay_limits: RelayLimits,
    /// Whether to ask the router for a port mapping by UPnP; needs the feature `upnp`.
    pub upnp: bool,
    /// The narrowest scope of peer-supplied addresses that are dialled. If `None`, that of the configured
    /// addresses.
    pub reach: Option<Reach>,
    /// The clock.
    pub clock: MeshClock,
    /// Resource limits.
    pub limits: MeshLimits,
    /// Proxies before the listeners on TCP and WebSocket. Each of their connections begins with a header of the PROXY
    /// protocol, version 1 or 2, and counts as the client's that the header names. Any other beginning is refused.
    pub proxies: Networks,
    /// The certificate of listeners on WebRTC, whose hash is part of their addresses. If `None`, a new one.
    #[cfg(not(target_family = "wasm"))]
    pub webrtc_certificate: Option<crate::webrtc::Certificate>,
}

/// The limits that a relay sets on one circuit, announced with each reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Bytes, both directions together.
    pub circuit_bytes: u64,
    /// Time.
    pub circuit_time: std::time::Duration,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self { circuit_bytes: crate::limits::CIRCUIT_BYTES, circuit_time: crate::limits::CIRCUIT_TIME }
    }
}

impl MeshConfig {
    /// A mesh that dials and accepts no turns: a client.
    #[must_use]
    pub fn dialer(agent: &str) -> Self {
        Self {
            listen: Vec::new(),
            bootstrap: Vec::new(),
            external: Vec::new(),
            mdns: false,
            agent: agent.to_owned(),
            turn_protocols: vec![TURN_PROTOCOL],
            side_protocols: Vec::new(),
            accept_turns: false,
            discovery: true,
            nat: true,
            relays: Vec::new(),
            relay: false,
            relay_limits: RelayLimits::default(),
            upnp: false,
            reach: None,
            clock: MeshClock::default(),
            limits: MeshLimits::default(),
            proxies: Networks::default(),
            #[cfg(not(target_family = "wasm"))]
            webrtc_certificate: None,
        }
    }

    /// The protocols in which peers may open streams here.
    pub(crate) fn accepted_protocols(&self) -> Vec<StreamProtocol> {
        if !self.accept_turns {
            return Vec::new();
        }
        self.turn_protocols.iter().chain(&self.side_protocols).cloned().collect()
    }

    /// A mesh that listens, accepts turns and carries circuits: a node.
    #[must_use]
    pub fn server(agent: &str, listen: Vec<Multiaddr>) -> Self {
        Self { listen, accept_turns: true, relay: true, ..Self::dialer(agent) }
    }

    /// The settings of another dialer of the same process, with an identity of its own. It has the same reach
    /// and limits, listens on free ports if this one listens, and meets only the peers that its caller dials.
    #[must_use]
    pub fn beside(&self) -> Self {
        // Hole punching through two routers needs ports that are listened on.
        let ports = ["/ip4/0.0.0.0/udp/0/quic-v1", "/ip4/0.0.0.0/tcp/0"];
        let listens = !self.listen.is_empty() && !self.is_alone();
        let listen = ports.iter().filter(|_| listens).filter_map(|address| address.parse().ok()).collect();
        Self {
            listen,
            bootstrap: Vec::new(),
            external: Vec::new(),
            mdns: false,
            side_protocols: Vec::new(),
            accept_turns: false,
            discovery: false,
            relays: Vec::new(),
            relay: false,
            upnp: false,
            reach: Some(self.nearest()),
            #[cfg(not(target_family = "wasm"))]
            webrtc_certificate: None,
            ..self.clone()
        }
    }

    /// Whether this mesh is to meet peers beyond this machine: named ones, or ones found on the local
    /// network.
    #[must_use]
    pub fn meets_others(&self) -> bool {
        let named = self.bootstrap.iter().chain(&self.relays);
        let beyond = |address: &Multiaddr| address_scope::reach_of_address(address) != Some(Reach::Loopback);
        self.mdns || named.into_iter().any(beyond)
    }

    /// The narrowest scope of addresses to dial.
    pub(crate) fn nearest(&self) -> Reach {
        let configured = self.listen.iter().chain(&self.bootstrap).chain(&self.external).chain(&self.relays);
        self.reach.unwrap_or_else(|| address_scope::nearest(configured, self.mdns))
    }

    /// Whether this mesh listens on loopback only.
    pub(crate) fn is_alone(&self) -> bool {
        let inside = |address: &Multiaddr| {
            !address_scope::is_unspecified(address)
                && address_scope::reach_of_address(address) == Some(Reach::Loopback)
        };
        self.listen.iter().all(inside)
    }
}
