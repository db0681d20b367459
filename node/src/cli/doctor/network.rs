//! Checks whether peers can reach the node, by its addresses and by the running node's knowledge.

use baton_kit::doctor::socket_of;
use baton_mesh::Reach;

use super::{Check, Subject, codes};
use crate::{
    admin::network::{Nat, NetworkStatus, reach},
    cli::status::describe_network,
};

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("network");
    let settings = &subject.settings;
    for address in &settings.external() {
        if reach(&address.to_string()) != Reach::Public {
            check.found(codes::EXTERNAL_PRIVATE, address.to_string());
        }
    }
    let all_loopback = settings.listen().iter().all(|address| {
        socket_of(&address.to_string()).is_some_and(|socket| socket.address().ip().is_loopback())
    });
    if all_loopback {
        check.found(codes::LOOPBACK_ONLY, "listen has only loopback addresses");
        return check;
    }
    match subject.running.as_ref().and_then(|status| status.network.as_ref()) {
        Some(network) => judge(&mut check, network),
        None => check.saw("no node runs that could know whether others reach it"),
    }
    check
}

fn judge(check: &mut Check, network: &NetworkStatus) {
    check.saw(describe_network(network));
    let is_unreachable = network.relayed_via.is_empty() && network.external_addrs.is_empty();
    if network.nat == Nat::Private && is_unreachable {
        check.found(codes::NAT_NO_RELAY, "others cannot open connections to it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes_of(network: &NetworkStatus) -> Vec<&'static str> {
        let mut check = Check::new("network");
        judge(&mut check, network);
        check.codes()
    }

    #[test]
    fn a_node_behind_a_nat_needs_a_relay() {
        let relay = vec!["/ip4/8.8.8.8/tcp/1/p2p/x".to_owned()];
        for (nat, relayed_via, expected) in [
            (Nat::Unknown, Vec::new(), &[][..]),
            (Nat::Public, Vec::new(), &[]),
            (Nat::Private, Vec::new(), &["D601"]),
            (Nat::Private, relay, &[]),
        ] {
            let network = NetworkStatus { nat, relayed_via, ..NetworkStatus::default() };
            assert_eq!(codes_of(&network), expected, "{nat:?}");
        }
    }
}
