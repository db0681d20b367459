//! The admissible contents of the DHT: signed node and head records, each under the key that it determines.
//!
//! Pure: the caller passes in the time.

use baton_proto::{
    ErrorCode, SignedObject,
    head::HeadRecord,
    ids::{HeadIndexKey, NodeId},
    limits::{MAX_CLOCK_SKEW_MS, MAX_HEAD_BYTES, MAX_SIGNED_BYTES, VERSION},
    node_record::NodeRecord,
};
use libp2p::kad::RecordKey;

use crate::limits::{HEAD_STAY_MS, NODE_RECORD_AGE_MS};

const NODE: &[u8] = b"/baton/node/";
const HEAD: &[u8] = b"/baton/head/";
const MODEL: &[u8] = b"/baton/model/";

/// Longest model name in a provider key, equal to the limit on a node record's texts.
const MAX_MODEL_BYTES: usize = baton_proto::limits::MAX_RECORD_TEXT_BYTES;

/// How far a client's clock may be ahead of this one.
const HEAD_SKEW_MS: u64 = 24 * 3600 * 1000;

/// The parsed meaning of a DHT key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DhtKey {
    /// A node's record.
    Node(NodeId),
    /// A session's head record.
    Head(HeadIndexKey),
    /// Nodes that serve a model, by its name or the hex of its ID. It holds providers only, no record.
    Model(String),
}

impl DhtKey {
    /// Parses a key; `None` for an unknown one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if let Some(rest) = bytes.strip_prefix(NODE) {
            return Some(Self::Node(NodeId(rest.try_into().ok()?)));
        }
        if let Some(rest) = bytes.strip_prefix(HEAD) {
            return Some(Self::Head(HeadIndexKey(rest.try_into().ok()?)));
        }
        let name = std::str::from_utf8(bytes.strip_prefix(MODEL)?).ok()?;
        (!name.is_empty() && name.len() <= MAX_MODEL_BYTES).then(|| Self::Model(name.to_owned()))
    }

    pub(crate) fn to_record_key(&self) -> RecordKey {
        let bytes = match self {
            Self::Node(node) => [NODE, node.as_bytes()].concat(),
            Self::Head(key) => [HEAD, key.as_bytes()].concat(),
            Self::Model(name) => [MODEL, name.as_bytes()].concat(),
        };
        RecordKey::from(bytes)
    }
}

/// The fields that decide between two records under one key, and how long one is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordSummary {
    /// The higher sequence wins.
    pub(crate) sequence: u64,
    /// When its storage ends, in milliseconds since the Unix epoch; never after its own expiry.
    pub(crate) expires_ms: u64,
}

/// Why a record is not stored or trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordFault {
    #[error("the key is none of this network")]
    UnknownKey,
    #[error("it is longer than such a record may be")]
    TooLarge,
    #[error("it does not verify: {0}")]
    Invalid(ErrorCode),
    #[error("it belongs under another key")]
    WrongKey,
    #[error("it is out of date, or from the future")]
    Time,
}

impl From<ErrorCode> for RecordFault {
    fn from(code: ErrorCode) -> Self {
        Self::Invalid(code)
    }
}

/// Checks a record that a peer sends under a key: size first, the signature last.
pub(crate) fn check(key: &[u8], value: &[u8], now_ms: u64) -> Result<RecordSummary, RecordFault> {
    match DhtKey::parse(key) {
        Some(DhtKey::Node(node)) => {
            let record = check_node(value, now_ms)?;
            if record.node != node {
                return Err(RecordFault::WrongKey);
            }
            // Without this cap, its owner could make all members store it for ever.
            let oldest = record.issued_ms.saturating_add(NODE_RECORD_AGE_MS);
            let expires_ms = record.expires_ms.min(oldest);
            if expires_ms <= now_ms {
                return Err(RecordFault::Time);
            }
            Ok(RecordSummary { sequence: record.sequence, expires_ms })
        }
        Some(DhtKey::Head(key)) => {
            if value.len() > MAX_HEAD_BYTES {
                return Err(RecordFault::TooLarge);
            }
            let record = SignedObject::<HeadRecord>::verify_encoded(value)?;
            if record.index_key() != key {
                return Err(RecordFault::WrongKey);
            }
            // Only its owner can sign under its key, so the owner's fast clock harms no other client.
            if record.expires_ms <= now_ms || record.issued_ms > now_ms.saturating_add(HEAD_SKEW_MS) {
                return Err(RecordFault::Time);
            }
            let expires_ms = record.expires_ms.min(now_ms.saturating_add(HEAD_STAY_MS));
            Ok(RecordSummary { sequence: record.sequence, expires_ms })
        }
        Some(DhtKey::Model(_)) | None => Err(RecordFault::UnknownKey),
    }
}

/// Checks a node record from any source.
pub(crate) fn check_node(value: &[u8], now_ms: u64) -> Result<SignedObject<NodeRecord>, RecordFault> {
    if value.len() > MAX_SIGNED_BYTES {
        return Err(RecordFault::TooLarge);
    }
    let record = SignedObject::<NodeRecord>::verify_encoded(value)?;
    let future = now_ms.saturating_add(MAX_CLOCK_SKEW_MS);
    // Sequences follow the time, so a thief of a key cannot occupy it for ever with the highest number.
    if record.expires_ms <= now_ms || record.issued_ms > future || record.sequence > future {
        return Err(RecordFault::Time);
    }
    if !record.versions.contains(&VERSION) {
        return Err(ErrorCode::UnsupportedVersion.into());
    }
    Ok(record)
}

#[cfg(test)]
#[path = "../tests/mesh/fixtures.rs"]
mod fixtures;

#[cfg(test)]
pub(crate) mod tests {
    use baton_keys::{session::SessionRoot, sign::SecretSigningKey};

    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    pub(crate) fn node_record(
        key: &SecretSigningKey,
        sequence: u64,
        addresses: &[&str],
    ) -> SignedObject<NodeRecord> {
        SignedObject::sign(fixtures::node_record(key, sequence, addresses), key)
    }

    fn head(root: &SessionRoot, sequence: u64) -> (DhtKey, Vec<u8>) {
        head_for(root, sequence, 1000)
    }

    fn head_for(root: &SessionRoot, sequence: u64, lifetime_ms: u64) -> (DhtKey, Vec<u8>) {
        let record = fixtures::head(root, sequence, lifetime_ms);
        (DhtKey::Head(record.index_key()), record.encode())
    }

    fn checked(key: &DhtKey, value: &[u8], now_ms: u64) -> Result<u64, RecordFault> {
        check(key.to_record_key().as_ref(), value, now_ms).map(|summary| summary.sequence)
    }

    #[test]
    fn keys_go_through_bytes_and_back() {
        let keys = [
            DhtKey::Node(NodeId([7; 32])),
            DhtKey::Head(HeadIndexKey([8; 32])),
            DhtKey::Model("smollm2-135m-instruct".to_owned()),
        ];
        for key in keys {
            assert_eq!(DhtKey::parse(key.to_record_key().as_ref()), Some(key));
        }
        let long = [MODEL, &[b'a'; MAX_MODEL_BYTES + 1]].concat();
        for other in [b"".as_slice(), b"/baton/node/short", b"/baton/model/", b"/pk/something", &long] {
            assert_eq!(DhtKey::parse(other), None);
        }
    }

    #[test]
    fn a_node_record_is_stored_under_its_own_key_only() {
        let (key, other) = (SecretSigningKey::generate(), SecretSigningKey::generate());
        let value = node_record(&key, NOW, &[]).encode();
        assert_eq!(checked(&DhtKey::Node(key.node_id()), &value, NOW), Ok(NOW));
        assert_eq!(checked(&DhtKey::Node(other.node_id()), &value, NOW), Err(RecordFault::WrongKey));
        let head = DhtKey::Head(HeadIndexKey([1; 32]));
        assert!(matches!(checked(&head, &value, NOW), Err(RecordFault::Invalid(_))));
        assert_eq!(checked(&DhtKey::Model("m".to_owned()), &value, NOW), Err(RecordFault::UnknownKey));
    }

    #[test]
    fn every_changed_byte_of_a_record_is_refused() {
        let key = SecretSigningKey::generate();
        let value = node_record(&key, NOW, &["/ip4/1.2.3.4/tcp/1"]).encode();
        for index in 0..value.len() {
            let mut bad = value.clone();
            bad[index] ^= 1;
            assert!(checked(&DhtKey::Node(key.node_id()), &bad, NOW).is_err(), "byte {index}");
        }
        let root = SessionRoot::generate();
        let (key, value) = head(&root, NOW);
        assert_eq!(checked(&key, &value, NOW), Ok(NOW));
        for index in 0..value.len() {
            let mut bad = value.clone();
            bad[index] ^= 1;
            assert!(checked(&key, &bad, NOW).is_err(), "byte {index}");
        }
    }

    #[test]
    fn records_out_of_their_time_or_too_large_are_refused() {
        let key = SecretSigningKey::generate();
        let dht_key = DhtKey::Node(key.node_id());
        let value = node_record(&key, NOW, &[]).encode();
        assert_eq!(checked(&dht_key, &value, NOW + 3_600_000), Err(RecordFault::Time), "expired");
        assert_eq!(checked(&dht_key, &value, NOW - 60_000), Err(RecordFault::Time), "from the future");
        assert_eq!(checked(&dht_key, &vec![0; MAX_SIGNED_BYTES + 1], NOW), Err(RecordFault::TooLarge));
        let root = SessionRoot::generate();
        let (dht_key, value) = head(&root, NOW);
        assert_eq!(checked(&dht_key, &value, NOW + 1000), Err(RecordFault::Time), "expired");
        assert_eq!(
            checked(&dht_key, &value, NOW - 2 * HEAD_SKEW_MS),
            Err(RecordFault::Time),
            "from the future"
        );
        assert_eq!(checked(&dht_key, &vec![0; MAX_HEAD_BYTES + 1], NOW), Err(RecordFault::TooLarge));
    }

    #[test]
    fn records_are_stored_no_longer_than_is_decided_here() {
        let expires = |key: &DhtKey, value: &[u8], now_ms| {
            check(key.to_record_key().as_ref(), value, now_ms).map(|summary| summary.expires_ms)
        };
        let key = SecretSigningKey::generate();
        let dht_key = DhtKey::Node(key.node_id());
        let for_ever = NodeRecord { expires_ms: u64::MAX, ..(*node_record(&key, NOW, &[])).clone() };
        let value = SignedObject::sign(for_ever, &key).encode();
        let until = NOW + NODE_RECORD_AGE_MS;
        assert_eq!(expires(&dht_key, &value, NOW), Ok(until));
        assert_eq!(expires(&dht_key, &value, until - 1), Ok(until));
        assert_eq!(expires(&dht_key, &value, until), Err(RecordFault::Time));
        let (dht_key, value) = head_for(&SessionRoot::generate(), NOW, 10 * HEAD_STAY_MS);
        assert_eq!(expires(&dht_key, &value, NOW), Ok(NOW + HEAD_STAY_MS));
        let late = NOW + 10 * HEAD_STAY_MS - 1;
        assert_eq!(expires(&dht_key, &value, late), Ok(late + 1), "nor longer than it holds");
    }
}
