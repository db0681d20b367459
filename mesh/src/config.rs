//! What a mesh is told at its start. Read from files and flags by the binaries; nothing here reads the
//! environment.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use libp2p::{Multiaddr, StreamProtocol};

use crate::{
    limits::MeshLimits,
    reach::{self, Reach},
    turn_protocol::TURN_PROTOCOL,
};

/// The time in milliseconds since the Unix epoch, by which signed records are judged.
#[derive(Clone)]
pub struct MeshClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl MeshClock {
    /// A clock of the caller's.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// The system's clock, moved ahead by so many seconds, or back where they are negative. For tests of wrong clocks.
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
    /// The system's clock.
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
    /// Protocols beside the turn protocol in which others may open streams here, where they may open turns.
    pub side_protocols: Vec<StreamProtocol>,
    /// Whether others may open turns here; only such peers say that they speak the turn protocol.
    pub accept_turns: bool,
    /// Whether to find peers that nobody named: through the DHT and by gossip. A mesh that accepts turns also keeps
    /// records for others, unless it knows that it cannot be reached.
    pub discovery: bool,
    /// Whether to find out if this mesh can be reached from outside, to reserve relays where it cannot, and to
    /// punch holes into routers.
    pub nat: bool,
    /// Relays on which to be reachable in any case, with `/p2p/` suffix.
    pub relays: Vec<Multiaddr>,
    /// Whether to carry other peers' circuits.
    pub relay: bool,
    /// What is carried for others, where `relay` is set.
    pub relay_limits: RelayLimits,
    /// Whether to ask the router for a port by UPnP.
    pub upnp: bool,
    /// How near addresses are dialled that others name. If none, as near as the configured addresses are.
    pub reach: Option<Reach>,
    /// The time.
    pub clock: MeshClock,
    /// Bounds.
    pub limits: MeshLimits,
}

/// What a relay lets through one circuit; told to its users when they reserve one.
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
        }
    }

    /// In which protocols others may open streams here.
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

    /// Whether peers beyond this machine are to be met: some are named, or looked for on the local network.
    #[must_use]
    pub fn meets_others(&self) -> bool {
        let named = self.bootstrap.iter().chain(&self.relays);
        let beyond = |address: &Multiaddr| reach::reach_of_address(address) != Some(Reach::Loopback);
        self.mdns || named.into_iter().any(beyond)
    }

    /// How near addresses are dialled.
    pub(crate) fn nearest(&self) -> Reach {
        let configured = self.listen.iter().chain(&self.bootstrap).chain(&self.external).chain(&self.relays);
        self.reach.unwrap_or_else(|| reach::nearest(configured, self.mdns))
    }

    /// Whether this mesh meets nobody from outside its own machine.
    pub(crate) fn is_alone(&self) -> bool {
        let inside = |address: &Multiaddr| {
            !reach::is_unspecified(address) && reach::reach_of_address(address) == Some(Reach::Loopback)
        };
        self.listen.iter().all(inside)
    }
}
