//! One connection of the attacker, implemented by hand: TCP, the header of a proxy with a chosen client, Noise, and a minimum of
//! multistream-select and Yamux.
//!
//! A client of this project would spend more on a request than the node does, and would limit the measured
//! rate.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
};

use baton_mesh::Multiaddr;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::{core::upgrade::OutboundConnectionUpgrade as _, identity::Keypair, multiaddr::Protocol, noise};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::attacker::{REFUSED_AT_DOOR, REFUSED_IN_HANDSHAKE};

/// The first message of multistream-select on both sides: a length of one byte, and a line.
const HELLO: &[u8] = b"\x13/multistream/1.0.0\n";
const NOISE: &[u8] = b"\x07/noise\n";
const YAMUX: &[u8] = b"\x0d/yamux/1.0.0\n";
const TURN: &[u8] = b"\x0e/baton/turn/2\n";

/// Bytes of a Yamux header.
const HEADER_BYTES: usize = 12;
/// A stream's window: the node sends no more before we allow it.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// Types of Yamux frames: data, and go away.
const DATA: u8 = 0;
const GO_AWAY: u8 = 3;
/// Flags of Yamux frames.
const SYN: u16 = 1;
const FIN: u16 = 4;
const RST: u16 = 8;

/// An encrypted connection, ready for streams.
pub(super) type NoiseConnection = noise::Output<Compat<TcpStream>>;

/// The socket address of a multiaddress.
pub(super) fn socket_address(address: &Multiaddr) -> anyhow::Result<SocketAddr> {
    let mut parts = address.iter();
    match (parts.next(), parts.next()) {
        (Some(Protocol::Ip4(ip)), Some(Protocol::Tcp(port) | Protocol::Udp(port))) => {
            Ok(SocketAddrV4::new(ip, port).into())
        }
        _ => anyhow::bail!("the attacker needs an address of the form /ip4/../tcp/.. or /ip4/../udp/.."),
    }
}

/// Opens a TCP connection and agrees on Noise; the handshake has not begun.
pub(super) async fn connect(client: Ipv4Addr, target: SocketAddr) -> Result<Compat<TcpStream>, &'static str> {
    let connected = async {
        let socket = TcpSocket::new_v4()?;
        // Otherwise the source's ports would all linger for stray packets, thousands a second.
        socket.set_reuseaddr(true)?;
        socket.set_zero_linger()?;
        let [_, b, c, d] = client.octets();
        socket.bind(SocketAddrV4::new(Ipv4Addr::new(127, b | 128, c, d), 0).into())?;
        let stream = socket.connect(target).await?;
        stream.set_nodelay(true)?;
        let mut stream = stream.compat();
        let header = format!("PROXY TCP4 {client} 127.0.0.1 1 1\r\n");
        stream.write_all(header.as_bytes()).await?;
        agree(&mut stream, NOISE).await?;
        io::Result::Ok(stream)
    };
    connected.await.map_err(|_| REFUSED_AT_DOOR)
}

/// Performs the handshake with the identity of a seed.
pub(super) async fn handshake(
    stream: Compat<TcpStream>,
    seed: [u8; 32],
) -> Result<NoiseConnection, &'static str> {
    let secured = async {
        let noise = noise::Config::new(&Keypair::ed25519_from_bytes(seed)?)?;
        let (_, mut secured) = noise.upgrade_outbound(stream, "/noise").await?;
        agree(&mut secured, YAMUX).await?;
        anyhow::Ok(secured)
    };
    secured.await.map_err(|_| REFUSED_IN_HANDSHAKE)
}

/// Proposes a protocol, and waits until the node accepts it.
async fn agree(io: &mut (impl AsyncRead + AsyncWrite + Unpin), protocol: &[u8]) -> io::Result<()> {
    io.write_all(&[HELLO, protocol].concat()).await?;
    io.flush().await?;
    let mut answer = vec![0; HELLO.len() + protocol.len()];
    io.read_exact(&mut answer).await?;
    if answer == [HELLO, protocol].concat() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// A request's bytes on the wire: a new stream whose first bytes are the protocol's name and the frame.
pub(super) fn open_and_send(stream: u32, frame: &[u8]) -> Vec<u8> {
    let body = HELLO.len() + TURN.len() + 4 + frame.len();
    let length = |length: usize| u32::try_from(length).expect("a request of ours is short");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body);
    bytes.extend([0, DATA]);
    bytes.extend(SYN.to_be_bytes());
    bytes.extend(stream.to_be_bytes());
    bytes.extend(length(body).to_be_bytes());
    bytes.extend(HELLO);
    bytes.extend(TURN);
    bytes.extend(length(frame.len()).to_le_bytes());
    bytes.extend(frame);
    bytes
}

/// Bytes received on a stream.
#[derive(Debug)]
pub(super) struct StreamPiece {
    /// The stream.
    pub(super) stream: u32,
    /// The bytes.
    pub(super) body: Vec<u8>,
    /// Whether the stream ended.
    pub(super) ended: bool,
}

/// The next bytes of any stream; `None` when the node ends the connection.
pub(super) async fn next_piece(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<StreamPiece>> {
    let mut header = [0; HEADER_BYTES];
    io.read_exact(&mut header).await?;
    let [_, kind, f, g, a, b, c, d, h, i, j, k] = header;
    let (flags, stream) = (u16::from_be_bytes([f, g]), u32::from_be_bytes([a, b, c, d]));
    let mut body = Vec::new();
    if kind == GO_AWAY {
        return Ok(None);
    }
    if kind == DATA {
        let length = usize::try_from(u32::from_be_bytes([h, i, j, k])).unwrap_or(usize::MAX);
        if length > MAX_BODY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        body.resize(length, 0);
        io.read_exact(&mut body).await?;
    }
    Ok(Some(StreamPiece { stream, body, ended: flags & (FIN | RST) != 0 }))
}

/// The first frame of an answer, once it is complete.
pub(super) fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let frame = bytes.get(HELLO.len() + TURN.len()..)?;
    let (length, rest) = frame.split_first_chunk::<4>()?;
    rest.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sent_request_can_be_read_back() {
        let bytes = open_and_send(7, b"frame");
        let piece = next_piece(&mut bytes.as_slice()).await.unwrap().unwrap();
        assert_eq!((piece.stream, piece.ended), (7, false));
        assert_eq!(first_frame(&piece.body), Some(&b"frame"[..]));
        let (_, short) = piece.body.split_last().unwrap();
        assert_eq!(first_frame(short), None, "not all of it is there");
        assert!(next_piece(&mut bytes.split_last().unwrap().1).await.is_err());
    }
}
