//! The part of STUN (RFC 8489) that an agent with one address needs for ICE (RFC 8445): Binding requests and their
//! answers, each with MESSAGE-INTEGRITY by a password and FINGERPRINT.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use subtle::ConstantTimeEq as _;

pub(crate) const TRANSACTION_BYTES: usize = 12;
/// An identifier that an answer repeats.
pub(crate) type Transaction = [u8; TRANSACTION_BYTES];

const HEADER_BYTES: usize = 20;
const MAGIC: [u8; 4] = 0x2112_A442_u32.to_be_bytes();
const FINGERPRINT_MASK: u32 = 0x5354_554E;
const INTEGRITY_BYTES: usize = 20;

const REQUEST: u16 = 0x0001;
const SUCCESS: u16 = 0x0101;

const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const PRIORITY: u16 = 0x0024;
const ICE_CONTROLLED: u16 = 0x8029;
const FINGERPRINT: u16 = 0x8028;

/// The priority of a candidate that a peer sees the first time (RFC 8445, section 5.1.2).
const PEER_REFLEXIVE_PRIORITY: u32 = (110 << 24) | (0xFFFF << 8) | 0xFF;

/// The kinds of messages that count here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Success,
}

/// A parsed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StunMessage<'a> {
    pub(crate) kind: Kind,
    pub(crate) transaction: Transaction,
    pub(crate) username: Option<&'a str>,
    /// The message up to its integrity attribute, and that attribute's value.
    signed: Option<(&'a [u8], &'a [u8])>,
}

/// Whether a packet is STUN, among the protocols that share a port of WebRTC (RFC 7983).
pub(crate) fn is_stun(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| *first < 4)
}

impl<'a> StunMessage<'a> {
    /// `None` for a message of another kind or form. Nothing after MESSAGE-INTEGRITY counts, since nothing protects it.
    pub(crate) fn parse(packet: &'a [u8]) -> Option<Self> {
        let (header, mut rest) = packet.split_first_chunk::<HEADER_BYTES>()?;
        let kind = match u16::from_be_bytes([header[0], header[1]]) {
            REQUEST => Kind::Request,
            SUCCESS => Kind::Success,
            _ => return None,
        };
        if usize::from(u16::from_be_bytes([header[2], header[3]])) != rest.len() || header[4..8] != MAGIC {
            return None;
        }
        let transaction = header[8..].try_into().ok()?;
        let mut message = Self { kind, transaction, username: None, signed: None };
        while !rest.is_empty() {
            let at = packet.len() - rest.len();
            let ([type_high, type_low, length_high, length_low], after) = rest.split_first_chunk()?;
            let length = usize::from(u16::from_be_bytes([*length_high, *length_low]));
            let (padded, next) = after.split_at_checked(length.next_multiple_of(4))?;
            let value = padded.get(..length)?;
            match u16::from_be_bytes([*type_high, *type_low]) {
                USERNAME => message.username = Some(std::str::from_utf8(value).ok()?),
                MESSAGE_INTEGRITY if length == INTEGRITY_BYTES => {
                    message.signed = Some((packet.get(..at)?, value));
                    break;
                }
                MESSAGE_INTEGRITY => return None,
                _ => {}
            }
            rest = next;
        }
        Some(message)
    }

    /// Whether the sender knows the password.
    pub(crate) fn is_signed_with(&self, password: &str) -> bool {
        let Some((signed, integrity)) = self.signed else { return false };
        message_integrity(signed, password).ct_eq(integrity).into()
    }
}

/// A request for the sender's answer, as the controlled agent.
pub(crate) fn request(transaction: Transaction, username: &str, password: &str) -> Vec<u8> {
    let mut message = header(REQUEST, transaction);
    attribute(&mut message, USERNAME, username.as_bytes());
    attribute(&mut message, PRIORITY, &PEER_REFLEXIVE_PRIORITY.to_be_bytes());
    // The tie-breaker decides only between two agents of one role.
    attribute(&mut message, ICE_CONTROLLED, &[0; 8]);
    sign(message, password)
}

/// The shortest valid request: a user name and its integrity, and nothing that ICE asks for beside them.
#[cfg(test)]
pub(crate) fn shortest_request(transaction: Transaction, username: &str, password: &str) -> Vec<u8> {
    let mut message = header(REQUEST, transaction);
    attribute(&mut message, USERNAME, username.as_bytes());
    let integrity = message_integrity(&message, password);
    attribute(&mut message, MESSAGE_INTEGRITY, &integrity);
    with_length(&message, 0)
}

/// The answer to a request from a source address.
pub(crate) fn response(transaction: Transaction, source: SocketAddr, password: &str) -> Vec<u8> {
    let mut message = header(SUCCESS, transaction);
    attribute(&mut message, XOR_MAPPED_ADDRESS, &xor_address(source, transaction));
    sign(message, password)
}

/// RFC 8489, section 14.2.
fn xor_address(source: SocketAddr, transaction: Transaction) -> Vec<u8> {
    let mask = MAGIC.into_iter().chain(transaction);
    let (family, octets) = match source.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let port = source.port() ^ u16::from_be_bytes([MAGIC[0], MAGIC[1]]);
    let mut value = vec![0, family];
    value.extend(port.to_be_bytes());
    value.extend(octets.into_iter().zip(mask).map(|(octet, mask)| octet ^ mask));
    value
}

fn header(kind: u16, transaction: Transaction) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &[0, 0], &MAGIC, &transaction].concat()
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    message.extend(kind.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn sign(mut message: Vec<u8>, password: &str) -> Vec<u8> {
    let integrity = message_integrity(&message, password);
    attribute(&mut message, MESSAGE_INTEGRITY, &integrity);
    let checked = with_length(&message, 8);
    let checksum = crc32fast::hash(&checked) ^ FINGERPRINT_MASK;
    let mut message = checked;
    attribute(&mut message, FINGERPRINT, &checksum.to_be_bytes());
    message
}

/// RFC 8489, section 14.5: the length field of the signed bytes counts the integrity attribute too.
fn message_integrity(message: &[u8], password: &str) -> [u8; INTEGRITY_BYTES] {
    let counted = with_length(message, 4 + INTEGRITY_BYTES);
    hmac_sha1(password.as_bytes(), &counted)
}

/// A message whose length field counts further bytes to come.
fn with_length(message: &[u8], further: usize) -> Vec<u8> {
    let length = u16::try_from(message.len() - HEADER_BYTES + further).unwrap_or(u16::MAX);
    let mut message = message.to_vec();
    message.splice(2..4, length.to_be_bytes());
    message
}

pub(crate) fn hmac_sha1(key: &[u8], message: &[u8]) -> [u8; INTEGRITY_BYTES] {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(key) else { return [0; INTEGRITY_BYTES] };
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5769, section 2.1.
    const SAMPLE_REQUEST: &str = "000100582112a442b7e7a701bc34d686fa87dfae802200105354554e207465737420636c69656e74\
        002400046e0001ff80290008932ff9b151263b36000600096576746a3a68367659202020\
        000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a280280004e57a3bcf";
    /// RFC 5769, section 2.2.
    const SAMPLE_RESPONSE: &str = "0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220\
        002000080001a147e112a643000800142b91f599fd9e90c38c7489f92af9ba53f06be7d780280004c07d4c96";
    const SAMPLE_PASSWORD: &str = "VOkJxbRl1RmTxUk/WvJxBt";

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits: Vec<char> = hexadecimal.chars().collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
            .collect()
    }

    #[test]
    fn reads_the_samples_of_rfc_5769() {
        let packet = bytes(SAMPLE_REQUEST);
        let request = StunMessage::parse(&packet).unwrap();
        assert_eq!((request.kind, request.username), (Kind::Request, Some("evtj:h6vY")));
        assert_eq!(request.transaction.to_vec(), bytes("b7e7a701bc34d686fa87dfae"));
        assert!(request.is_signed_with(SAMPLE_PASSWORD));
        assert!(!request.is_signed_with("another"));
        let packet = bytes(SAMPLE_RESPONSE);
        let response = StunMessage::parse(&packet).unwrap();
        assert_eq!(response.kind, Kind::Success);
        assert!(response.is_signed_with(SAMPLE_PASSWORD));
    }

    #[test]
    fn an_answer_has_the_address_of_the_sample() {
        let transaction = bytes("b7e7a701bc34d686fa87dfae").try_into().unwrap();
        let value = xor_address("192.0.2.1:32853".parse().unwrap(), transaction);
        assert_eq!(value, bytes("0001a147e112a643"));
        // RFC 5769, section 2.3.
        let value = xor_address("[2001:db8:1234:5678:11:2233:4455:6677]:32853".parse().unwrap(), transaction);
        assert_eq!(value, bytes("0002a1470113a9faa5d3f179bc25f4b5bed2b9d9"));
    }

    #[test]
    fn written_messages_are_read_and_have_the_right_checksum() {
        for packet in
            [request([7; 12], "a:b", "secret"), response([7; 12], "[::1]:9".parse().unwrap(), "secret")]
        {
            let message = StunMessage::parse(&packet).unwrap();
            assert_eq!(message.transaction, [7; 12]);
            assert!(message.is_signed_with("secret") && !message.is_signed_with("other"));
            let (checked, fingerprint) = packet.split_at(packet.len() - 8);
            let checksum = u32::from_be_bytes(fingerprint[4..].try_into().unwrap());
            assert_eq!(checksum, crc32fast::hash(checked) ^ FINGERPRINT_MASK);
        }
        let sample = bytes(SAMPLE_RESPONSE);
        let (checked, fingerprint) = sample.split_at(sample.len() - 8);
        assert_eq!(
            u32::from_be_bytes(fingerprint[4..].try_into().unwrap()),
            crc32fast::hash(checked) ^ FINGERPRINT_MASK
        );
    }

    #[test]
    fn damaged_messages_are_refused_and_never_panic() {
        let packet = request([7; 12], "a:b", "secret");
        for cut in 0..packet.len() {
            assert_eq!(StunMessage::parse(&packet[..cut]), None);
        }
        for place in 0..packet.len() - 8 {
            for bit in 0..8 {
                let mut damaged = packet.clone();
                damaged[place] ^= 1 << bit;
                let accepted =
                    StunMessage::parse(&damaged).is_some_and(|message| message.is_signed_with("secret"));
                assert!(!accepted, "bit {bit} of byte {place}");
            }
        }
    }
}
