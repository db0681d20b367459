//! The origin of a connection, as far as the transport knows it. Peer identities are free, so the mesh also
//! counts peers by origin.

use std::net::{IpAddr, Ipv6Addr};

use libp2p::{Multiaddr, multiaddr::Protocol};

/// The origin of an inbound connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// From this address.
    Direct(IpAddr),
    /// Through a relay, at this address if known: the peer's own address is unknown.
    Relayed(Option<IpAddr>),
    /// Not over a network: a pipe, or a stream that this side opened.
    #[default]
    Inside,
}

/// Addresses that count as one, since the holder of one easily has the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subnet {
    /// A /24 of IPv4: 256 addresses.
    V4([u8; 3]),
    /// A /48 of IPv6: 256 homes or hosts with a /56 each; tunnels and cheap servers give away whole ones.
    V6([u8; 6]),
    /// One address of a private or loopback range.
    Private(IpAddr),
    /// All peers that connect through one relay.
    Relay(Option<IpAddr>),
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
        ip_of(remote).map_or(Self::Relayed(None), Self::Direct)
    }

    /// The subnet that counts it; `None` for a connection that is not over a network.
    #[must_use]
    pub fn subnet(&self) -> Option<Subnet> {
        match self {
            Self::Inside => None,
            Self::Relayed(relay) => Some(Subnet::Relay(*relay)),
            Self::Direct(ip) => Some(subnet_of(*ip)),
        }
    }
}

impl Origin {
    /// [`Self::subnet`], or `None` for the operator's own network if that is not counted.
    #[must_use]
    pub fn counted(&self, count_private: bool) -> Option<Subnet> {
        self.subnet().filter(|subnet| count_private || !subnet.is_private())
    }
}

impl Subnet {
    /// Whether this is one address of a private or loopback range.
    #[must_use]
    pub fn is_private(&self) -> bool {
        matches!(self, Self::Private(_))
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::V4([a, b, c]) => write!(f, "{a}.{b}.{c}.0/24"),
            Self::V6([a, b, c, d, e, g]) => write!(f, "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}::/48"),
            Self::Private(ip) => write!(f, "{ip}"),
            Self::Relay(Some(ip)) => write!(f, "relay {ip}"),
            Self::Relay(None) => f.write_str("relay"),
        }
    }
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
        Protocol::Ip6(ip) => Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)),
        _ => None,
    })
}

fn subnet_of(ip: IpAddr) -> Subnet {
    let private = match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || is_local(ip),
    };
    match ip {
        _ if private => Subnet::Private(ip),
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            Subnet::V4([a, b, c])
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, g, ..] = ip.octets();
            Subnet::V6([a, b, c, d, e, g])
        }
    }
}

/// Unique local (fc00::/7, RFC 4193) or link local (fe80::/10, RFC 4291).
fn is_local(ip: Ipv6Addr) -> bool {
    let [first, ..] = ip.segments();
    first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(local: &str, remote: &str) -> String {
        let origin = Origin::of(&local.parse().unwrap(), &remote.parse().unwrap());
        origin.subnet().unwrap().to_string()
    }

    #[test]
    fn addresses_are_counted_by_subnet() {
        let here = "/ip4/192.0.2.1/tcp/4001";
        for (remote, expected) in [
            ("/ip4/203.0.113.7/tcp/50000", "203.0.113.0/24"),
            ("/ip6/2001:db8:1:2::5/udp/9/quic-v1", "2001:0db8:0001::/48"),
            ("/ip6/::ffff:203.0.113.9/tcp/1", "203.0.113.0/24"),
            ("/ip4/10.1.2.3/tcp/1", "10.1.2.3"),
            ("/ip4/127.0.0.1/tcp/1", "127.0.0.1"),
            ("/ip6/fd00::1/tcp/1", "fd00::1"),
            ("/ip6/fe80::1/tcp/1", "fe80::1"),
        ] {
            assert_eq!(subnet(here, remote), expected, "{remote}");
        }
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
}
