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

/// Time for the handshake of a connection that somebody else opens over TCP or through a relay: about five round trips, also
/// from the other side of the world. Neither Noise nor Yamux has a deadline; QUIC has one of its own, as long.
pub(crate) const INBOUND_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Peers of which something is remembered for a while: that they are shut out, or that this mesh has dealt with them. A few
/// bytes each; those whose time is over make room.
pub(crate) const MAX_PEERS_UNTIL: usize = 4096;

/// How long a peer is known that this mesh has dealt with, and is no stranger.
pub(crate) const KNOWN_TIME: Duration = Duration::from_secs(60 * 60);

/// How long a subnet is in good standing from which a known peer was connected: who comes once a day is still let in.
pub(crate) const STANDING_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Subnets whose good standing is remembered; those whose time is over make room.
pub(crate) const MAX_STANDING: usize = 4096;

/// Signed records that this mesh keeps for the DHT. When full, those whose keys are farthest from this mesh's own make room,
/// so that a flood of far keys evicts nothing near.
pub(crate) const MAX_DHT_RECORDS: usize = 16 * 1024;

/// Bytes of them: as many head records of the largest size.
pub(crate) const MAX_DHT_BYTES: usize = 64 << 20;

/// Records of this mesh's own beside them.
pub(crate) const MAX_DHT_OWN: usize = 8;

/// Age to which a node's record is kept here, whatever it says of itself: nodes sign a new one every few seconds.
pub(crate) const NODE_RECORD_AGE_MS: u64 = 24 * 3600 * 1000;

/// How long a head record is kept here after somebody put it, whatever it says of itself. Members near its key put it again
/// each hour, so this ends the stay of what was put far away from where it belongs.
pub(crate) const HEAD_STAY_MS: u64 = 30 * 24 * 3600 * 1000;

/// Keys of models for which this mesh remembers providers, and providers of one.
pub(crate) const MAX_PROVIDED_KEYS: usize = 1024;

/// Largest message of the DHT's protocol: a node record of 16 KiB and twenty peers with their addresses.
pub(crate) const MAX_DHT_PACKET_BYTES: usize = 64 * 1024;

/// Records a minute that one peer may put here, providers included; a relayer publishes the heads of all its users.
pub(crate) const DHT_PUTS_PER_MINUTE: u32 = 600;

/// Records a minute that the peers of one subnet may put here.
pub(crate) const DHT_PUTS_PER_SUBNET: u32 = 1200;

/// Records a second that all counted subnets together may put here. Each costs a signature's check, so this is about a
/// hundredth of a processor; a full store's worth from other members is five a second.
pub(crate) const DHT_PUTS_PER_SECOND: u64 = 100;

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

/// How long gossip remembers the score of a peer that has gone. Identities are free, so that nothing else bounds how many it
/// remembers; libp2p's own hour would be hundreds of thousands of them.
pub(crate) const GOSSIP_SCORE_KEPT: Duration = Duration::from_secs(30);

/// A second record of one node within this is not passed on.
pub(crate) const MIN_GOSSIP_INTERVAL: Duration = Duration::from_secs(2);

/// Messages of gossip a minute that are looked at from one neighbour, of authors that are not in the table of peers. In a network
/// of hundreds, one who joins has heard of all within a minute or two, and asks the DHT about some at once.
pub(crate) const GOSSIP_STRANGERS_PER_MINUTE: u32 = 60;

/// The same from all neighbours of one subnet.
pub(crate) const GOSSIP_STRANGERS_PER_SUBNET: u32 = 240;

/// A node in the table for so long is preferred to newer ones, where none of them was ever met.
pub(crate) const LONG_KNOWN: Duration = Duration::from_secs(10 * 60);

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
    /// Established connections that others opened. An eighth is kept for subnets that have few, and while no others are left,
    /// a newcomer makes an idle stranger go.
    pub max_connections_in: u32,
    /// Established connections that this mesh opened.
    pub max_connections_out: u32,
    /// Established connections with one peer, in both directions. At least 2, since two peers that dial
    /// each other at once make two.
    pub max_connections_per_peer: u32,
    /// Connections being set up, in each direction. Of inbound ones, half is for subnets that have some already and a quarter
    /// for those from which a peer was served lately.
    pub max_connections_pending: u32,
    /// Inbound connections being set up from one subnet; further ones are refused before their handshake.
    pub max_connections_pending_per_subnet: u32,
    /// Inbound turn streams open at once, over all peers.
    pub max_streams_in: usize,
    /// Inbound turn streams open at once from one peer. A relayer is one peer for all of its users.
    pub max_streams_per_peer: usize,
    /// Inbound turn streams open at once from one subnet.
    pub max_streams_per_subnet: usize,
    /// Turn streams that a stranger may open at once on one connection, before
    /// [`new_streams_per_second`](Self::new_streams_per_second) holds; further ones are reset at once. A peer that was
    /// served lately is no stranger.
    pub new_streams_at_once: u32,
    /// Turn streams a second on one connection of a stranger.
    pub new_streams_per_second: u32,
    /// Established connections from one subnet that others opened.
    pub max_connections_per_subnet: u32,
    /// New connections a minute from one subnet, and at once; further ones are refused before their handshake.
    pub new_connections_per_minute: u32,
    /// New connections a second from all counted subnets together, and at once: a handshake costs more than a hundred
    /// refusals. Half of them are kept for subnets that made few lately, and of that half one for those from which a peer
    /// was served lately.
    pub new_connections_per_second: u32,
    /// Whether private and loopback addresses count as well, each as a subnet of its own. Otherwise the operator's own
    /// network, a relayer or a proxy on it included, is not limited by subnet.
    pub count_private: bool,
    /// Entries of the peer table; a peer without a connection makes room: first those that are no nodes, then nodes that were
    /// heard of just now, then those heard of for long, then those that were met.
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
            max_connections_pending_per_subnet: 8,
            max_streams_in: 512,
            max_streams_per_peer: 64,
            // Eight subnets have to be full before others notice.
            max_streams_per_subnet: 64,
            // A relayer begins with its users' turns all at once, and is known when the first is served.
            new_streams_at_once: 32,
            // A client that was never served asks a node for its record, for its turn, and how that stands.
            new_streams_per_second: 4,
            max_connections_per_subnet: 128,
            new_connections_per_minute: 120,
            // A twentieth of a processor.
            new_connections_per_second: 100,
            count_private: false,
            max_peers: 1024,
            max_process_memory_bytes: None,
            idle_timeout: Duration::from_secs(300),
        }
    }
}
