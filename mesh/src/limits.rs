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

/// Time for a connection that this mesh opens, handshake included. Less than the ten seconds after which a test of somebody's
/// address is given up unanswered: routers drop what they do not let in without a word.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

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

/// Signed records that this mesh keeps for the DHT; with head records of at most 4 KiB, 64 MiB. When full, those whose
/// keys are farthest from this mesh's own make room, so that a flood of far keys evicts nothing near.
pub(crate) const MAX_DHT_RECORDS: usize = 16 * 1024;

/// Keys of models for which this mesh remembers providers, and providers of one.
pub(crate) const MAX_PROVIDED_KEYS: usize = 1024;

/// Largest message of the DHT's protocol: a node record of 16 KiB and twenty peers with their addresses.
pub(crate) const MAX_DHT_PACKET_BYTES: usize = 64 * 1024;

/// Records a minute that one peer may put here; a relayer publishes the heads of all its users.
pub(crate) const DHT_PUTS_PER_MINUTE: u32 = 600;

/// DHT queries of this process that may run at once; beyond it callers are told `Busy`.
pub(crate) const MAX_DHT_QUERIES: usize = 64;

/// Time for one query of the DHT.
pub(crate) const DHT_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Most replies to one query that are looked at: several times the replication factor.
pub(crate) const MAX_DHT_ANSWERS: usize = 64;

/// How often the routing table is refreshed by looking up one's own key and random ones.
pub(crate) const DHT_REFRESH: Duration = Duration::from_secs(5 * 60);

/// How often a node puts its own record into the DHT again. Gossip tells of it far more often.
pub(crate) const DHT_PUT_OWN: Duration = Duration::from_secs(10 * 60);

/// Connections with other members that a mesh opens by itself, beside those that it was told of or that its work needs.
/// Gossip brings the records of all others.
pub(crate) const EXPLORE_CONNECTIONS: usize = 8;

/// Largest gossiped message: a signed node record and gossipsub's own fields.
pub(crate) const MAX_GOSSIP_BYTES: usize = 20 * 1024;

/// A second record of one node within this is not passed on.
pub(crate) const MIN_GOSSIP_INTERVAL: Duration = Duration::from_secs(2);

/// A peer without a connection that gave no sign for so long leaves the table.
pub(crate) const PEER_SILENCE: Duration = Duration::from_secs(30);

/// Pauses before a peer whose connection broke is dialled, to see whether it is gone; after the last it is.
pub(crate) const PROBE_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];

/// Peers that are probed at once.
pub(crate) const MAX_PROBES: usize = 256;

/// Peers that are gone whose last record is remembered, so that an old message does not bring them back.
pub(crate) const MAX_GONE: usize = 1024;

/// A mesh whose addresses nobody has confirmed for so long reserves relays, in case it cannot be reached.
pub(crate) const UNCONFIRMED: Duration = Duration::from_secs(20);

/// Relays on which a mesh behind a router is reachable at once: one may go.
pub(crate) const RELAYS_WANTED: usize = 2;

/// The least that a relay must let through one circuit: the largest request, an answer of 32k tokens and a blob, with room.
pub(crate) const MIN_CIRCUIT_BYTES: u64 = 24 << 20;

/// The least time that a relay must keep one circuit: a slow model's long answer.
pub(crate) const MIN_CIRCUIT_TIME: Duration = Duration::from_secs(15 * 60);

/// What this mesh lets through one circuit when it is the relay.
pub(crate) const CIRCUIT_BYTES: u64 = 128 << 20;

/// How long it keeps one.
pub(crate) const CIRCUIT_TIME: Duration = Duration::from_secs(2 * 60 * 60);

/// Circuits through this mesh at once, and from one peer.
pub(crate) const MAX_CIRCUITS: usize = 64;
/// Circuits from one peer.
pub(crate) const MAX_CIRCUITS_PER_PEER: usize = 8;

/// Peers that may hold a reservation here.
pub(crate) const MAX_RESERVATIONS: usize = 128;

/// How long an opener waits for hole punching where the relay's limits do not fit a turn.
pub(crate) const HOLE_PUNCH_WAIT: Duration = Duration::from_secs(8);

/// How long a relay that refused, or that went away, is left alone.
pub(crate) const RELAY_PAUSE: Duration = Duration::from_secs(30);

/// How long one is left alone whose limits do not fit a turn.
pub(crate) const RELAY_TOO_SMALL_PAUSE: Duration = Duration::from_secs(60 * 60);

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
