//! Gossip of node records: how every member hears of every other one within seconds, and of who fell silent.
//!
//! One topic. Messages are signed by libp2p's key of their author (strict), carry one node record of that very author, and
//! are passed on only after it has been verified. Senders of others are scored down by gossipsub until nobody
//! listens to them.

use std::collections::{HashMap, HashSet};

use baton_proto::{Signed, ids::NodeId, node_record::NodeRecord};
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
    limits::{MAX_GOSSIP_BYTES, MIN_GOSSIP_INTERVAL},
    records::check_node,
};

pub(crate) type Behaviour = gossipsub::Behaviour<gossipsub::IdentityTransform, WhitelistSubscriptionFilter>;

/// Prefix of the gossip protocol's name.
const PROTOCOL_PREFIX: &str = "/baton/gossip";
/// Authors whose last message is remembered for its time.
const MAX_AUTHORS: usize = 4096;

/// The topic of node records.
pub(crate) fn topic() -> IdentTopic {
    IdentTopic::new("/baton/nodes/1")
}

/// Gossip with that one topic, subscribed.
pub(crate) fn behaviour(keypair: &Keypair) -> Result<Behaviour, MeshError> {
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
    // Quiet members are no bad ones, so nothing is expected of a peer; what it must not do is send what does not verify.
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
        ..PeerScoreParams::default()
    }
}

/// What becomes of a message.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It holds; whether it is also news is the table's to say.
    Holds(Box<Signed<NodeRecord>>),
    /// Not passed on, and nobody's fault.
    Ignore,
    /// Whoever passed it on did not check it.
    Reject,
}

/// Judges messages.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    last: HashMap<NodeId, Instant>,
}

impl Judge {
    /// Judges a message of an author whose signature gossipsub has checked.
    pub(crate) fn judge(
        &mut self,
        author: Option<PeerId>,
        data: &[u8],
        now: Instant,
        now_ms: u64,
    ) -> Verdict {
        let Some(author) = author.as_ref().and_then(node_id_of) else { return Verdict::Reject };
        if self.last.get(&author).is_some_and(|last| now.duration_since(*last) < MIN_GOSSIP_INTERVAL) {
            return Verdict::Ignore;
        }
        let record = match check_node(data, now_ms) {
            Ok(record) => record,
            // Clocks differ, and messages take their time.
            Err(crate::records::RecordFault::Time) => return Verdict::Ignore,
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
        Verdict::Holds(Box::new(record))
    }
}

#[cfg(test)]
mod tests {
    use baton_keys::sign::SecretSigningKey;

    use super::*;
    use crate::{ids::peer_id_of, records::tests::node_record};

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn only_an_authors_own_valid_record_is_passed_on() {
        let (key, other) = (SecretSigningKey::generate(), SecretSigningKey::generate());
        let (author, stranger) = (peer_id_of(key.node_id()), peer_id_of(other.node_id()));
        let data = node_record(&key, NOW, &[]).encode();
        let now = Instant::now();
        let judge = |author, data: &[u8], now_ms| Judge::default().judge(author, data, now, now_ms);
        assert!(matches!(judge(author, &data, NOW), Verdict::Holds(record) if record.sequence == NOW));
        assert!(matches!(judge(stranger, &data, NOW), Verdict::Reject), "another's record");
        assert!(matches!(judge(None, &data, NOW), Verdict::Reject), "nobody's");
        assert!(matches!(judge(author, b"garbage", NOW), Verdict::Reject));
        assert!(matches!(judge(author, &data, NOW + 3_600_000), Verdict::Ignore), "out of date");
    }

    #[test]
    fn an_author_is_heard_so_often_and_no_more() {
        let key = SecretSigningKey::generate();
        let author = peer_id_of(key.node_id());
        let mut judge = Judge::default();
        let start = Instant::now();
        let mut heard = 0;
        for step in 0..100_u64 {
            let data = node_record(&key, NOW + step, &[]).encode();
            let now = start + MIN_GOSSIP_INTERVAL / 10 * u32::try_from(step).unwrap();
            heard += usize::from(matches!(judge.judge(author, &data, now, NOW + step), Verdict::Holds(_)));
        }
        assert_eq!(heard, 10);
    }
}
