//! The origin of callers: their subnet, and the networks of the operator. An address proves nobody: only networks that the
//! operator lists are his own.

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

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

impl From<IpAddr> for Subnet {
    fn from(ip: IpAddr) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_by_subnet() {
        for (ip, expected) in [
            ("203.0.113.7", "203.0.113.0/24"),
            ("2001:db8:1:2::5", "2001:0db8:0001::/48"),
            ("::ffff:203.0.113.9", "203.0.113.0/24"),
            ("10.1.2.3", "10.1.2.0/24"),
            ("127.0.0.1", "127.0.0.0/8"),
            ("127.9.8.7", "127.0.0.0/8"),
            ("fd00::1", "fd00:0000:0000::/48"),
            ("fe80::1", "fe80:0000:0000::/48"),
            ("::1", "0000:0000:0000::/48"),
        ] {
            assert_eq!(Subnet::from(ip.parse::<IpAddr>().unwrap()).to_string(), expected, "{ip}");
        }
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
