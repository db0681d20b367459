//! Events of the behaviours that need sockets: the local network, routers and reachability. A browser has none.

use libp2p::{Multiaddr, PeerId, autonat, dcutr, mdns};

use super::Actor;
use crate::{
    behaviour::BehaviourEvent,
    ids::node_id_of,
    transport::{is_for_browsers, split_identity},
};

impl Actor {
    /// Handles such an event, and ignores all others.
    pub(super) fn on_socket_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Mdns(mdns::Event::Discovered(found)) => self.on_mdns_discovered(found),
            BehaviourEvent::Mdns(mdns::Event::Expired(expired)) => self.on_mdns_expired(expired),
            BehaviourEvent::HolePunching(event) => self.on_hole_punched(&event),
            BehaviourEvent::Reachable(event) => self.on_reachable(&event),
            #[cfg(feature = "upnp")]
            BehaviourEvent::Upnp(event) => on_upnp(event),
            _ => {}
        }
    }

    fn on_mdns_discovered(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        for (peer, address) in found {
            let Some(node) = node_id_of(&peer) else { continue };
            let (address, _) = split_identity(address);
            self.update_peers(|table| table.appeared(node, address.clone()));
            if !self.swarm.is_connected(&peer) && !self.dials.is_dialing(peer) {
                self.dial(peer, vec![address]);
            }
        }
    }

    fn on_mdns_expired(&mut self, expired: Vec<(PeerId, Multiaddr)>) {
        for (peer, address) in expired {
            if let Some(node) = node_id_of(&peer) {
                let (address, _) = split_identity(address);
                self.update_peers(|table| table.disappeared(node, &address));
            }
        }
    }

    fn on_hole_punched(&mut self, event: &dcutr::Event) {
        self.counters.count(|stats| match &event.result {
            Ok(_) => stats.holes_punched += 1,
            Err(_) => stats.holes_failed += 1,
        });
        tracing::debug!(peer = %event.remote_peer_id, direct = event.result.is_ok(), "hole punching ended");
    }

    fn on_reachable(&mut self, event: &autonat::v2::client::Event) {
        tracing::debug!(address = %event.tested_addr, reachable = event.result.is_ok(), "an address was tested from outside");
        // Other nodes do not dial a browser's address, so its failed test says nothing.
        if event.result.is_err() && !is_for_browsers(&event.tested_addr) {
            self.network.unreachable = true;
        }
        self.settle_dht_mode();
    }
}

#[cfg(feature = "upnp")]
fn on_upnp(event: libp2p::upnp::Event) {
    use libp2p::upnp;

    match event {
        upnp::Event::NewExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port to this mesh");
        }
        upnp::Event::GatewayNotFound | upnp::Event::NonRoutableGateway => {
            tracing::debug!("no router here forwards ports");
        }
        upnp::Event::ExpiredExternalAddr { .. } => {}
    }
}
