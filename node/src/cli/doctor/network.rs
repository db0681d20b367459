//! Checks whether peers can reach the node. Uses the running node's knowledge, or else a guess, which is
//! labelled as such.

use std::net::{IpAddr, UdpSocket};

use baton_kit::doctor::socket_of;

use super::{Check, Subject, codes};
use crate::{
    admin::network::{Nat, NetworkStatus, RelayLimits, is_public},
    cli::status::describe_network,
};

/// Bytes of a long turn through a relay: the largest reply that a node stores.
const TURN_BYTES: u64 = 8 << 20;
/// Seconds of a long turn: the maximum time in a slot.
const TURN_SECONDS: u64 = 15 * 60;

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("network");
    let settings = &subject.settings;
    for address in &settings.external() {
        if socket_of(&address.to_string()).is_some_and(|socket| !is_public(socket.address().ip())) {
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
        None => check.saw("no node runs that could know; what follows is a guess"),
    }
    let known = subject.running.as_ref().and_then(|status| status.network.as_ref());
    if known.is_none_or(|network| network.nat == Nat::Unknown) {
        guess(&mut check, subject);
    }
    check
}

fn judge(check: &mut Check, network: &NetworkStatus) {
    check.saw(describe_network(network));
    if network.nat != Nat::Private {
        return;
    }
    if network.relayed_via.is_empty() && network.external_addrs.is_empty() {
        check.found(codes::NAT_NO_RELAY, "others cannot open connections to it");
    }
    if !network.relayed_via.is_empty()
        && let Some(limits) = network.relay_limits
        && is_narrow(limits)
    {
        let bytes =
            limits.bytes.map_or("no limit of bytes".to_owned(), |bytes| format!("{} kB", bytes / 1000));
        let time = limits.seconds.map_or("no limit of time".to_owned(), |seconds| format!("{seconds} s"));
        check.found(
            codes::RELAY_NARROW,
            format!("{bytes}, {time}; a long turn takes up to {} kB", TURN_BYTES / 1000),
        );
    }
}

fn is_narrow(limits: RelayLimits) -> bool {
    limits.bytes.is_some_and(|bytes| bytes < TURN_BYTES)
        || limits.seconds.is_some_and(|seconds| seconds < TURN_SECONDS)
}

/// Guesses from this machine's own addresses. A machine behind a router has no public address.
fn guess(check: &mut Check, subject: &Subject) {
    let own: Vec<IpAddr> = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .filter_map(|(here, there)| outgoing(here, there))
        .collect();
    let public: Vec<_> = own.iter().filter(|ip| is_public(**ip)).map(ToString::to_string).collect();
    if !public.is_empty() {
        check.saw(format!(
            "guess: reachable, since {} is public, unless a firewall forbids it",
            public.join(", ")
        ));
    } else if !subject.settings.external().is_empty() {
        check.saw("guess: reachable, if the router forwards the external addresses");
    } else if own.is_empty() {
        check.saw("guess: this machine has no network beside itself");
    } else {
        let own: Vec<_> = own.iter().map(ToString::to_string).collect();
        check.found(
            codes::NAT_GUESSED,
            format!("its addresses are {}; whether a router forwards its port is not known", own.join(", ")),
        );
    }
}

/// The source address of this machine for a destination. Sends nothing.
fn outgoing(here: &str, there: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(here).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
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
    fn private_without_relay_and_narrow_relays_are_reported() {
        let limits = |bytes, seconds| Some(RelayLimits { bytes, seconds });
        let relayed = |relay_limits| NetworkStatus {
            nat: Nat::Private,
            relayed_via: vec!["/ip4/8.8.8.8/tcp/1/p2p/x".to_owned()],
            relay_limits,
            ..NetworkStatus::default()
        };
        assert!(codes_of(&NetworkStatus::default()).is_empty());
        assert!(codes_of(&NetworkStatus { nat: Nat::Public, ..NetworkStatus::default() }).is_empty());
        assert_eq!(codes_of(&NetworkStatus { nat: Nat::Private, ..NetworkStatus::default() }), ["D601"]);
        assert_eq!(codes_of(&relayed(limits(Some(128 << 10), Some(120)))), ["D605"]);
        assert_eq!(codes_of(&relayed(limits(None, Some(120)))), ["D605"]);
        assert!(codes_of(&relayed(limits(None, None))).is_empty());
        assert!(codes_of(&relayed(None)).is_empty());
    }
}
