//! Every bound of the mesh, with its reason. Configurable bounds are in [`MeshLimits`]; the others are
//! constants because no deployment has a reason to change them.

#![cfg_attr(target_family = "wasm", allow(dead_code, reason = "a browser has no sockets to limit"))]

use std::time::Duration;

use baton_limits::{Networks, Rate};

/// Commands waiting for the swarm task. When full, callers wait up to their own deadline.
pub(crate) const COMMAND_QUEUE: usize = 256;

/// Accepted turns that the caller has not taken yet; beyond it the newest stream is reset and counted.
///
/// It equals the most turns that may be open in all. In a burst, the quotas by subnet therefore
/// decide the refusals, not the order of arrival.
pub(crate) const INCOMING_QUEUE: usize = 512;

/// Opens waiting for a dial or for negotiation, over all peers; beyond it callers receive `Busy`.
pub(crate) const MAX_PENDING_OPENS: usize = 1024;

/// Peer events that a slow subscriber may fall behind before it misses some; it learns how many.
pub(crate) const PEER_EVENT_QUEUE: usize = 256;

/// Addresses of one peer tried in one open: enough for TCP and QUIC on four interfaces.
pub(crate) const MAX_DIAL_ADDRS: usize = 8;

/// Addresses remembered for one peer.
pub(crate) const MAX_ADDRS_PER_PEER: usize = 16;

/// Longest address accepted from a peer, in bytes; a circuit with two peer identities is about 150.
pub(crate) const MAX_ADDR_BYTES: usize = 256;

/// Longest agent string accepted from a peer, in bytes; a longer one is dropped, not cut.
pub(crate) const MAX_AGENT_BYTES: usize = 128;

/// Most protocols that a peer may announce; with more, all are ignored.
pub(crate) const MAX_PROTOCOLS: usize = 64;

/// Longest protocol name accepted from a peer, in bytes.
pub(crate) const MAX_PROTOCOL_BYTES: usize = 128;

/// Bootstrap addresses in a configuration; with more, a start would be a flood of dials.
pub(crate) const MAX_BOOTSTRAP: usize = 32;

/// Addresses in narrower scopes, or with names, that callers named: bootstrap nodes, relays, relayers and nodes.
pub(crate) const MAX_NAMED_ADDRS: usize = 256;

/// Unfinished protocol negotiations of one connection; each may buffer one flow-control window.
pub(crate) const MAX_NEGOTIATING_STREAMS: usize = 128;

/// Streams that may exist in one Yamux connection, all protocols and both directions. Far above
/// [`MeshLimits::max_streams_per_subnet`], since reaching it ends the whole connection.
pub(crate) const MAX_MUXED_STREAMS: usize = 512;

/// Time for negotiating one substream's protocol.
pub(crate) const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for an outbound connection, handshake included.
///
/// Routers drop unwanted packets silently. So this is less than the ten seconds after which an unanswered
/// reachability test of an address fails.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

/// Time for the handshake of an inbound TCP or relayed connection: about five round trips across the world.
///
/// Neither Noise nor Yamux has a deadline; QUIC has its own, equally long.
pub(crate) const INBOUND_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a listener to report its address; it is a local operation.
pub(crate) const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long shutdown waits for connections to close.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// A QUIC peer that is silent for this long is gone.
///
/// No other signal exists: the port of a dead process sends no reset. Keep-alives are a third of it apart, so
/// two may be lost.
pub(crate) const QUIC_SILENCE: Duration = Duration::from_secs(6);

/// QUIC flow-control window of one stream; it bounds the data that an unread stream may buffer.
pub(crate) const QUIC_STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Longest message of a WebSocket connection. Noise writes at most 64 KiB at a time, and a browser may join writes.
pub(crate) const MAX_WEBSOCKET_MESSAGE_BYTES: usize = 1 << 20;

/// QUIC flow-control window of one connection.
pub(crate) const QUIC_CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// How long a subnet stays trusted after a turn of it was served: a person who comes once a day is still admitted.
pub(crate) const TRUST_TIME_MS: u64 = 25 * 60 * 60 * 1000;

/// Signed records that this mesh stores for the DHT. When full, it evicts the records whose keys are farthest
/// from its own, so a flood of far keys evicts nothing near.
pub(crate) const MAX_DHT_RECORDS: usize = 16 * 1024;

/// Total bytes of these records: as many head records of the largest size.
pub(crate) const MAX_DHT_BYTES: usize = 64 << 20;

/// Additional records of this mesh's own.
pub(crate) const MAX_DHT_OWN: usize = 8;

/// Age to which a node record is stored here, whatever expiry it states: nodes sign a new one every few
/// seconds.
pub(crate) const NODE_RECORD_AGE_MS: u64 = 24 * 3600 * 1000;

/// How long a head record is stored here after each put, whatever expiry it states.
///
/// Members near its key put it again each hour, so this expires records that were put far from their key.
pub(crate) const HEAD_STAY_MS: u64 = 30 * 24 * 3600 * 1000;

/// Model keys whose providers this mesh remembers, and providers of one key.
pub(crate) const MAX_PROVIDED_KEYS: usize = 1024;

/// Largest message of the DHT protocol: a node record of 16 KiB and twenty peers with their addresses.
pub(crate) const MAX_DHT_PACKET_BYTES: usize = 64 * 1024;

/// Records that the peers of one subnet may put here, providers included; a relayer publishes the heads of all its
/// users.
pub(crate) const DHT_PUTS_OF_SUBNET: Rate = Rate::per_minute(1200);

/// Records that all counted subnets together may put here.
///
/// Each costs a signature check, so this is about a hundredth of a processor. Other members' puts to a full
/// store are five a second.
pub(crate) const DHT_PUTS: Rate = Rate::per_second(100);

/// DHT queries of this process that may run at once; beyond it callers receive `Busy`.
pub(crate) const MAX_DHT_QUERIES: usize = 64;

/// Time for one query of the DHT.
pub(crate) const DHT_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Most replies to one query that are processed: several times the replication factor.
pub(crate) const MAX_DHT_ANSWERS: usize = 64;

/// How often the routing table is refreshed by lookups of its own key and of random ones.
pub(crate) const DHT_REFRESH: Duration = Duration::from_secs(5 * 60);

/// How often a node puts its own record into the DHT again. Gossip announces it far more often.
pub(crate) const DHT_PUT_OWN: Duration = Duration::from_secs(10 * 60);

/// Connections with other members that a mesh opens by itself, besides configured peers and those its work
/// needs. Gossip brings the records of all others.
pub(crate) const EXPLORE_CONNECTIONS: usize = 8;

/// Largest gossiped message: a signed node record and gossipsub's own fields.
pub(crate) const MAX_GOSSIP_BYTES: usize = 20 * 1024;

/// How long gossip remembers the score of a peer that has left.
///
/// Identities are free, and nothing else bounds the number of scores. With libp2p's default of an hour there
/// would be hundreds of thousands.
pub(crate) const GOSSIP_SCORE_RETENTION: Duration = Duration::from_secs(30);

/// Within this time, a second record of the same node is not passed on.
pub(crate) const MIN_GOSSIP_INTERVAL: Duration = Duration::from_secs(2);

/// Gossip messages that are checked from the neighbours of one subnet, for authors that are not in the peer table.
///
/// In a network of hundreds, a new member hears of all others within a minute or two, and queries the DHT for
/// some at once.
pub(crate) const GOSSIP_UNKNOWN_AUTHORS_OF_SUBNET: Rate = Rate::per_minute(240);

/// A node that has been in the table for this long is preferred to newer ones, if none of them was ever
/// connected.
pub(crate) const LONG_KNOWN: Duration = Duration::from_secs(10 * 60);

/// A disconnected peer that was silent for this long leaves the table.
pub(crate) const PEER_SILENCE: Duration = Duration::from_secs(30);

/// Waits before each dial of a peer whose connection broke. When the last dial fails, the peer is gone.
pub(crate) const PROBE_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(3)];

/// Peers that are probed at once.
pub(crate) const MAX_PROBES: usize = 256;

/// Departed peers whose last record sequence is remembered, so that an old message does not bring them back.
pub(crate) const MAX_DEPARTED: usize = 1024;

/// When no address of a mesh was confirmed for this long, it reserves relays, in case it is unreachable.
pub(crate) const UNCONFIRMED: Duration = Duration::from_secs(20);

/// Relays that a mesh behind a router reserves: one may fail.
pub(crate) const RELAYS_WANTED: usize = 2;

/// The least bytes that a relay must allow for one circuit: the largest request, an answer of 32k tokens and
/// a blob, with a margin.
pub(crate) const MIN_CIRCUIT_BYTES: u64 = 24 << 20;

/// The least time that a relay must allow for one circuit: a slow model's long answer.
pub(crate) const MIN_CIRCUIT_TIME: Duration = Duration::from_secs(15 * 60);

/// Bytes that this mesh allows for one circuit as a relay.
pub(crate) const CIRCUIT_BYTES: u64 = 128 << 20;

/// How long this mesh keeps one circuit as a relay.
pub(crate) const CIRCUIT_TIME: Duration = Duration::from_secs(2 * 60 * 60);

/// Circuits through this mesh at once.
pub(crate) const MAX_CIRCUITS: usize = 64;
/// Circuits from one peer.
pub(crate) const MAX_CIRCUITS_PER_PEER: usize = 8;

/// Peers that may hold a reservation here.
pub(crate) const MAX_RESERVATIONS: usize = 128;

/// How long an open waits for hole punching when the relay's limits do not fit a turn.
pub(crate) const HOLE_PUNCH_WAIT: Duration = Duration::from_secs(8);

/// How long a relay is not retried after it refused or disconnected.
pub(crate) const RELAY_PAUSE: Duration = Duration::from_secs(30);

/// How long a relay is not retried after it stated limits that do not fit a turn.
pub(crate) const RELAY_TOO_SMALL_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Time for a proxy's header, which it sends at once.
pub(crate) const PROXY_HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections of proxies whose header has not come, at one listener's transport. Further ones are reset.
pub(crate) const MAX_AWAITED_HEADERS: usize = 64;

/// Share of the machine's memory that this process may use before it refuses new connections, if
/// [`MeshLimits::max_process_memory_bytes`] is not set.
pub(crate) const MEMORY_SHARE: f64 = 0.9;

/// Limits of one mesh. Each bounds something that a peer could make grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshLimits {
    /// Established inbound connections.
    ///
    /// An eighth is reserved for subnets with few connections. While only reserved slots are free, each new
    /// connection evicts an idle peer.
    pub max_connections_in: u32,
    /// Established outbound connections.
    pub max_connections_out: u32,
    /// Established connections with one peer, in both directions. At least 2, since two peers that dial each
    /// other at once make two.
    pub max_connections_per_peer: u32,
    /// Connections being set up, in each direction.
    ///
    /// Subnets that already have one may use half of the inbound slots. A quarter is reserved for trusted
    /// subnets, of which a turn was served lately.
    pub max_connections_pending: u32,
    /// Inbound connections being set up from one subnet; further ones are refused before their handshake.
    pub max_connections_pending_per_subnet: u32,
    /// Inbound turn streams open at once, over all peers.
    pub max_streams_in: usize,
    /// Inbound turn streams open at once from one subnet.
    pub max_streams_per_subnet: usize,
    /// Turn streams that a peer of an unknown subnet may open at once on one connection; further ones are reset at once.
    ///
    /// Beyond them, [`new_streams_per_second`](Self::new_streams_per_second) holds. A trusted subnet has no such rate.
    pub new_streams_at_once: u32,
    /// Turn streams a second on one connection of an unknown subnet.
    pub new_streams_per_second: u32,
    /// Established inbound connections from one subnet.
    pub max_connections_per_subnet: u32,
    /// New connections a minute from one subnet; further ones are refused before their handshake.
    pub new_connections_per_minute: u32,
    /// New connections from one subnet at once.
    ///
    /// Handshakes and first turns of an attacker's burst are all that honest turns wait for: from one subnet,
    /// the slowest ones fell into the first two seconds of a flood, when a minute's connections came at once.
    pub new_connections_at_once: u32,
    /// New connections a second from all counted subnets together, also as a burst.
    ///
    /// A handshake costs more than a hundred refusals. Half are reserved for quiet subnets, and half of that
    /// half for trusted subnets.
    pub new_connections_per_second: u32,
    /// Networks whose direct connections have no limit by subnet: those of the operator's own relayers and machines.
    pub own_networks: Networks,
    /// Entries of the peer table. When full, it evicts disconnected peers in this order:
    ///
    /// 1. Peers that are not nodes.
    /// 2. Nodes heard of lately.
    /// 3. Nodes heard of for longer.
    /// 4. Nodes that were connected.
    pub max_peers: usize,
    /// Resident memory of the process, in bytes, above which new connections are refused. `None` means nine
    /// tenths of the machine's memory.
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
            // Eight subnets must be full before others notice.
            max_streams_per_subnet: 64,
            // A relayer starts its users' turns at once, and its subnet is trusted when the first is served.
            new_streams_at_once: 32,
            // A client that was never served asks a node for its record, its turn and the turn's status.
            new_streams_per_second: 4,
            max_connections_per_subnet: 128,
            new_connections_per_minute: 120,
            // A classroom behind one address; the others connect within a second or two.
            new_connections_at_once: 24,
            // A twentieth of a processor.
            new_connections_per_second: 100,
            own_networks: Networks::default(),
            max_peers: 1024,
            max_process_memory_bytes: None,
            idle_timeout: Duration::from_secs(300),
        }
    }
}
