//! Checks that the listen addresses are free, or taken by the running node itself.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

use baton_mesh::Multiaddr;

use super::{Subject, codes, report::Check};
use crate::config::AdminSetting;

/// A transport's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    Tcp,
    Udp,
}

/// The socket of a listen address, such as `/ip4/0.0.0.0/tcp/4001`; `None` for names and circuits.
pub(super) fn socket_of(address: &Multiaddr) -> Option<(Socket, SocketAddr)> {
    let text = address.to_string();
    let mut words = text.split('/').skip(1);
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
    let settings = &subject.settings;
    match &subject.running {
        Some(status) => {
            let open: Vec<_> = status
                .listen
                .iter()
                .filter_map(|address| address.parse::<Multiaddr>().ok())
                .filter_map(|address| socket_of(&address))
                .collect();
            for address in &settings.listen {
                // The node may have replaced port 0 by a real port, and one address of all interfaces by
                // several.
                let is_open = socket_of(address).is_none_or(|(socket, wanted)| {
                    open.iter().any(|(kind, found)| {
                        *kind == socket && (wanted.port() == 0 || found.port() == wanted.port())
                    })
                });
                if is_open {
                    check.saw(format!("{address} is the running node's"));
                } else if status.listen.is_empty() {
                    check.saw(format!("{address} is not open yet: the node is still starting"));
                } else {
                    check.found(codes::PORT_NOT_OPEN, address.to_string());
                }
            }
        }
        // The ports probably belong to the node that does not answer; another check reports it.
        None if subject.in_use => {
            return Check::skipped("ports", "a node that cannot be asked uses the data directory");
        }
        None => {
            for address in &settings.listen {
                check_free(&mut check, address);
            }
        }
    }
    check_admin(&mut check, subject);
    check
}

fn check_free(check: &mut Check, address: &Multiaddr) {
    let Some((socket, at)) = socket_of(address) else {
        check.saw(format!("{address} is tried only at the start"));
        return;
    };
    match try_to_bind(socket, at) {
        Ok(()) => check.saw(format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            check.found(codes::PORT_TAKEN, address.to_string());
        }
        Err(error) => check.found(codes::PORT_REFUSED, format!("{address}: {error}")),
    }
}

fn check_admin(check: &mut Check, subject: &Subject) {
    let AdminSetting::At(address) = subject.settings.admin else {
        check.saw("the admin port is switched off");
        return;
    };
    if subject.running.is_some() {
        check.saw(format!("admin port {address} is the running node's"));
    } else if let Some(other_program) = &subject.other_program {
        check.found(codes::ADMIN_TAKEN, format!("{address}: {other_program}"));
    } else {
        match try_to_bind(Socket::Tcp, address) {
            Ok(()) => check.saw(format!("admin port {address} is free")),
            Err(error) => check.found(codes::ADMIN_TAKEN, format!("{address}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_addresses() {
        let socket = |text: &str| socket_of(&text.parse().unwrap());
        assert_eq!(socket("/ip4/0.0.0.0/tcp/4001"), Some((Socket::Tcp, "0.0.0.0:4001".parse().unwrap())));
        assert_eq!(socket("/ip6/::1/udp/7/quic-v1"), Some((Socket::Udp, "[::1]:7".parse().unwrap())));
        assert_eq!(socket("/dns4/example.org/tcp/4001"), None);
    }

    #[test]
    fn a_taken_port_is_told_apart_from_an_address_of_another_machine() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        for (address, code) in [
            (format!("/ip4/127.0.0.1/tcp/{port}"), "D501"),
            ("/ip4/203.0.113.9/tcp/4001".to_owned(), "D502"),
            ("/ip4/127.0.0.1/udp/0/quic-v1".to_owned(), "none"),
        ] {
            let mut check = Check::new("ports");
            check_free(&mut check, &address.parse().unwrap());
            let found = serde_json::to_value(check.findings()).unwrap();
            assert_eq!(found[0]["code"].as_str().unwrap_or("none"), code, "{address}");
        }
    }
}
