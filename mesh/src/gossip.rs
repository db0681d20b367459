//! Gossip of node records: within seconds, each member hears of every other member and of members that went
//! silent.
//!
//! There is one topic. libp2p's key of the author signs each message (strict mode), and the message carries
//! one node record of that author. A member passes it on only after verifying it. Gossipsub lowers the score
//! of peers that send anything else, until other peers ignore them.

use std::collections::{HashMap, HashSet};

use baton_limits::{Buckets, Subnet};
use baton_proto::{SignedObject, ids::NodeId, node_record::NodeRecord};
use libp2p::{
    PeerId,
    gossipsub::{
        self, IdentTopic, MessageAuthenticity, PeerScoreParams, PeerScoreThresholds, TopicScoreParams,
        ValidationMode, WhitelistSubscriptionFilter,
    },
    identity::Keypair,
};
use tokio::time::Instant;

use crate::{
    error::MeshError,
    ids::node_id_of,
    limits::{
        GOSSIP_SCORE_RETENTION, GOSSIP_UNKNOWN_AUTHORS_OF_SUBNET, MAX_GOSSIP_BYTES, MIN_GOSSIP_INTERVAL,
    },
    records::check_node,
};

pub(crate) type GossipBehaviour =
    gossipsub::Behaviour<gossipsub::IdentityTransform, WhitelistSubscriptionFilter>;

/// Prefix of the gossip protocol's name.
const PROTOCOL_PREFIX: &str = "/baton/gossip";
/// Authors whose last message time is remembered.
const MAX_AUTHORS: usize = 4096;

/// The topic of node records.
pub(crate) fn topic() -> IdentTopic {
    IdentTopic::new("/baton/nodes/1")
}

/// Gossip with that topic, subscribed.
pub(crate) fn behaviour(keypair: &Keypair) -> Result<GossipBehaviour, MeshError> {
    let failed = |error: String| MeshError::Config(format!("gossip: {error}"));
    let config = gossipsub::ConfigBuilder::default()
        .protocol_id_prefix(PROTOCOL_PREFIX)
        .validation_mode(ValidationMode::Strict)
        .validate_messages()
        .max_transmit_size(MAX_GOSSIP_BYTES)
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let filter = WhitelistSubscriptionFilter(HashSet::from([topic().hash()]));
    let authenticity = MessageAuthenticity::Signed(keypair.clone());
    let mut gossip = gossipsub::Behaviour::new_with_subscription_filter(authenticity, config, filter)
        .map_err(|error| failed(error.to_owned()))?;
    gossip.with_peer_score(scores(), PeerScoreThresholds::default()).map_err(failed)?;
    gossip.subscribe(&topic()).map_err(|error| failed(error.to_string()))?;
    Ok(gossip)
}

fn scores() -> PeerScoreParams {
    // Quiet members are not bad members, so no deliveries are required. Only messages that fail verification
    // cost score.
    let topic_scores = TopicScoreParams {
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -10.0,
        ..TopicScoreParams::default()
    };
    let loopback = ["127.0.0.1", "::1"].into_iter().filter_map(|ip| ip.parse().ok());
    PeerScoreParams {
        topics: HashMap::from([(topic().hash(), topic_scores)]),
        ip_colocation_factor_whitelist: loopback.collect(),
        retain_score: GOSSIP_SCORE_RETENTION,
        ..PeerScoreParams::default()
    }
}

/// The decision about a message.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Valid; the peer table decides whether it is also new.
    Valid(Box<SignedObject<NodeRecord>>),
    /// Dropped without blame: its author sent one a moment ago, or the forwarder brought too many from
    /// unknown authors.
    TooOften,
    /// Expired, or from the future. Dropped without blame, since clocks differ and messages take time.
    OutOfTime,
    /// Invalid: the forwarder passed it on unchecked.
    Reject,
}

/// A message, as it arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// The signer; gossipsub has checked the signature.
    pub(crate) author: Option<PeerId>,
    /// The subnet that counts the neighbour that passed it on, if any.
    pub(crate) subnet: Option<Subnet>,
    /// The node record.
    pub(crate) data: &'a [u8],
}

/// Validates gossip messages.
#[derive(Debug)]
pub(crate) struct GossipValidator {
    last: HashMap<NodeId, Instant>,
    subnets: Buckets<Subnet>,
}

impl Default for GossipValidator {
    fn default() -> Self {
        Self { last: HashMap::new(), subnets: Buckets::new(GOSSIP_UNKNOWN_AUTHORS_OF_SUBNET) }
    }
}

impl GossipValidator {
    /// Validates a message; `known` tells whether its author is in the peer table. The signature is verified
    /// last.
    pub(crate) fn validate(
        &mut self,
        message: Message<'_>,
        known: impl Fn(&NodeId) -> bool,
        now: Instant,
        now_ms: u64,
    ) -> Verdict {
        let Message { author, subnet, data } = message;
        let Some(author) = author.as_ref().and_then(node_id_of) else { return Verdict::Reject };
        if self.last.get(&author).is_some_and(|last| now.duration_since(*last) < MIN_GOSSIP_INTERVAL) {
            return Verdict::TooOften;
        }
        // Identities are free: without this limit, one connection could bring any number of new authors.
        if !known(&author) && subnet.is_some_and(|subnet| self.subnets.take(subnet, now_ms).is_err()) {
            return Verdict::TooOften;
        }
        let record = match check_node(data, now_ms) {
            Ok(record) => record,
            Err(crate::records::RecordFault::Time) => return Verdict::OutOfTime,
            Err(_) => return Verdict::Reject,
        };
        if record.node != author {
            return Verdict::Reject;
        }
        if self.last.len() >= MAX_AUTHORS {
            self.last.retain(|_, last| now.duration_since(*last) < MIN_GOSSIP_INTERVAL);
        }
        if self.last.len() < MAX_AUTHORS {
            self.last.insert(author, now);
        }
        Verdict::Valid(Box::new(record))
    }
}

#[cfg(test)]
mod tests {
    use baton_keys::sign::SecretSigningKey;

    use super::*;
    use crate::{ids::peer_id_of, records::tests::node_record};

    const NOW: u64 = 1_800_000_000_000;

    fn message(author: Option<PeerId>, data: &[u8]) -> Message<'_> {
        Message { author, subnet: None, data }
    }

    #[test]
    fn a_subnet_brings_so_many_fresh_authors_and_no_more_are_verified() {
        let (mut validator, now) = (GossipValidator::default(), Instant::now());
        let mut verified = |third, known: bool, now_ms| {
            let author = peer_id_of(SecretSigningKey::generate().node_id());
            // Verification would refuse it.
            let message = Message { author, subnet: Some(Subnet::V4([203, 0, third])), data: b"garbage" };
            matches!(validator.validate(message, |_| known, now, now_ms), Verdict::Reject)
        };
        let mut count = |third, known, now_ms| (0..300).filter(|_| verified(third, known, now_ms)).count();
        assert_eq!(count(113, false, NOW), 240);
        assert_eq!(count(114, false, NOW), 240, "another has a bucket of its own");
        assert_eq!(count(113, true, NOW), 300, "known authors are not counted");
        assert_eq!(count(113, false, NOW + 10_000), 40);
    }

    #[test]
    fn only_an_authors_own_valid_record_is_passed_on() {
        let (key, other) = (SecretSigningKey::generate(), SecretSigningKey::generate());
        let (author, unknown) = (peer_id_of(key.node_id()), peer_id_of(other.node_id()));
        let data = node_record(&key, NOW, &[]).encode();
        let now = Instant::now();
        let verdict = |author, data: &[u8], now_ms| {
            GossipValidator::default().validate(message(author, data), |_| false, now, now_ms)
        };
        assert!(matches!(verdict(author, &data, NOW), Verdict::Valid(record) if record.sequence == NOW));
        assert!(matches!(verdict(unknown, &data, NOW), Verdict::Reject), "another's record");
        assert!(matches!(verdict(None, &data, NOW), Verdict::Reject), "nobody's");
        assert!(matches!(verdict(author, b"garbage", NOW), Verdict::Reject));
        assert!(matches!(verdict(author, &data, NOW + 3_600_000), Verdict::OutOfTime));
    }

    #[test]
    fn an_author_is_heard_so_often_and_no_more() {
        let key = SecretSigningKey::generate();
        let author = peer_id_of(key.node_id());
        let mut validator = GossipValidator::default();
        let start = Instant::now();
        let (mut heard, mut too_often) = (0, 0);
        for step in 0..100_u64 {
            let data = node_record(&key, NOW + step, &[]).encode();
            let now = start + MIN_GOSSIP_INTERVAL / 10 * u32::try_from(step).unwrap();
            match validator.validate(message(author, &data), |_| true, now, NOW + step) {
                Verdict::Valid(_) => heard += 1,
                Verdict::TooOften => too_often += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((heard, too_often), (10, 90));
    }
}
