//! Proofs that a peer receives packets at the address from which its packets come.
//!
//! The source of a UDP packet is forged at no cost. A listener that kept something for each source could be filled from
//! anywhere. So the answer to the first request is a request: its transaction, which only a peer at that address receives,
//! is a MAC over the address. Nothing is kept until the peer's answer returns it.
//!
//! Pure: the caller passes in the clock.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::webrtc::{
    limits::{MAX_CREDENTIAL_CHARS, MAX_PROVED_SOURCES, PROOF_TIME},
    stun::{Kind, StunMessage, TRANSACTION_BYTES, Transaction, hmac_sha1, request},
};

/// The beginning of each client's user name, from the specification.
const CREDENTIAL_PREFIX: &str = "libp2p+webrtc+v1/";

/// The next step with a packet of a source without a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SourceVerdict<'a> {
    /// Ask the source for its proof by this packet.
    Ask(Vec<u8>),
    /// The source has proved its address; begin a connection with these credentials.
    Begin(&'a str),
    /// Nothing.
    Ignore,
}

/// The sources with a proof and no connection yet.
pub(crate) struct SourceProofs {
    key: Zeroizing<[u8; 32]>,
    began: Instant,
    proved: HashMap<SocketAddr, Instant>,
    /// In order of their proofs; a source that has gone on is still here.
    order: VecDeque<(SocketAddr, Instant)>,
}

impl SourceProofs {
    /// `key` is secret and random.
    pub(crate) fn new(key: Zeroizing<[u8; 32]>, now: Instant) -> Self {
        Self { key, began: now, proved: HashMap::new(), order: VecDeque::new() }
    }

    /// Judges a packet.
    pub(crate) fn judge<'a>(
        &mut self,
        source: SocketAddr,
        packet: &'a [u8],
        now: Instant,
    ) -> SourceVerdict<'a> {
        let Some(message) = StunMessage::parse(packet) else { return SourceVerdict::Ignore };
        match message.kind {
            Kind::Success => {
                self.accept_proof(source, message.transaction, now);
                SourceVerdict::Ignore
            }
            Kind::Request => {
                let credentials = message.username.and_then(credentials_of);
                let Some(credentials) = credentials.filter(|password| message.is_signed_with(password))
                else {
                    return SourceVerdict::Ignore;
                };
                let proved = self.proved.remove(&source).is_some_and(|since| now < since + PROOF_TIME);
                if proved {
                    return SourceVerdict::Begin(credentials);
                }
                let username = format!("{credentials}:{credentials}");
                let question = request(self.transaction(source, self.slot(now)), &username, credentials);
                // The source may be forged: it must not get more than its forger sent.
                if question.len() <= packet.len() {
                    SourceVerdict::Ask(question)
                } else {
                    SourceVerdict::Ignore
                }
            }
        }
    }

    fn accept_proof(&mut self, source: SocketAddr, transaction: Transaction, now: Instant) {
        let slot = self.slot(now);
        let proves = [Some(slot), slot.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|slot| bool::from(self.transaction(source, slot).ct_eq(&transaction)));
        if !proves || self.proved.contains_key(&source) {
            return;
        }
        while self.order.len() >= MAX_PROVED_SOURCES {
            if let Some((oldest, since)) = self.order.pop_front()
                && self.proved.get(&oldest) == Some(&since)
            {
                self.proved.remove(&oldest);
            }
        }
        self.proved.insert(source, now);
        self.order.push_back((source, now));
    }

    /// A transaction is valid for its slot of time and the next one.
    fn slot(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / PROOF_TIME.as_secs()
    }

    fn transaction(&self, source: SocketAddr, slot: u64) -> Transaction {
        let ip = match source.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let message = [&ip.octets()[..], &source.port().to_be_bytes(), &slot.to_be_bytes()].concat();
        let mut transaction = [0; TRANSACTION_BYTES];
        // The MAC is longer.
        for (byte, of_mac) in transaction.iter_mut().zip(hmac_sha1(self.key.as_slice(), &message)) {
            *byte = of_mac;
        }
        transaction
    }
}

/// The credentials of a client: the specification makes user name and password of both sides the same.
fn credentials_of(username: &str) -> Option<&str> {
    let (ours, theirs) = username.split_once(':')?;
    let valid = ours == theirs && ours.len() <= MAX_CREDENTIAL_CHARS && ours.starts_with(CREDENTIAL_PREFIX);
    let ice_char = |character: char| character.is_ascii_alphanumeric() || matches!(character, '+' | '/');
    (valid && ours.chars().all(ice_char)).then_some(ours)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::webrtc::stun::{response, shortest_request};

    const CREDENTIALS: &str = "libp2p+webrtc+v1/abcdefgh";

    fn source(number: usize) -> SocketAddr {
        let [.., high, low] = number.to_be_bytes();
        SocketAddr::from(([203, 0, high, low], 9))
    }

    fn check(username: &str, password: &str) -> Vec<u8> {
        request([1; 12], username, password)
    }

    fn own_check() -> Vec<u8> {
        check(&format!("{CREDENTIALS}:{CREDENTIALS}"), CREDENTIALS)
    }

    /// The transaction of the packet that asks a source.
    fn asked(proofs: &mut SourceProofs, source: SocketAddr, now: Instant) -> Transaction {
        let packet = own_check();
        let SourceVerdict::Ask(packet) = proofs.judge(source, &packet, now) else {
            panic!("the source is asked")
        };
        let message = StunMessage::parse(&packet).unwrap();
        assert!(message.is_signed_with(CREDENTIALS), "a browser answers nothing unsigned");
        message.transaction
    }

    fn answer(proofs: &mut SourceProofs, source: SocketAddr, transaction: Transaction, now: Instant) {
        let packet = response(transaction, source, CREDENTIALS);
        assert_eq!(proofs.judge(source, &packet, now), SourceVerdict::Ignore);
    }

    #[test]
    fn a_source_begins_only_after_its_answer_and_once() {
        let now = Instant::now();
        let mut proofs = SourceProofs::new(Zeroizing::new([1; 32]), now);
        let transaction = asked(&mut proofs, source(1), now);
        assert!(proofs.proved.is_empty() && proofs.order.is_empty(), "a request leaves nothing behind");
        answer(&mut proofs, source(2), transaction, now);
        assert!(proofs.proved.is_empty(), "the answer came from another address");
        answer(&mut proofs, source(1), [0; 12], now);
        assert!(proofs.proved.is_empty(), "a guessed answer");
        answer(&mut proofs, source(1), transaction, now);
        let packet = own_check();
        assert_eq!(proofs.judge(source(1), &packet, now), SourceVerdict::Begin(CREDENTIALS));
        assert!(matches!(proofs.judge(source(1), &packet, now), SourceVerdict::Ask(_)));
    }

    #[test]
    fn a_question_shorter_than_its_answer_gets_none() {
        let now = Instant::now();
        let mut proofs = SourceProofs::new(Zeroizing::new([1; 32]), now);
        let username = format!("{CREDENTIALS}:{CREDENTIALS}");
        let short = shortest_request([1; 12], &username, CREDENTIALS);
        assert!(StunMessage::parse(&short).unwrap().is_signed_with(CREDENTIALS));
        assert_eq!(proofs.judge(source(1), &short, now), SourceVerdict::Ignore);
        let usual = own_check();
        let SourceVerdict::Ask(question) = proofs.judge(source(1), &usual, now) else {
            panic!("the source is asked")
        };
        assert!(question.len() <= usual.len(), "no amplification");
    }

    #[test]
    fn proofs_expire() {
        let now = Instant::now();
        let mut proofs = SourceProofs::new(Zeroizing::new([1; 32]), now);
        let transaction = asked(&mut proofs, source(1), now);
        answer(&mut proofs, source(1), transaction, now + 2 * PROOF_TIME);
        assert!(proofs.proved.is_empty(), "the answer came too late");
        answer(&mut proofs, source(1), transaction, now + PROOF_TIME);
        let packet = own_check();
        let late = now + 2 * PROOF_TIME;
        assert!(
            matches!(proofs.judge(source(1), &packet, late), SourceVerdict::Ask(_)),
            "it went on too late"
        );
    }

    #[test]
    fn wrong_credentials_get_no_answer() {
        let now = Instant::now();
        let mut proofs = SourceProofs::new(Zeroizing::new([1; 32]), now);
        let long = format!("{CREDENTIAL_PREFIX}{}", "a".repeat(MAX_CREDENTIAL_CHARS));
        for (username, password) in [
            (format!("{CREDENTIALS}:{CREDENTIALS}"), "another"),
            (CREDENTIALS.to_owned(), CREDENTIALS),
            (format!("{CREDENTIALS}:{CREDENTIALS}x"), CREDENTIALS),
            ("abcd:abcd".to_owned(), "abcd"),
            (format!("{long}:{long}"), long.as_str()),
            (format!("{CREDENTIAL_PREFIX}-:{CREDENTIAL_PREFIX}-"), "libp2p+webrtc+v1/-"),
        ] {
            let packet = check(&username, password);
            assert_eq!(proofs.judge(source(1), &packet, now), SourceVerdict::Ignore, "{username}");
        }
        assert_eq!(proofs.judge(source(1), b"no STUN", now), SourceVerdict::Ignore);
    }

    #[test]
    fn proved_sources_are_bounded_and_the_oldest_goes_first() {
        let now = Instant::now();
        let mut proofs = SourceProofs::new(Zeroizing::new([1; 32]), now);
        for number in 0..3 * MAX_PROVED_SOURCES {
            let now = now + Duration::from_micros(number as u64);
            let transaction = asked(&mut proofs, source(number), now);
            answer(&mut proofs, source(number), transaction, now);
        }
        assert!(proofs.proved.len() == MAX_PROVED_SOURCES && proofs.order.len() == MAX_PROVED_SOURCES);
        let packet = own_check();
        let now = now + Duration::from_secs(1);
        assert!(matches!(proofs.judge(source(0), &packet, now), SourceVerdict::Ask(_)));
        assert_eq!(
            proofs.judge(source(3 * MAX_PROVED_SOURCES - 1), &packet, now),
            SourceVerdict::Begin(CREDENTIALS)
        );
    }
}
