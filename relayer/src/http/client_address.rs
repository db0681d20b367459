//! The address of an HTTP client: the connection's, or the one that a trusted proxy reports. Pure.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use baton_mesh::{Origin, Subnet};

/// Most addresses of one header that are read, from its end.
const MAX_HOPS: usize = 16;

/// The header with the client's address, and the proxies that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddresses {
    /// The header, such as `x-forwarded-for`; `None` where clients connect directly.
    pub header: Option<HeaderName>,
    /// Proxies beside this machine's own.
    pub proxies: Vec<IpAddr>,
}

impl ClientAddresses {
    /// Whether a connection comes from this machine or a trusted proxy, so that nobody on the way reads it.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        peer.is_loopback() || self.proxies.contains(&peer)
    }

    /// Whether a connection is a client's own: no proxy is before it, or it comes from no trusted proxy.
    pub(super) fn is_client(&self, peer: IpAddr) -> bool {
        self.header.is_none() || !self.trusts(peer)
    }

    /// The client's address. Only a trusted proxy's header counts. Each proxy appends the address that it saw, so
    /// the last address that is no trusted proxy is the client.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        let Some(header) = self.header.as_ref().filter(|_| self.trusts(peer)) else { return peer };
        let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
        let hops: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        let mut client = peer;
        for hop in hops.iter().rev().take(MAX_HOPS) {
            // Text that is no address comes from before the last trusted proxy.
            let Ok(address) = hop.parse::<IpAddr>() else { break };
            client = address.to_canonical();
            if !self.trusts(client) {
                break;
            }
        }
        client
    }

    /// The subnet that counts the client; `None` for a private address that is not counted.
    pub(super) fn subnet(&self, peer: IpAddr, headers: &HeaderMap, count_private: bool) -> Option<Subnet> {
        Origin::Direct(self.client(peer, headers)).counted(count_private)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn client(addresses: &ClientAddresses, peer: &str, header: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in header {
            headers.append("x-forwarded-for", HeaderValue::from_str(value).unwrap());
        }
        addresses.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_and_only_for_what_it_saw_itself() {
        let addresses = ClientAddresses {
            header: Some(HeaderName::from_static("x-forwarded-for")),
            proxies: vec!["10.0.0.2".parse().unwrap()],
        };
        for (peer, header, expected) in [
            ("203.0.113.9", &["198.51.100.7"][..], "203.0.113.9"),
            ("10.0.0.3", &["198.51.100.7"], "10.0.0.3"),
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
    fn a_private_address_is_counted_only_where_the_operator_says_so() {
        let addresses = ClientAddresses::default();
        let subnet = |ip: &str, private| addresses.subnet(ip.parse().unwrap(), &HeaderMap::new(), private);
        assert_eq!(subnet("127.0.0.1", false), None);
        assert!(subnet("127.0.0.1", true).is_some() && subnet("203.0.113.9", false).is_some());
    }

    #[test]
    fn this_machine_and_the_named_proxies_are_trusted_with_a_token_and_nobody_else() {
        let proxies = vec!["10.0.0.2".parse().unwrap()];
        let addresses = ClientAddresses { header: None, proxies };
        let trusts = |peer: &str| addresses.trusts(peer.parse().unwrap());
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"] {
            assert!(trusts(peer), "{peer}");
        }
        for peer in ["203.0.113.9", "10.0.0.3", "::ffff:203.0.113.9", "2001:db8::1", "0.0.0.0"] {
            assert!(!trusts(peer), "{peer}");
        }
    }
}
