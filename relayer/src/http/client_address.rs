//! The address of an HTTP client: the connection's, or the one that a trusted proxy reports. Pure.

use std::net::IpAddr;

use axum::http::HeaderMap;
use baton_limits::{Networks, Subnet};

/// Most addresses of one header that are read, from its end.
const MAX_HOPS: usize = 16;
/// The header in which proxies report addresses.
const HEADER: &str = "x-forwarded-for";

/// The proxies that are believed, also those on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddresses {
    /// Their addresses.
    pub proxies: Networks,
}

impl ClientAddresses {
    /// Whether a connection comes from this machine or a trusted proxy, so that nobody on the way reads it.
    /// It says nothing about the client.
    pub(super) fn is_unread(&self, peer: IpAddr) -> bool {
        peer.to_canonical().is_loopback() || self.proxies.has(peer)
    }

    /// Whether a connection is a client's own: it comes from no trusted proxy.
    pub(super) fn is_client(&self, peer: IpAddr) -> bool {
        !self.proxies.has(peer)
    }

    /// The client's address. Only a trusted proxy's header counts. Each proxy appends the address that it saw, so
    /// the last address that is no trusted proxy is the client.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let values = headers.get_all(HEADER).iter().filter_map(|value| value.to_str().ok());
        let hops: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        let mut client = peer.to_canonical();
        for hop in hops.iter().rev().take(MAX_HOPS) {
            // Text that is no address comes from before the last trusted proxy.
            let Ok(address) = hop.parse::<IpAddr>() else { break };
            if !self.proxies.has(client) {
                break;
            }
            client = address.to_canonical();
        }
        client
    }

    /// The subnet that counts the client; `None` for one of the operator's own networks.
    pub(super) fn subnet(&self, peer: IpAddr, headers: &HeaderMap, own: &Networks) -> Option<Subnet> {
        let client = self.client(peer, headers);
        (!own.has(client)).then(|| client.into())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn networks(texts: &[&str]) -> Networks {
        texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>().into()
    }

    fn client(addresses: &ClientAddresses, peer: &str, header: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in header {
            headers.append("x-forwarded-for", HeaderValue::from_str(value).unwrap());
        }
        addresses.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_and_only_for_what_it_saw_itself() {
        let addresses = ClientAddresses { proxies: networks(&["10.0.0.2", "127.0.0.1"]) };
        for (peer, header, expected) in [
            ("203.0.113.9", &["198.51.100.7"][..], "203.0.113.9"),
            ("10.0.0.3", &["198.51.100.7"], "10.0.0.3"),
            // Being on this machine is no reason to be believed.
            ("127.0.0.2", &["198.51.100.7"], "127.0.0.2"),
            ("::1", &["198.51.100.7"], "::1"),
            ("127.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.2", &["198.51.100.7"], "198.51.100.7"),
            ("::ffff:10.0.0.2", &["::ffff:198.51.100.7"], "198.51.100.7"),
            // A client may send the header too: the proxy's own entry is the last.
            ("127.0.0.1", &["192.0.2.1, 198.51.100.7"], "198.51.100.7"),
            ("127.0.0.1", &["192.0.2.1", "198.51.100.7"], "198.51.100.7"),
            ("127.0.0.1", &["192.0.2.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("127.0.0.1", &["nonsense"], "127.0.0.1"),
            ("127.0.0.1", &["198.51.100.7, nonsense, 10.0.0.2"], "10.0.0.2"),
            ("127.0.0.1", &[], "127.0.0.1"),
        ] {
            assert_eq!(client(&addresses, peer, header), expected, "{peer} {header:?}");
        }
        assert_eq!(client(&ClientAddresses::default(), "127.0.0.1", &["198.51.100.7"]), "127.0.0.1");
    }

    #[test]
    fn every_address_is_counted_but_those_of_the_operators_own_networks() {
        let addresses = ClientAddresses::default();
        let subnet = |ip: &str, own: &Networks| addresses.subnet(ip.parse().unwrap(), &HeaderMap::new(), own);
        for ip in ["127.0.0.1", "::1", "10.0.0.2", "203.0.113.9"] {
            assert!(subnet(ip, &Networks::default()).is_some(), "{ip}");
        }
        let own = networks(&["10.0.0.0/8"]);
        assert_eq!(subnet("10.0.0.2", &own), None);
        assert_eq!(subnet("127.0.0.1", &own), subnet("127.9.9.9", &own));
    }

    #[test]
    fn this_machine_and_the_named_proxies_are_trusted_with_a_token_and_nobody_else() {
        let addresses = ClientAddresses { proxies: networks(&["10.0.0.2"]) };
        let trusts = |peer: &str| addresses.is_unread(peer.parse().unwrap());
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"] {
            assert!(trusts(peer), "{peer}");
        }
        for peer in ["203.0.113.9", "10.0.0.3", "::ffff:203.0.113.9", "2001:db8::1", "0.0.0.0"] {
            assert!(!trusts(peer), "{peer}");
        }
    }
}
