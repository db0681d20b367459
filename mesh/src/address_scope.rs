//! Address scopes: how far away an address is, and how near a mesh may dial.
//!
//! Addresses come from unknown peers: in identify messages, node records and DHT replies. Without this rule,
//! such an address could make this machine dial into its own loopback or local network.

use std::net::IpAddr;

use libp2p::{Multiaddr, multiaddr::Protocol};

/// The scope from which an address is reachable, the widest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// From everywhere.
    Public,
    /// From the same local network (RFC 1918, RFC 4193, link-local, and the carriers' shared space of RFC
    /// 6598).
    Local,
    /// From the same machine. Unspecified and multicast addresses count as this scope too.
    Loopback,
}

/// The scope of the first part of a multiaddress; for a circuit, of its relay. `None` for a name.
pub(crate) fn reach_of_address(address: &Multiaddr) -> Option<Reach> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(reach_of(IpAddr::V4(ip))),
        Protocol::Ip6(ip) => Some(reach_of(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))),
        _ => None,
    }
}

/// Whether an address goes through a relay.
pub(crate) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

fn reach_of(ip: IpAddr) -> Reach {
    let local = match ip {
        // 100.64.0.0/10 is the shared space of carriers (RFC 6598).
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local() || matches!(ip.octets(), [100, 64..=127, ..]),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    let unspecified = ip.is_unspecified() || matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0);
    if ip.is_loopback() || unspecified || ip.is_multicast() {
        Reach::Loopback
    } else if local {
        Reach::Local
    } else {
        Reach::Public
    }
}

/// Whether a listener at this address listens on all addresses of the machine.
pub(crate) fn is_unspecified(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        _ => false,
    }
}

/// The narrowest scope that a mesh may dial, from its configuration: its bootstrap peers, its listeners other
/// than unspecified ones, and whether it uses mDNS.
pub(crate) fn nearest<'a>(configured: impl Iterator<Item = &'a Multiaddr>, mdns: bool) -> Reach {
    let narrowest = configured.filter(|address| !is_unspecified(address)).filter_map(reach_of_address).max();
    let found = if mdns { Reach::Local } else { Reach::Public };
    narrowest.unwrap_or(Reach::Public).max(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(text: &str) -> Option<Reach> {
        reach_of_address(&text.parse().unwrap())
    }

    #[test]
    fn addresses_are_classified_by_scope() {
        for near in ["/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip4/0.1.2.3/tcp/1", "/ip6/::1/tcp/1"] {
            assert_eq!(reach(near), Some(Reach::Loopback), "{near}");
        }
        for local in
            ["/ip4/10.1.2.3/tcp/1", "/ip4/100.64.0.1/tcp/1", "/ip6/fe80::1/tcp/1", "/ip6/fd00::1/udp/1"]
        {
            assert_eq!(reach(local), Some(Reach::Local), "{local}");
        }
        assert_eq!(reach("/ip6/::ffff:7f00:1/tcp/1"), Some(Reach::Loopback), "a mapped one is what it maps");
        assert_eq!(reach("/ip4/9.9.9.9/tcp/1/p2p-circuit"), Some(Reach::Public));
        assert_eq!(reach("/dns4/example.org/tcp/1"), None);
    }

    #[test]
    fn the_configured_addresses_decide_the_narrowest_scope() {
        let scope = |texts: &[&str], mdns| {
            let addresses: Vec<Multiaddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
            nearest(addresses.iter(), mdns)
        };
        assert_eq!(scope(&[], false), Reach::Public);
        assert_eq!(scope(&["/ip4/0.0.0.0/tcp/4001", "/ip4/9.9.9.9/tcp/1"], false), Reach::Public);
        assert_eq!(scope(&["/ip4/0.0.0.0/tcp/4001"], true), Reach::Local);
        assert_eq!(scope(&["/ip4/9.9.9.9/tcp/1", "/ip4/10.0.0.1/tcp/1"], false), Reach::Local);
        assert_eq!(scope(&["/ip4/127.0.0.1/tcp/1"], true), Reach::Loopback);
    }
}
