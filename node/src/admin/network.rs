//! The network part of `/status`, and who can use an address.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Whether peers can open connections to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Nat {
    /// Not known yet.
    #[default]
    Unknown,
    /// Peers can reach it.
    Public,
    /// It is behind a NAT that admits no connection from outside.
    Private,
}

/// The node's view of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkStatus {
    /// Whether peers can open connections to it.
    pub(crate) nat: Nat,
    /// External addresses, observed or configured.
    pub(crate) external_addrs: Vec<String>,
    /// Relays with a reservation of this node.
    pub(crate) relayed_via: Vec<String>,
}

/// The others that an address can serve, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Audience {
    /// Everyone on the internet, as far as the address alone tells.
    Everyone,
    /// The machines of the same network.
    LocalNetwork,
    /// This machine only.
    ThisMachine,
}

/// The others that a libp2p address can serve. A name other than `localhost` counts as public.
pub(crate) fn audience(address: &str) -> Audience {
    let mut words = address.split('/').skip(1);
    match (words.next(), words.next()) {
        (Some("ip4" | "ip6"), Some(ip)) => match ip.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() => Audience::ThisMachine,
            Ok(ip) if !is_public(ip) => Audience::LocalNetwork,
            _ => Audience::Everyone,
        },
        (_, Some("localhost")) => Audience::ThisMachine,
        _ => Audience::Everyone,
    }
}

/// Whether an address is on the public internet, outside private, shared, documentation and other special
/// ranges (IANA's special-purpose registries).
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let shared = first == 100 && (64..128).contains(&second);
            let benchmark = first == 198 && (18..20).contains(&second);
            !(ip.is_private()
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_documentation()
                || ip.is_unspecified()
                || ip.is_multicast()
                || shared
                || benchmark
                || first == 0
                || ip == Ipv4Addr::BROADCAST
                || first >= 240)
        }
        IpAddr::V6(ip) => {
            let [first, second, ..] = ip.segments();
            // Global unicast, without documentation.
            first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0x0db8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_an_audience() {
        for (address, expected) in [
            ("/ip4/127.0.0.1/tcp/4001", Audience::ThisMachine),
            ("/ip6/::1/udp/4001/quic-v1", Audience::ThisMachine),
            ("/dns4/localhost/tcp/4001", Audience::ThisMachine),
            ("/ip4/10.1.2.3/tcp/4001/p2p/x", Audience::LocalNetwork),
            ("/ip4/8.8.8.8/tcp/4001", Audience::Everyone),
            ("/dns4/node.example/tcp/4001", Audience::Everyone),
        ] {
            assert_eq!(audience(address), expected, "{address}");
        }
        assert!(
            Audience::Everyone < Audience::LocalNetwork && Audience::LocalNetwork < Audience::ThisMachine
        );
    }

    #[test]
    fn public_addresses_are_those_of_the_internet() {
        for (text, expected) in [
            ("8.8.8.8", true),
            ("2a00:1450::1", true),
            ("10.0.0.1", false),
            ("172.31.0.1", false),
            ("192.168.1.1", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("203.0.113.7", false),
            ("0.1.2.3", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("2001:db8::1", false),
            ("::1", false),
        ] {
            assert_eq!(is_public(text.parse().unwrap()), expected, "{text}");
        }
    }
}
