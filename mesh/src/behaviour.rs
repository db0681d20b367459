//! The behaviours that every role's swarm is made of, put together once.

use std::time::Duration;

use libp2p::{
    connection_limits::{self, ConnectionLimits},
    identify,
    identity::Keypair,
    mdns, memory_connection_limits, ping,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};

use crate::{
    config::MeshConfig,
    error::MeshError,
    gate,
    limits::{MEMORY_SHARE, MeshLimits},
    turn_protocol,
};

/// Protocol family told by identify; peers of another family can be told apart, but are not refused.
const PROTOCOL_FAMILY: &str = "baton/1";

/// How often a connection is probed, and how long an answer may take before it counts as dead.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// All behaviours of the swarm. The limits stand first: they refuse before anybody else spends work.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) connection_limits: connection_limits::Behaviour,
    pub(crate) memory_limits: memory_connection_limits::Behaviour,
    pub(crate) gate: gate::Behaviour,
    pub(crate) turn: turn_protocol::Behaviour,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
}

impl Behaviour {
    pub(crate) fn new(keypair: &Keypair, config: &MeshConfig) -> Result<Self, MeshError> {
        let mdns = config
            .mdns
            .then(|| mdns::tokio::Behaviour::new(mdns::Config::default(), keypair.public().to_peer_id()))
            .transpose()
            .map_err(MeshError::Mdns)?;
        let identify = identify::Config::new(PROTOCOL_FAMILY.to_owned(), keypair.public())
            .with_agent_version(config.agent.clone())
            .with_push_listen_addr_updates(true)
            // The peer table keeps addresses; a second, unfiltered cache would bypass its rules.
            .with_cache_size(0);
        Ok(Self {
            connection_limits: connection_limits::Behaviour::new(connection_bounds(&config.limits)),
            memory_limits: match config.limits.max_process_memory_bytes {
                Some(bytes) => memory_connection_limits::Behaviour::with_max_bytes(bytes),
                None => memory_connection_limits::Behaviour::with_max_percentage(MEMORY_SHARE),
            },
            gate: gate::Behaviour::new(&config.limits),
            turn: turn_protocol::Behaviour::new(config.turn_protocols.clone(), config.accept_turns),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(
                ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT),
            ),
            mdns: Toggle::from(mdns),
        })
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
        assert!(!Behaviour::new(&keypair, &config).unwrap().mdns.is_enabled());
        config.mdns = true;
        assert!(Behaviour::new(&keypair, &config).unwrap().mdns.is_enabled());
    }
}
