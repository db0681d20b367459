//! The libp2p behaviours of the swarm, combined once for every role.

use std::{sync::Arc, time::Duration};

#[cfg(not(target_family = "wasm"))]
use crate::limits::MEMORY_SHARE;
#[cfg(not(target_family = "wasm"))]
use libp2p::{autonat, dcutr, mdns, memory_connection_limits};
use libp2p::{
    connection_limits::{self, ConnectionLimits},
    identify,
    identity::Keypair,
    kad, ping, relay,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};

use crate::{
    config::{MeshConfig, RelayLimits},
    error::MeshError,
    gate, gossip,
    limits::{
        DHT_QUERY_TIMEOUT, DHT_REFRESH, MAX_CIRCUITS, MAX_CIRCUITS_PER_PEER, MAX_DHT_OWN,
        MAX_DHT_PACKET_BYTES, MAX_DHT_RECORDS, MAX_PROVIDED_KEYS, MAX_RESERVATIONS, MeshLimits,
    },
    stats::Counters,
    turn_protocol,
};

/// The Kademlia protocol of the DHT, for members of this network only.
pub(crate) const DHT_PROTOCOL: libp2p::StreamProtocol = libp2p::StreamProtocol::new("/baton/kad/1");
/// The protocol that a relay announces (circuit relay v2).
pub(crate) const RELAY_PROTOCOL: libp2p::StreamProtocol =
    libp2p::StreamProtocol::new("/libp2p/circuit/relay/0.2.0/hop");

/// Protocol family sent by identify. It distinguishes peers of another family, but does not refuse them.
const PROTOCOL_FAMILY: &str = "baton/1";

/// How often a connection is pinged, and how long a reply may take before the connection counts as dead.
///
/// A silent peer is detected within the sum of both. libp2p alone reports later or never: it forgives the
/// first failure and then waits to open another stream. Even a link of a few kilobytes a second replies in
/// time beside an answer's frame.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time without a reply, a connection that used to answer pings counts as dead.
pub(crate) const SILENCE: Duration = PING_INTERVAL.saturating_add(PING_TIMEOUT);

/// All behaviours of the swarm.
///
/// The limits come first, to refuse before any other behaviour spends work. The gate precedes the other
/// limits because it counts by subnet; under a global count alone, a few peers could fill all slots.
///
/// A browser has none of those that need sockets: it neither listens nor sees its local network.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) gate: gate::GateBehaviour,
    pub(crate) connection_limits: connection_limits::Behaviour,
    #[cfg(not(target_family = "wasm"))]
    pub(crate) memory_limits: memory_connection_limits::Behaviour,
    pub(crate) turn: turn_protocol::TurnBehaviour,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
    #[cfg(not(target_family = "wasm"))]
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) dht: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
    pub(crate) gossip: Toggle<gossip::GossipBehaviour>,
    pub(crate) relay: Toggle<relay::Behaviour>,
    pub(crate) circuits: relay::client::Behaviour,
    #[cfg(not(target_family = "wasm"))]
    pub(crate) hole_punching: Toggle<dcutr::Behaviour>,
    #[cfg(not(target_family = "wasm"))]
    pub(crate) reachable: Toggle<autonat::v2::client::Behaviour>,
    #[cfg(not(target_family = "wasm"))]
    pub(crate) dial_back: Toggle<autonat::v2::server::Behaviour>,
    #[cfg(feature = "upnp")]
    pub(crate) upnp: Toggle<libp2p::upnp::tokio::Behaviour>,
}

impl Behaviour {
    pub(crate) fn new(
        keypair: &Keypair,
        config: &MeshConfig,
        circuits: relay::client::Behaviour,
        counters: Arc<Counters>,
    ) -> Result<Self, MeshError> {
        let local = keypair.public().to_peer_id();
        // A mesh on loopback alone has no routers to traverse.
        #[cfg(not(target_family = "wasm"))]
        let nat = config.nat && !config.is_alone();
        #[cfg(not(target_family = "wasm"))]
        let mdns = config
            .mdns
            .then(|| mdns::tokio::Behaviour::new(mdns::Config::default(), keypair.public().to_peer_id()))
            .transpose()
            .map_err(MeshError::Mdns)?;
        let identify = identify::Config::new(PROTOCOL_FAMILY.to_owned(), keypair.public())
            .with_agent_version(config.agent.clone())
            .with_push_listen_addr_updates(true)
            // The peer table stores addresses; a second, unfiltered cache would bypass its rules.
            .with_cache_size(0);
        let gate = gate::GateBehaviour::new(&config.limits);
        let turn = turn_protocol::TurnBehaviour::new(
            config.turn_protocols.clone(),
            config.accepted_protocols(),
            gate.shared(),
            config.limits.clone(),
            counters,
        );
        Ok(Self {
            gate,
            connection_limits: connection_limits::Behaviour::new(connection_bounds(&config.limits)),
            #[cfg(not(target_family = "wasm"))]
            memory_limits: match config.limits.max_process_memory_bytes {
                Some(bytes) => memory_connection_limits::Behaviour::with_max_bytes(bytes),
                None => memory_connection_limits::Behaviour::with_max_percentage(MEMORY_SHARE),
            },
            turn,
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(
                ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT),
            ),
            #[cfg(not(target_family = "wasm"))]
            mdns: Toggle::from(mdns),
            dht: Toggle::from(config.discovery.then(|| dht(keypair, config.accept_turns))),
            gossip: Toggle::from(config.discovery.then(|| gossip::behaviour(keypair)).transpose()?),
            relay: Toggle::from(
                config.relay.then(|| relay::Behaviour::new(local, relay_config(config.relay_limits))),
            ),
            circuits,
            #[cfg(not(target_family = "wasm"))]
            hole_punching: Toggle::from(config.nat.then(|| dcutr::Behaviour::new(local))),
            #[cfg(not(target_family = "wasm"))]
            reachable: Toggle::from(
                (nat && config.accept_turns).then(autonat::v2::client::Behaviour::default),
            ),
            #[cfg(not(target_family = "wasm"))]
            dial_back: Toggle::from(
                (nat && config.accept_turns).then(autonat::v2::server::Behaviour::default),
            ),
            #[cfg(feature = "upnp")]
            upnp: Toggle::from((nat && config.upnp).then(libp2p::upnp::tokio::Behaviour::default)),
        })
    }
}

/// Kademlia among Baton's members. No data from a peer is stored before [`crate::records`] has checked it.
fn dht(keypair: &Keypair, serve: bool) -> kad::Behaviour<kad::store::MemoryStore> {
    let local = keypair.public().to_peer_id();
    let mut config = kad::Config::new(DHT_PROTOCOL);
    config
        .set_query_timeout(DHT_QUERY_TIMEOUT)
        // Disjoint paths: a malicious peer on one path does not decide a lookup.
        .disjoint_query_paths(true)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_max_packet_size(MAX_DHT_PACKET_BYTES)
        // Holders republish a record themselves; its publisher may be offline for months and need not be
        // known.
        .set_publication_interval(None)
        .set_record_ttl(None)
        .set_periodic_bootstrap_interval(Some(DHT_REFRESH));
    let bounds = kad::store::MemoryStoreConfig {
        max_records: MAX_DHT_RECORDS + MAX_DHT_OWN,
        max_value_bytes: baton_proto::limits::MAX_SIGNED_BYTES + 1,
        max_provided_keys: MAX_PROVIDED_KEYS,
        ..kad::store::MemoryStoreConfig::default()
    };
    let store = kad::store::MemoryStore::with_config(local, bounds);
    let mut dht = kad::Behaviour::with_config(local, store, config);
    dht.set_mode(Some(if serve { kad::Mode::Server } else { kad::Mode::Client }));
    dht
}

fn relay_config(limits: RelayLimits) -> relay::Config {
    // libp2p's default rates for new reservations and circuits, per peer and per address, stay in force.
    relay::Config {
        max_reservations: MAX_RESERVATIONS,
        max_circuits: MAX_CIRCUITS,
        max_circuits_per_peer: MAX_CIRCUITS_PER_PEER,
        max_circuit_duration: limits.circuit_time,
        max_circuit_bytes: limits.circuit_bytes,
        ..relay::Config::default()
    }
}

fn connection_bounds(limits: &MeshLimits) -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_established_incoming(Some(limits.max_connections_in))
        .with_max_established_outgoing(Some(limits.max_connections_out))
        .with_max_established_per_peer(Some(limits.max_connections_per_peer))
        .with_max_pending_incoming(Some(limits.max_connections_pending))
        .with_max_pending_outgoing(Some(limits.max_connections_pending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn mdns_is_absent_unless_asked_for() {
        let keypair = Keypair::generate_ed25519();
        let mut config = MeshConfig::dialer("test");
        let counters = Arc::<Counters>::default;
        let circuits = || relay::client::new(keypair.public().to_peer_id()).1;
        assert!(!Behaviour::new(&keypair, &config, circuits(), counters()).unwrap().mdns.is_enabled());
        config.mdns = true;
        assert!(Behaviour::new(&keypair, &config, circuits(), counters()).unwrap().mdns.is_enabled());
    }
}
