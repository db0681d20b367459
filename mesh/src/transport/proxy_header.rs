//! The header of the PROXY protocol, versions 1 and 2: a proxy names the client of a connection. Pure.
//!
//! Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::net::{IpAddr, SocketAddr};

/// The first bytes of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const FIXED_BYTES: usize = 16;
/// Most bytes of version 2: addresses and the fields of a proxy that terminates TLS, as a TCP segment has them.
const MAX_BINARY_BYTES: usize = FIXED_BYTES + 536;
/// Most bytes of version 1, with the line's end.
const MAX_LINE_BYTES: usize = 107;

/// The state of a header that is being read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderProgress {
    /// The header has at least this many bytes more; what follows them may be the client's.
    Needs(usize),
    /// The whole header, with the client; `None` if the proxy speaks for itself or names no TCP client.
    Complete(Option<SocketAddr>),
}

/// Bytes that no proxy sends first.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection does not begin with a header of the PROXY protocol")]
pub(super) struct NotAHeader;

/// Reads the beginning of a connection.
///
/// # Errors
/// [`NotAHeader`], also for a header that is too long.
pub(super) fn read(bytes: &[u8]) -> Result<HeaderProgress, NotAHeader> {
    if bytes.len() < SIGNATURE.len() {
        return Ok(HeaderProgress::Needs(SIGNATURE.len() - bytes.len()));
    }
    if bytes.starts_with(SIGNATURE) { read_binary(bytes) } else { read_line(bytes) }
}

fn read_binary(bytes: &[u8]) -> Result<HeaderProgress, NotAHeader> {
    let Some((fixed, body)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(HeaderProgress::Needs(FIXED_BYTES - bytes.len()));
    };
    let [.., command, family, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + length > MAX_BINARY_BYTES || body.len() > length {
        return Err(NotAHeader);
    }
    if body.len() < length {
        return Ok(HeaderProgress::Needs(length - body.len()));
    }
    let client = match (command, family) {
        // The proxy's own connection, such as a check of this server's health; or a client without an address.
        (0x20, _) | (0x21, 0x00) => None,
        (0x21, 0x11) => Some(client_of::<4, 8>(body)?),
        (0x21, 0x21) => Some(client_of::<16, 32>(body)?),
        _ => return Err(NotAHeader),
    };
    Ok(HeaderProgress::Complete(client))
}

/// The source of a block of two addresses and two ports.
fn client_of<const ADDRESS: usize, const BOTH: usize>(body: &[u8]) -> Result<SocketAddr, NotAHeader>
where
    IpAddr: From<[u8; ADDRESS]>,
{
    let address = body.first_chunk::<ADDRESS>().ok_or(NotAHeader)?;
    let ports = body.get(BOTH..).and_then(|ports| ports.first_chunk::<4>()).ok_or(NotAHeader)?;
    let [high, low, ..] = *ports;
    Ok(SocketAddr::new(IpAddr::from(*address), u16::from_be_bytes([high, low])))
}

fn read_line(bytes: &[u8]) -> Result<HeaderProgress, NotAHeader> {
    let rest = bytes.strip_prefix(b"PROXY ").ok_or(NotAHeader)?;
    let Some(line) = rest.strip_suffix(b"\r\n") else {
        return match bytes.len() {
            length if length >= MAX_LINE_BYTES || rest.contains(&b'\n') => Err(NotAHeader),
            _ => Ok(HeaderProgress::Needs(1)),
        };
    };
    let line = std::str::from_utf8(line).map_err(|_| NotAHeader)?;
    let mut fields = line.split(' ');
    let is_v4 = match fields.next() {
        Some("UNKNOWN") => return Ok(HeaderProgress::Complete(None)),
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(NotAHeader),
    };
    let mut address = || {
        let ip = fields.next()?.parse::<IpAddr>().ok()?;
        (ip.is_ipv4() == is_v4).then_some(ip)
    };
    let (client, _) = (address().ok_or(NotAHeader)?, address().ok_or(NotAHeader)?);
    let mut port = || fields.next()?.parse::<u16>().ok();
    let (port, _) = (port().ok_or(NotAHeader)?, port().ok_or(NotAHeader)?);
    match fields.next() {
        None => Ok(HeaderProgress::Complete(Some(SocketAddr::new(client, port)))),
        Some(_) => Err(NotAHeader),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn addresses(client: &[u8], server: &[u8]) -> Vec<u8> {
        [client, server, &[0x30, 0x39, 0x0F, 0xA1]].concat()
    }

    /// Reads a connection as its listener does: never a byte after the header.
    fn read_from(connection: &[u8]) -> Result<(Option<SocketAddr>, usize), NotAHeader> {
        let mut taken = 0;
        loop {
            match read(&connection[..taken])? {
                HeaderProgress::Complete(client) => return Ok((client, taken)),
                HeaderProgress::Needs(more) => {
                    assert!(more > 0);
                    taken += more;
                    if taken > connection.len() {
                        return Err(NotAHeader);
                    }
                }
            }
        }
    }

    #[test]
    fn headers_of_both_versions_name_the_client() {
        let v4 = addresses(&[203, 0, 113, 7], &[127, 0, 0, 1]);
        let mut v6 = [0; 16];
        v6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        for (header, client) in [
            (b"PROXY TCP4 203.0.113.7 127.0.0.1 12345 4001\r\n".to_vec(), Some("203.0.113.7:12345")),
            (b"PROXY TCP6 2001:db8:: ::1 12345 4001\r\n".to_vec(), Some("[2001:db8::]:12345")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("203.0.113.7:12345")),
            (binary(0x21, 0x11, &[&v4[..], &[4, 0, 1, 0]].concat()), Some("203.0.113.7:12345")),
            (binary(0x21, 0x21, &addresses(&v6, &[0; 16])), Some("[2001:db8::]:12345")),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x21, 0x00, &[1; 9]), None),
        ] {
            let connection = [&header[..], b"GET / HTTP/1.1"].concat();
            let client = client.map(|client| client.parse().unwrap());
            assert_eq!(read_from(&connection), Ok((client, header.len())), "{}", header.escape_ascii());
        }
    }

    #[test]
    fn other_beginnings_are_refused() {
        let long = [b"PROXY UNKNOWN ", &[b'x'; 100][..], b"\r\n"].concat();
        for connection in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"\x13/multistream/1.0.0\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 127.0.0.1 12345\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 127.0.0.1 12345 4001 1\r\n".to_vec(),
            b"PROXY TCP4 2001:db8:: ::1 12345 4001\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 127.0.0.1 99999 4001\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 127.0.0.1 12345 4001\nPROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UDP4 203.0.113.7 127.0.0.1 12345 4001\r\n".to_vec(),
            long,
            binary(0x21, 0x11, &[1; 11]),
            binary(0x21, 0x21, &[1; 35]),
            binary(0x21, 0x12, &[1; 12]),
            binary(0x31, 0x11, &[1; 12]),
            binary(0x21, 0x11, &[1; 537]),
        ] {
            assert_eq!(read_from(&connection), Err(NotAHeader), "{}", connection.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end_within_the_longest_header(
            start in 0..3usize,
            rest in prop::collection::vec(any::<u8>(), 0..800),
        ) {
            let start = [&b""[..], b"PROXY TCP4 ", SIGNATURE][start];
            let connection = [start, &rest].concat();
            if let Ok((_, taken)) = read_from(&connection) {
                prop_assert!(taken <= MAX_BINARY_BYTES);
            }
        }
    }
}
