//! The origin of a connection, as far as the transport knows it.

use std::net::IpAddr;

use baton_limits::{Networks, Subnet};
use libp2p::{Multiaddr, multiaddr::Protocol};

/// The origin of an inbound connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// From this address.
    Direct(IpAddr),
    /// From this address, on a WebSocket, which is for pages and proxies: never the operator's own network.
    WebSocket(IpAddr),
    /// Through a relay, at this address if known: the peer's own address is unknown.
    Relayed(Option<IpAddr>),
    /// Not over a network: a pipe, or a stream that this side opened.
    #[default]
    Inside,
}

impl Origin {
    /// The origin of an inbound connection, from its two addresses.
    #[must_use]
    pub fn of(local: &Multiaddr, remote: &Multiaddr) -> Self {
        let relayed = |address: &Multiaddr| address.iter().any(|part| part == Protocol::P2pCircuit);
        // The local address names the relay; the remote address may name only the peer.
        if relayed(local) || relayed(remote) {
            return Self::Relayed(ip_of(local).or_else(|| ip_of(remote)));
        }
        let is_websocket = local.iter().any(|part| matches!(part, Protocol::Ws(_) | Protocol::Wss(_)));
        match ip_of(remote) {
            Some(ip) if is_websocket => Self::WebSocket(ip),
            Some(ip) => Self::Direct(ip),
            None => Self::Relayed(None),
        }
    }

    /// The subnet that counts it; `None` for a connection that is not over a network.
    #[must_use]
    pub fn subnet(&self) -> Option<Subnet> {
        match self {
            Self::Inside => None,
            Self::Relayed(relay) => Some(Subnet::Relay(*relay)),
            Self::Direct(ip) | Self::WebSocket(ip) => Some((*ip).into()),
        }
    }

    /// [`Self::subnet`], or `None` for a direct connection from the operator's own networks.
    #[must_use]
    pub fn counted(&self, own: &Networks) -> Option<Subnet> {
        match self {
            Self::Direct(ip) if own.has(*ip) => None,
            _ => self.subnet(),
        }
    }
}

/// The first IP address of an address, in canonical form.
pub(crate) fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
        Protocol::Ip6(ip) => Some(IpAddr::V6(ip).to_canonical()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(local: &str, remote: &str) -> String {
        let origin = Origin::of(&local.parse().unwrap(), &remote.parse().unwrap());
        origin.subnet().unwrap().to_string()
    }

    #[test]
    fn relayed_peers_are_counted_by_their_relay() {
        let peer = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA";
        let circuit = format!("/ip4/203.0.113.7/tcp/4001/p2p/{peer}/p2p-circuit");
        assert_eq!(subnet(&circuit, &format!("/p2p/{peer}")), "relay 203.0.113.7");
        assert_eq!(subnet("/ip4/192.0.2.1/tcp/1", &circuit), "relay 192.0.2.1");
        assert_eq!(subnet("/ip4/192.0.2.1/tcp/1", &format!("/p2p/{peer}")), "relay");
        assert_eq!(Origin::Inside.subnet(), None);
    }

    #[test]
    fn only_listed_networks_are_the_operators_own_and_never_on_a_websocket() {
        let counted = |own: &Networks, listener: &str, remote: &str| {
            Origin::of(&listener.parse().unwrap(), &remote.parse().unwrap()).counted(own).is_some()
        };
        let (tcp, websocket) = ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1/ws");
        let none = Networks::default();
        for home in ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1", "/ip4/192.168.1.9/tcp/1", "/ip6/fd00::1/tcp/1"]
        {
            assert!(counted(&none, tcp, home) && counted(&none, websocket, home), "{home}");
        }
        let own = Networks::from(vec!["192.168.1.0/24".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for (remote, expected) in [
            ("/ip4/192.168.1.9/tcp/1", false),
            ("/ip6/::ffff:192.168.1.9/tcp/1", false),
            ("/ip6/fd12::1/udp/1/quic-v1", false),
            ("/ip4/192.168.2.9/tcp/1", true),
            ("/ip4/127.0.0.1/tcp/1", true),
            ("/ip6/fe80::1/tcp/1", true),
        ] {
            assert_eq!(counted(&own, tcp, remote), expected, "{remote}");
            assert!(counted(&own, websocket, remote), "{remote}");
        }
        let loopback = Networks::loopback();
        assert!(
            !counted(&loopback, tcp, "/ip4/127.3.2.1/tcp/1") && !counted(&loopback, tcp, "/ip6/::1/tcp/1")
        );
    }
}
