//! Address scopes: how far away an address is, and how near a mesh may dial.
//!
//! Addresses come from unknown peers: in identify messages, node records and DHT replies. Without this rule,
//! such an address could make this machine dial into its own loopback or local network. The rule does not bind the
//! addresses that a person named: in the configuration, or through the caller of an open.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{PoisonError, RwLock},
};

use libp2p::{Multiaddr, multiaddr::Protocol};

use crate::limits::MAX_NAMED_ADDRS;

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

/// The addresses that a mesh may dial: those up to a scope, and the named ones.
#[derive(Debug)]
pub(crate) struct DialScope {
    nearest: Reach,
    named: RwLock<HashSet<Multiaddr>>,
}

impl DialScope {
    /// A scope with the addresses that the configuration names.
    pub(crate) fn new<'a>(nearest: Reach, named: impl IntoIterator<Item = &'a Multiaddr>) -> Self {
        let scope = Self { nearest, named: RwLock::default() };
        named.into_iter().for_each(|address| scope.name(address));
        scope
    }

    /// Admits an address that a person named: in any scope, and by a name that may point anywhere. When the list is
    /// full, it takes no more.
    pub(crate) fn name(&self, address: &Multiaddr) {
        if self.allows(address) {
            return;
        }
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        if named.len() < MAX_NAMED_ADDRS {
            named.insert(before_identity(address));
        }
    }

    /// Whether the mesh may dial an address. The name of an unknown peer is never resolved.
    pub(crate) fn allows(&self, address: &Multiaddr) -> bool {
        let named = || self.named.read().unwrap_or_else(PoisonError::into_inner);
        reach_of_address(address).is_some_and(|reach| reach <= self.nearest)
            || named().contains(&before_identity(address))
    }
}

/// The part of an address before the first identity: the place that is dialled.
fn before_identity(address: &Multiaddr) -> Multiaddr {
    address.iter().take_while(|part| !matches!(part, Protocol::P2p(_))).collect()
}

/// The scope of the first part of a multiaddress; for a circuit, of its relay. `None` for a name.
#[must_use]
pub fn reach_of_address(address: &Multiaddr) -> Option<Reach> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(reach_of(IpAddr::V4(ip))),
        Protocol::Ip6(ip) => Some(reach_of(IpAddr::V6(ip).to_canonical())),
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
        Some(Protocol::Ip6(ip)) => IpAddr::V6(ip).to_canonical().is_unspecified(),
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
    fn a_named_address_is_dialled_in_any_scope_and_all_others_up_to_the_nearest() {
        let named: Multiaddr = "/dns4/localhost/tcp/1".parse().unwrap();
        let scope = DialScope::new(Reach::Public, [&named]);
        scope.name(&"/ip4/10.0.0.1/udp/1/quic-v1".parse().unwrap());
        let node = libp2p::PeerId::random();
        for (text, allowed) in [
            (format!("/dns4/localhost/tcp/1/p2p/{node}"), true),
            (format!("/dns4/localhost/tcp/1/p2p/{node}/p2p-circuit"), true),
            ("/ip4/10.0.0.1/udp/1/quic-v1".to_owned(), true),
            ("/ip4/9.9.9.9/tcp/1".to_owned(), true),
            ("/dns4/localhost/tcp/2".to_owned(), false),
            ("/dns/localhost/tcp/1".to_owned(), false),
            ("/dnsaddr/example.org".to_owned(), false),
            ("/ip4/10.0.0.1/tcp/1".to_owned(), false),
            ("/ip4/127.0.0.1/tcp/1".to_owned(), false),
        ] {
            assert_eq!(scope.allows(&text.parse().unwrap()), allowed, "{text}");
        }
        for port in 0..2 * MAX_NAMED_ADDRS {
            scope.name(&format!("/dns/a/tcp/{}", port + 10).parse().unwrap());
        }
        assert_eq!(scope.named.read().unwrap().len(), MAX_NAMED_ADDRS);
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
