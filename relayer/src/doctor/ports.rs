//! Checks that the addresses are free, or taken by the running relayer itself.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

use super::{Subject, codes, report::Check};
use crate::{config::HttpSetting, running::RelayerAnswer};

/// A transport's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    Tcp,
    Udp,
}

/// The socket of a listen address, such as `/ip4/0.0.0.0/tcp/4101`; `None` for names and circuits.
fn socket_of(address: &str) -> Option<(Socket, SocketAddr)> {
    let mut words = address.split('/').skip(1);
    let ip = match (words.next()?, words.next()?) {
        ("ip4" | "ip6", ip) => ip.parse::<IpAddr>().ok()?,
        _ => return None,
    };
    let (kind, port) = (words.next()?, words.next()?.parse::<u16>().ok()?);
    match kind {
        "tcp" => Some((Socket::Tcp, SocketAddr::new(ip, port))),
        "udp" => Some((Socket::Udp, SocketAddr::new(ip, port))),
        _ => None,
    }
}

fn try_to_bind(socket: Socket, address: SocketAddr) -> io::Result<()> {
    match socket {
        Socket::Tcp => TcpListener::bind(address).map(drop),
        Socket::Udp => UdpSocket::bind(address).map(drop),
    }
}

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("ports");
    check_http(&mut check, subject);
    for address in &subject.settings.listen {
        let address = address.to_string();
        match subject.running() {
            Some(relayer) => judge_open(&mut check, &address, &relayer.identity.addresses),
            // The database's check reports the relayer that does not answer; the ports are probably its own.
            None if subject.in_use => check.saw(format!("{address} was not tried")),
            None => match socket_of(&address) {
                Some((socket, at)) => judge_bind(&mut check, &address, try_to_bind(socket, at)),
                None => check.saw(format!("{address} is tried only at the start")),
            },
        }
    }
    check
}

fn check_http(check: &mut Check, subject: &Subject) {
    let HttpSetting::At(address) = subject.settings.http else {
        check.saw("HTTP is off");
        return;
    };
    match (&subject.answer, subject.running()) {
        (_, Some(relayer)) => check.saw(format!("HTTP at {} is the running relayer's", relayer.url)),
        (RelayerAnswer::Relayer(other), None) => {
            check.found(codes::HTTP_OTHER, format!("{address}: the relayer {}", other.identity.relayer));
        }
        (RelayerAnswer::OtherProgram { reason, .. }, None) => {
            check.found(codes::HTTP_OTHER, format!("{address}: {reason}"));
        }
        (RelayerAnswer::Silent { .. } | RelayerAnswer::NoAddress(_), None) => {
            judge_bind(check, &format!("HTTP at {address}"), try_to_bind(Socket::Tcp, address));
        }
    }
}

fn judge_bind(check: &mut Check, address: &str, bound: io::Result<()>) {
    match bound {
        Ok(()) => check.saw(format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            check.found(codes::PORT_TAKEN, address.to_owned());
        }
        Err(error) => check.found(codes::PORT_REFUSED, format!("{address}: {error}")),
    }
}

/// Compares a configured address with the running relayer's. It may have replaced port 0 by a real port, and
/// one address of all interfaces by several.
fn judge_open(check: &mut Check, address: &str, open: &[String]) {
    let is_open = socket_of(address).is_none_or(|(socket, wanted)| {
        open.iter()
            .filter_map(|open| socket_of(open))
            .any(|(kind, found)| kind == socket && (wanted.port() == 0 || found.port() == wanted.port()))
    });
    match is_open {
        true => check.saw(format!("{address} is the running relayer's")),
        false => check.found(codes::PORT_NOT_OPEN, address.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{report::codes_of, running_relayer, subject},
        *,
    };

    #[test]
    fn sockets_are_read_from_addresses() {
        let at = |text: &str| text.parse().unwrap();
        assert_eq!(socket_of("/ip4/0.0.0.0/tcp/4101"), Some((Socket::Tcp, at("0.0.0.0:4101"))));
        assert_eq!(socket_of("/ip6/::1/udp/7/quic-v1/p2p/P"), Some((Socket::Udp, at("[::1]:7"))));
        assert_eq!(socket_of("/dns4/example.org/tcp/4101"), None);
    }

    #[test]
    fn a_taken_port_is_told_apart_from_an_address_of_another_machine() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = "203.0.113.9:4101".parse().unwrap();
        for (address, codes) in [
            (taken.local_addr().unwrap(), vec!["R501"]),
            (other, vec!["R502"]),
            ("127.0.0.1:0".parse().unwrap(), vec![]),
        ] {
            let mut check = Check::new("ports");
            judge_bind(&mut check, "a", try_to_bind(Socket::Tcp, address));
            assert_eq!(codes_of(&check), codes, "{address}");
        }
    }

    #[test]
    fn the_running_relayers_addresses_count_by_transport_and_port() {
        let open = ["/ip4/10.0.0.2/tcp/4101/p2p/P".to_owned()];
        for (address, codes) in [
            ("/ip4/0.0.0.0/tcp/4101", vec![]),
            ("/ip4/0.0.0.0/tcp/0", vec![]),
            ("/ip4/0.0.0.0/tcp/4102", vec!["R503"]),
            ("/ip4/0.0.0.0/udp/4101/quic-v1", vec!["R503"]),
        ] {
            let mut check = Check::new("ports");
            judge_open(&mut check, address, &open);
            assert_eq!(codes_of(&check), codes, "{address}");
        }
    }

    #[test]
    fn another_program_at_the_http_address_is_a_problem() {
        let (url, reason) = ("http://127.0.0.1:8000".to_owned(), "404".to_owned());
        let mut other = subject("", RelayerAnswer::OtherProgram { url, reason });
        other.in_use = true;
        assert_eq!(codes_of(&check(&other)), ["R504"]);
        let relayer = running_relayer(&["/ip4/10.0.0.2/tcp/4101/p2p/P"]);
        let running = subject("", RelayerAnswer::Relayer(Box::new(relayer)));
        assert!(codes_of(&check(&running)).is_empty());
    }
}
