//! The origin of a connection, as far as the transport knows it. Peer identities are free, so the mesh also
//! counts peers by origin. An address proves nobody: only networks that the operator lists are his own.

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

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

/// Addresses that count as one, since the holder of one easily has the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subnet {
    /// A /24 of IPv4: 256 addresses. All of 127.0.0.0/8 is one, since every process here has each of its addresses.
    V4([u8; 3]),
    /// A /48 of IPv6: 256 homes or hosts with a /56 each; tunnels and cheap servers give away whole ones.
    V6([u8; 6]),
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
            Self::Direct(ip) | Self::WebSocket(ip) => Some(subnet_of(*ip)),
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

/// A network of addresses, written as `192.168.1.0/24`, or as one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    first: IpAddr,
    bits: u8,
}

/// Text that names no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a network such as 192.168.1.0/24, or an address")]
pub struct NotANetwork;

impl IpNetwork {
    /// Whether an address is in it. An IPv4 address in IPv6 form counts as IPv4.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.first.is_ipv4() && masked(ip, self.bits) == masked(self.first, self.bits)
    }
}

/// The first bits of an address, as the upper bits of a number.
fn masked(ip: IpAddr, bits: u8) -> u128 {
    let number = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    number & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl FromStr for IpNetwork {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(first, bits)| (first, Some(bits)));
        let first = address.parse::<IpAddr>().map_err(|_| NotANetwork)?;
        let all = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), str::parse::<u8>).map_err(|_| NotANetwork)?;
        let network = Self { first, bits };
        // A mapped address would be a network that has no address.
        let is_valid = bits <= all && first == first.to_canonical();
        if is_valid { Ok(network) } else { Err(NotANetwork) }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// Networks that an operator lists; the default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Arc<[IpNetwork]>);

impl Networks {
    /// This machine's loopback addresses, for networks of processes on one machine.
    #[must_use]
    pub fn loopback() -> Self {
        let networks = ["127.0.0.0/8", "::1"].into_iter().filter_map(|text| text.parse().ok());
        networks.collect::<Vec<_>>().into()
    }

    /// Whether an address is in one of them.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.has(ip))
    }
}

impl From<Vec<IpNetwork>> for Networks {
    fn from(networks: Vec<IpNetwork>) -> Self {
        Self(networks.into())
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4([127, ..]) => f.write_str("127.0.0.0/8"),
            Self::V4([a, b, c]) => write!(f, "{a}.{b}.{c}.0/24"),
            Self::V6([a, b, c, d, e, g]) => write!(f, "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}::/48"),
            Self::Relay(Some(ip)) => write!(f, "relay {ip}"),
            Self::Relay(None) => f.write_str("relay"),
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

fn subnet_of(ip: IpAddr) -> Subnet {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_loopback() => Subnet::V4([127, 0, 0]),
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
            ("/ip4/10.1.2.3/tcp/1", "10.1.2.0/24"),
            ("/ip4/127.0.0.1/tcp/1", "127.0.0.0/8"),
            ("/ip4/127.9.8.7/tcp/1", "127.0.0.0/8"),
            ("/ip6/fd00::1/tcp/1", "fd00:0000:0000::/48"),
            ("/ip6/fe80::1/tcp/1", "fe80:0000:0000::/48"),
            ("/ip6/::1/tcp/1", "0000:0000:0000::/48"),
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

    #[test]
    fn a_network_is_an_address_with_or_without_a_number_of_bits() {
        let has = |network: &str, ip: &str| network.parse::<IpNetwork>().unwrap().has(ip.parse().unwrap());
        assert!(has("10.0.0.1", "10.0.0.1") && !has("10.0.0.1", "10.0.0.2"));
        assert!(has("10.0.0.1/8", "10.9.9.9") && !has("10.0.0.1/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("::/0", "2001:db8::1") && !has("::/0", "::ffff:203.0.113.9"));
        for text in
            ["", "/", "10.0.0.0/33", "10.0.0.0/-1", "::/129", "::ffff:10.0.0.0/104", "10.0.0/8", "home"]
        {
            assert_eq!(text.parse::<IpNetwork>(), Err(NotANetwork), "{text}");
        }
        let text = "10.0.0.0/8".parse::<IpNetwork>().unwrap().to_string();
        assert_eq!(text, "10.0.0.0/8");
    }
}
