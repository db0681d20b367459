//! The network part of `/status`, and from where an address is reachable.

use baton_mesh::{Reach, reach_of_address};
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

/// From where an address is reachable. A name other than `localhost` counts as public.
pub(crate) fn reach(address: &str) -> Reach {
    let by_name =
        if address.split('/').nth(2) == Some("localhost") { Reach::Loopback } else { Reach::Public };
    let host = address.split("/p2p").next().unwrap_or_default();
    host.parse().ok().as_ref().and_then(reach_of_address).unwrap_or(by_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_an_audience() {
        for (address, expected) in [
            ("/ip4/127.0.0.1/tcp/4001", Reach::Loopback),
            ("/ip6/::1/udp/4001/quic-v1", Reach::Loopback),
            ("/dns4/localhost/tcp/4001", Reach::Loopback),
            ("/ip4/10.1.2.3/tcp/4001/p2p/x", Reach::Local),
            ("/ip4/8.8.8.8/tcp/4001", Reach::Public),
            ("/dns4/node.example/tcp/4001", Reach::Public),
        ] {
            assert_eq!(reach(address), expected, "{address}");
        }
    }
}
