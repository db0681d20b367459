//! Checks that a configured address is free, or open in the running program itself.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
};

use super::{Check, Code};

/// A transport's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// TCP.
    Tcp(SocketAddr),
    /// UDP.
    Udp(SocketAddr),
}

impl Socket {
    /// Its address.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        let (Self::Tcp(address) | Self::Udp(address)) = self;
        address
    }

    fn try_to_bind(self) -> io::Result<()> {
        match self {
            Self::Tcp(address) => TcpListener::bind(address).map(drop),
            Self::Udp(address) => UdpSocket::bind(address).map(drop),
        }
    }
}

/// The codes of an address that cannot be bound.
#[derive(Clone, Copy, Debug)]
pub struct SocketCodes {
    /// Another process has it.
    pub taken: Code,
    /// It cannot be used at all.
    pub refused: Code,
}

/// The socket of a listen address, such as `/ip4/0.0.0.0/tcp/4001`; `None` for names and circuits.
#[must_use]
pub fn socket_of(address: &str) -> Option<Socket> {
    let mut words = address.split('/').skip(1);
    let ip = match (words.next()?, words.next()?) {
        ("ip4" | "ip6", ip) => ip.parse::<IpAddr>().ok()?,
        _ => return None,
    };
    let (kind, port) = (words.next()?, words.next()?.parse::<u16>().ok()?);
    match kind {
        "tcp" => Some(Socket::Tcp(SocketAddr::new(ip, port))),
        "udp" => Some(Socket::Udp(SocketAddr::new(ip, port))),
        _ => None,
    }
}

/// Binds an address for a moment.
pub fn check_socket(check: &mut Check, codes: SocketCodes, name: &str, socket: Option<Socket>) {
    match socket.map(Socket::try_to_bind) {
        None => check.saw(format!("{name} is tried only at the start")),
        Some(Ok(())) => check.saw(format!("{name} is free")),
        Some(Err(error)) if error.kind() == ErrorKind::AddrInUse => check.found(codes.taken, name),
        Some(Err(error)) => check.found(codes.refused, format!("{name}: {error}")),
    }
}

/// Whether a configured address is among those that the running program has open. The program may have replaced
/// port 0 by a real port, and one address of all interfaces by several.
#[must_use]
pub fn is_open(configured: &str, open: &[String]) -> bool {
    socket_of(configured).is_none_or(|wanted| {
        let port = wanted.address().port();
        open.iter().filter_map(|open| socket_of(open)).any(|found| {
            std::mem::discriminant(&found) == std::mem::discriminant(&wanted)
                && (port == 0 || found.address().port() == port)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_addresses() {
        let at = |text: &str| text.parse().unwrap();
        assert_eq!(socket_of("/ip4/0.0.0.0/tcp/4001"), Some(Socket::Tcp(at("0.0.0.0:4001"))));
        assert_eq!(socket_of("/ip6/::1/udp/7/quic-v1/p2p/P"), Some(Socket::Udp(at("[::1]:7"))));
        assert_eq!(socket_of("/dns4/example.org/tcp/4001"), None);
    }

    #[test]
    fn a_taken_port_is_told_apart_from_an_address_of_another_machine() {
        let codes = SocketCodes {
            taken: Code::problem("K1", "taken", "stop it"),
            refused: Code::problem("K2", "refused", "another"),
        };
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        for (socket, expected) in [
            (Some(Socket::Tcp(taken.local_addr().unwrap())), &["K1"][..]),
            (Some(Socket::Tcp("203.0.113.9:4001".parse().unwrap())), &["K2"]),
            (Some(Socket::Udp("127.0.0.1:0".parse().unwrap())), &[]),
            (None, &[]),
        ] {
            let mut check = Check::new("ports");
            check_socket(&mut check, codes, "a", socket);
            assert_eq!(check.codes(), expected, "{socket:?}");
        }
    }

    #[test]
    fn open_addresses_count_by_transport_and_port() {
        let open = ["/ip4/10.0.0.2/tcp/4101/p2p/P".to_owned()];
        for (address, expected) in [
            ("/ip4/0.0.0.0/tcp/4101", true),
            ("/ip4/0.0.0.0/tcp/0", true),
            ("/dns4/example.org/tcp/1", true),
            ("/ip4/0.0.0.0/tcp/4102", false),
            ("/ip4/0.0.0.0/udp/4101/quic-v1", false),
        ] {
            assert_eq!(is_open(address, &open), expected, "{address}");
        }
    }
}
