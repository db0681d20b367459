//! Every bound of the mesh, with its reason. Configurable ones are in [`MeshLimits`]; the others are
//! constants because no deployment has a reason to change them.

use std::time::Duration;

/// Commands waiting for the swarm task. Callers beyond it wait, up to their own deadline.
pub(crate) const COMMAND_QUEUE: usize = 256;

/// Accepted turns that nobody took yet: as many as may be open in all, so that the quotas by peer and subnet decide who
/// is refused in a burst, and not who comes last. Beyond it the newest stream is reset and counted.
pub(crate) const INCOMING_QUEUE: usize = 512;

/// Opens waiting for a dial or for negotiation, over all peers; beyond it callers are told `Busy`.
pub(crate) const MAX_PENDING_OPENS: usize = 1024;

/// Peer events that a slow subscriber may fall behind before it misses some (it is told how many).
pub(crate) const PEER_EVENT_QUEUE: usize = 256;

/// Addresses of one peer tried in one open: enough for TCP and QUIC on four interfaces.
pub(crate) const MAX_DIAL_ADDRS: usize = 8;

/// Addresses remembered for one peer.
pub(crate) const MAX_ADDRS_PER_PEER: usize = 16;

/// Longest address accepted from a peer, in bytes; a circuit with two peer identities is about 150.
pub(crate) const MAX_ADDR_BYTES: usize = 256;

/// Longest agent string accepted from a peer, in bytes; a longer one is dropped, not cut.
pub(crate) const MAX_AGENT_BYTES: usize = 128;

/// Most protocols that a peer may say it speaks; with more, none is believed.
pub(crate) const MAX_PROTOCOLS: usize = 64;

/// Longest protocol name accepted from a peer, in bytes.
pub(crate) const MAX_PROTOCOL_BYTES: usize = 128;

/// Bootstrap addresses in a configuration; more would make a start a flood.
pub(crate) const MAX_BOOTSTRAP: usize = 32;

/// Protocol negotiations of one connection that may be unfinished: each may buffer one flow-control window.
pub(crate) const MAX_NEGOTIATING_STREAMS: usize = 128;

/// Streams that may exist in one Yamux connection, all protocols and both directions. Far above
/// [`MeshLimits::max_streams_per_peer`], since reaching it ends the whole connection.
pub(crate) const MAX_MUXED_STREAMS: usize = 512;

/// Time for negotiating one substream's protocol.
pub(crate) const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a listener to report its address; it is a local operation.
pub(crate) const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long shutdown waits for connections to say goodbye.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A QUIC peer that is silent for so long is gone. Nothing else tells: a dead process's port sends no reset. A third of
/// it passes between two keep-alives, so two may be lost.
pub(crate) const QUIC_SILENCE: Duration = Duration::from_secs(6);

/// QUIC flow-control window of one stream: bounds what an unread stream may buffer.
pub(crate) const QUIC_STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// QUIC flow-control window of one connection.
pub(crate) const QUIC_CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Peers that are shut out at once. A few bytes each; those whose time is over make room.
pub(crate) const MAX_SHUT_OUT: usize = 4096;

/// Share of the machine's memory that this process may use before new connections are refused, where
/// [`MeshLimits::max_process_memory_bytes`] is not set.
pub(crate) const MEMORY_SHARE: f64 = 0.9;

/// Limits of one mesh. All count things that somebody else could make grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshLimits {
    /// Established connections that others opened.
    pub max_connections_in: u32,
    /// Established connections that this mesh opened.
    pub max_connections_out: u32,
    /// Established connections with one peer, in both directions. At least 2, since two peers that dial
    /// each other at once make two.
    pub max_connections_per_peer: u32,
    /// Connections being set up, in each direction.
    pub max_connections_pending: u32,
    /// Inbound turn streams open at once, over all peers.
    pub max_streams_in: usize,
    /// Inbound turn streams open at once from one peer. A relayer is one peer for all of its users.
    pub max_streams_per_peer: usize,
    /// Inbound turn streams open at once from one subnet.
    pub max_streams_per_subnet: usize,
    /// Established connections from one subnet that others opened.
    pub max_connections_per_subnet: u32,
    /// New connections a minute from one subnet, and at once; further ones are refused before their handshake.
    pub new_connections_per_minute: u32,
    /// Whether private and loopback addresses count as well, each as a subnet of its own. Otherwise the operator's own
    /// network, a relayer or a proxy on it included, is not limited by subnet.
    pub count_private: bool,
    /// Entries of the peer table; the longest unseen peer without a connection makes room.
    pub max_peers: usize,
    /// Resident memory of the process, in bytes, above which new connections are refused; `None` means
    /// nine tenths of the machine's memory.
    pub max_process_memory_bytes: Option<usize>,
    /// How long a connection without any substream is kept.
    pub idle_timeout: Duration,
}

impl Default for MeshLimits {
    fn default() -> Self {
        Self {
            max_connections_in: 512,
            max_connections_out: 128,
            max_connections_per_peer: 4,
            max_connections_pending: 64,
            max_streams_in: 512,
            max_streams_per_peer: 64,
            // Eight subnets have to be full before others notice.
            max_streams_per_subnet: 64,
            max_connections_per_subnet: 128,
            new_connections_per_minute: 120,
            count_private: false,
            max_peers: 1024,
            max_process_memory_bytes: None,
            idle_timeout: Duration::from_secs(300),
        }
    }
}
