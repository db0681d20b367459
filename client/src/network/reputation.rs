//! This client's own experience with nodes: turns whose receipts it verified, their speed, and failures by
//! name. Pure: the clock is a parameter, and [`mod@file`] has the file.
//!
//! No claim of a node or other party enters. Everything decays: a bad node is tried again, and a good one
//! must prove itself again. A detected lie counts for a day. Two signed links for one turn, and an answer that
//! other nodes contradict, count for 30 days.
//! The table is bounded and names no session: it knows sessions only by keyed tags.

pub(crate) mod file;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ids::{ModelId, NodeId};
use serde::{Deserialize, Serialize};

use crate::network::choose::{Evidence, Speed};

/// Most nodes to keep, ask and remember: far more than one turn needs, and a bound on the memory that unknown
/// peers can use.
pub(crate) const MAX_NODES: usize = 256;
/// Half-life of served turns, failures and measured speeds.
const HALF_LIFE_MS: u64 = 6 * HOUR_MS;
/// Half-life of busy answers: queues move with every turn.
const BUSY_HALF_LIFE_MS: u64 = 30 * 1000;
/// How long a node with a detected lie is avoided.
const LIED_MS: u64 = 24 * HOUR_MS;
/// How long a node that signed two different links for one turn is avoided: that is no accident, and it is
/// proven. The same holds for an answer that other nodes contradict.
const EQUIVOCATED_MS: u64 = 30 * LIED_MS;
/// First pause of a node that stalled in the middle of an answer; doubled by each further stall that has not
/// decayed.
const STALL_PAUSE_MS: u64 = 60 * 1000;
/// Longest pause of a node that stalls.
const MAX_STALL_PAUSE_MS: u64 = HOUR_MS;
/// First pause of a busy node; doubled by each further busy answer until it serves.
const BUSY_PAUSE_MS: u64 = 1000;
/// First pause after any other failure; doubled in the same way.
const PAUSE_MS: u64 = 5000;
/// Longest pause of a node that neither stalled nor lied, whatever it asks for.
const MAX_PAUSE_MS: u64 = 120 * 1000;
/// Turns and failures beyond which older ones count less: recent behaviour shows within this many.
const MAX_COUNT: f64 = 50.0;
/// Measured turns beyond which older ones count less.
const MAX_MEASURED: f64 = 20.0;
/// No engine writes faster; a higher measurement came in one piece.
const MAX_TOKENS_PER_SECOND: f64 = 10_000.0;
/// How long a node that served a session's last turn is assumed to have its prompt cached. Nodes keep prompts
/// until they need the memory; beyond some minutes that is a guess.
const WARM_MS: u64 = 10 * 60 * 1000;
/// Tags of sessions' last turns; when full, the oldest is removed, and its session's next turn prefers no
/// node.
const MAX_WARM: usize = 256;
/// Model names remembered for people; when full, no more are learned.
const MAX_MODEL_NAMES: usize = 64;
/// Longest remembered name of a model, in bytes.
const MAX_MODEL_NAME_BYTES: usize = 128;

const HOUR_MS: u64 = 60 * 60 * 1000;

/// How a node failed, as far as the client can tell. Each fault has its own consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeFailure {
    /// It could not be reached.
    Unreachable,
    /// The reply ended early.
    CutOff,
    /// The reply stopped, but stayed open.
    Stalled,
    /// It reported that it is busy.
    Busy,
    /// It refused, or reported a failure.
    Refused,
    /// It sent or signed an untruth. Cases:
    /// - a link, receipt, note or blob that did not verify;
    /// - tokens that it repeated, or that were not requested;
    /// - frames without meaning.
    Lied,
    /// Another party may be at fault: the network, a relayer, or this machine.
    Unclear,
    /// It signed two different links for one turn.
    Equivocated,
    /// It signed an answer, or a verdict on one, that at least two other nodes contradict.
    Contradicted,
}

impl NodeFailure {
    /// Its name for people and machines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::CutOff => "cut-off",
            Self::Stalled => "stalled",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Lied => "lied",
            Self::Unclear => "unclear",
            Self::Equivocated => "equivocated",
            Self::Contradicted => "contradicted",
        }
    }

    /// Its weight as a failure; a served turn counts one.
    fn weight(self) -> f64 {
        match self {
            Self::Unreachable | Self::CutOff => 1.0,
            Self::Stalled => 2.0,
            Self::Lied | Self::Equivocated | Self::Contradicted => 4.0,
            // The turn itself may be at fault.
            Self::Refused => 0.5,
            // Load accounts for these.
            Self::Busy | Self::Unclear => 0.0,
        }
    }

    /// Whether this client can prove it to others.
    fn is_provable(self) -> bool {
        matches!(self, Self::Equivocated | Self::Contradicted)
    }
}

/// Speed of an answer, by this client's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SpeedSample {
    /// From the sending of the turn to the first text.
    pub(crate) first_token: Option<Duration>,
    /// Tokens a second after that, with four bytes of text per token; none for a short answer. The answer is
    /// accepted by its text; ids that a node reports beside it would cost it nothing.
    pub(crate) tokens_per_second: Option<f64>,
}

/// The experience with one node. Counts are as of `at_ms`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct NodeExperience {
    /// When this was last changed, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    served: f64,
    failed: f64,
    busy: f64,
    /// Answers that stalled.
    stalls: f64,
    /// Failures since the last turn served.
    strikes: u32,
    paused_until_ms: u64,
    lied_until_ms: u64,
    /// Its last failure.
    pub(crate) last_fault: Option<NodeFailure>,
    measured: f64,
    first_token_ms: f64,
    rated: f64,
    tokens_per_second: f64,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Reputation {
    nodes: BTreeMap<NodeId, NodeExperience>,
    /// Expiry of each tag of a session, node and link, in milliseconds since the Unix epoch.
    warm: BTreeMap<[u8; 32], u64>,
    /// Nodes' names of the models that served turns here.
    models: BTreeMap<ModelId, String>,
}

/// The rest of a count after some time.
fn decayed(count: f64, passed_ms: u64, half_life_ms: u64) -> f64 {
    count * (-(passed_ms as f64) / half_life_ms as f64).exp2()
}

/// Leaves at most this many entries of a map.
fn bound<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, most: usize) {
    if let Some(first_over) = map.keys().nth(most).cloned() {
        drop(map.split_off(&first_over));
    }
}

/// A mean over `count` values, with one more; the count is bounded, so that new values always matter.
fn averaged((mean, count): (f64, f64), value: f64) -> (f64, f64) {
    let count = count.min(MAX_MEASURED - 1.0);
    ((mean * count + value) / (count + 1.0), count + 1.0)
}

impl NodeExperience {
    /// Decays the counts to now.
    fn decay(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms);
        for count in
            [&mut self.served, &mut self.failed, &mut self.stalls, &mut self.measured, &mut self.rated]
        {
            *count = decayed(*count, passed, HALF_LIFE_MS);
        }
        self.busy = decayed(self.busy, passed, BUSY_HALF_LIFE_MS);
        self.at_ms = now_ms;
    }

    fn serve(&mut self, measured: Option<SpeedSample>, now_ms: u64) {
        self.decay(now_ms);
        self.served = (self.served + 1.0).min(MAX_COUNT);
        // Serving ends a pause at once, but not the consequences of a lie.
        self.strikes = 0;
        self.paused_until_ms = 0;
        let Some(measured) = measured else { return };
        if let Some(first) = measured.first_token {
            let first_ms = first.as_secs_f64() * 1000.0;
            (self.first_token_ms, self.measured) = averaged((self.first_token_ms, self.measured), first_ms);
        }
        if let Some(rate) = measured.tokens_per_second {
            let rate = rate.clamp(0.0, MAX_TOKENS_PER_SECOND);
            (self.tokens_per_second, self.rated) = averaged((self.tokens_per_second, self.rated), rate);
        }
    }

    fn fail(&mut self, fault: NodeFailure, asked_ms: u64, now_ms: u64) {
        self.decay(now_ms);
        self.failed = (self.failed + fault.weight()).min(MAX_COUNT);
        // A later failure does not hide a proven one.
        if !self.is_proved(now_ms) {
            self.last_fault = Some(fault);
        }
        let doubled = |first: u64, times: u32, most: u64| (first << times.min(16)).min(most);
        let pause = match fault {
            NodeFailure::Lied => {
                self.lied_until_ms = self.lied_until_ms.max(now_ms.saturating_add(LIED_MS));
                0
            }
            NodeFailure::Equivocated | NodeFailure::Contradicted => {
                self.lied_until_ms = now_ms.saturating_add(EQUIVOCATED_MS);
                0
            }
            NodeFailure::Stalled => {
                self.stalls += 1.0;
                // Rounded: a stall that just happened counts whole.
                let before = (1..=6).filter(|times| self.stalls > f64::from(*times) + 0.5).count();
                let before = u32::try_from(before).unwrap_or(6);
                doubled(STALL_PAUSE_MS, before, MAX_STALL_PAUSE_MS)
            }
            NodeFailure::Busy => {
                self.busy += 1.0;
                doubled(BUSY_PAUSE_MS, self.strikes, MAX_PAUSE_MS).max(asked_ms).min(MAX_PAUSE_MS)
            }
            NodeFailure::Unreachable | NodeFailure::CutOff | NodeFailure::Refused | NodeFailure::Unclear => {
                doubled(PAUSE_MS, self.strikes, MAX_PAUSE_MS).max(asked_ms).min(MAX_PAUSE_MS)
            }
        };
        self.strikes = self.strikes.saturating_add(1);
        self.paused_until_ms = self.paused_until_ms.max(now_ms.saturating_add(pause));
    }

    /// The view of the choice.
    fn evidence(&self, now_ms: u64) -> Evidence {
        let mut now = self.clone();
        now.decay(now_ms);
        // Below a hundredth of a turn it counts as never measured.
        let speed = (now.measured > 0.01).then_some(Speed {
            turns: now.measured,
            first_token_ms: now.first_token_ms,
            tokens_per_second: (now.rated > 0.01).then_some(now.tokens_per_second),
        });
        Evidence {
            served: now.served,
            failed: now.failed,
            busy: now.busy,
            speed,
            paused_until_ms: now.paused_until_ms,
            lied_until_ms: now.lied_until_ms,
        }
    }

    /// Makes an entry from a disk harmless: a clock that was wrong once must not ban any node for ever.
    fn tame(&mut self, now_ms: u64) {
        self.at_ms = self.at_ms.min(now_ms);
        self.paused_until_ms = self.paused_until_ms.min(now_ms.saturating_add(MAX_STALL_PAUSE_MS));
        let lied_ms =
            if self.last_fault.is_some_and(NodeFailure::is_provable) { EQUIVOCATED_MS } else { LIED_MS };
        self.lied_until_ms = self.lied_until_ms.min(now_ms.saturating_add(lied_ms));
        for (number, most) in [
            (&mut self.served, MAX_COUNT),
            (&mut self.failed, MAX_COUNT),
            (&mut self.busy, MAX_COUNT),
            (&mut self.stalls, MAX_COUNT),
            (&mut self.measured, MAX_MEASURED),
            (&mut self.rated, MAX_MEASURED),
            (&mut self.first_token_ms, HOUR_MS as f64),
            (&mut self.tokens_per_second, MAX_TOKENS_PER_SECOND),
        ] {
            *number = if number.is_finite() { number.clamp(0.0, most) } else { 0.0 };
        }
    }

    /// Whether it is avoided for a fault that the client can prove to others.
    fn is_proved(&self, now_ms: u64) -> bool {
        self.last_fault.is_some_and(NodeFailure::is_provable) && self.lied_until_ms > now_ms
    }

    /// Whether it still has any effect.
    fn tells(&self, now_ms: u64) -> bool {
        let evidence = self.evidence(now_ms);
        let avoided = evidence.lied_until_ms > now_ms || evidence.paused_until_ms > now_ms;
        avoided || evidence.served + evidence.failed > 0.01
    }
}

impl Reputation {
    /// Records a served turn with a verified receipt.
    pub(crate) fn served(&mut self, node: NodeId, measured: Option<SpeedSample>, now_ms: u64) {
        self.entry(node, now_ms).serve(measured, now_ms);
    }

    /// Records a failure; the node asked for a pause of `asked_ms`.
    pub(crate) fn failed(&mut self, node: NodeId, fault: NodeFailure, asked_ms: u64, now_ms: u64) {
        self.entry(node, now_ms).fail(fault, asked_ms, now_ms);
    }

    /// The experience with a node, as the choice sees it.
    pub(crate) fn evidence(&self, node: NodeId, now_ms: u64) -> Evidence {
        self.nodes.get(&node).map(|entry| entry.evidence(now_ms)).unwrap_or_default()
    }

    /// Its last failure.
    pub(crate) fn last_fault(&self, node: NodeId) -> Option<NodeFailure> {
        self.nodes.get(&node)?.last_fault
    }

    /// Records that the node of a tag is likely to have a session's prompt cached.
    pub(crate) fn note_warm(&mut self, tag: [u8; 32], now_ms: u64) {
        self.warm.retain(|_, until_ms| *until_ms > now_ms);
        self.warm.insert(tag, now_ms.saturating_add(WARM_MS));
        if self.warm.len() > MAX_WARM {
            let oldest = self.warm.iter().min_by_key(|(_, until_ms)| **until_ms).map(|(tag, _)| *tag);
            oldest.and_then(|tag| self.warm.remove(&tag));
        }
    }

    /// Whether that is still likely.
    pub(crate) fn is_warm(&self, tag: &[u8; 32], now_ms: u64) -> bool {
        self.warm.get(tag).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// Remembers the name of a model that served a turn, for people.
    pub(crate) fn note_model(&mut self, model: ModelId, name: &str) {
        let known = self.models.get(&model).is_some_and(|known| known == name);
        let fits = self.models.len() < MAX_MODEL_NAMES || self.models.contains_key(&model);
        let printable = !name.is_empty() && !name.chars().any(char::is_control);
        if !known && fits && printable && name.len() <= MAX_MODEL_NAME_BYTES {
            self.models.insert(model, name.to_owned());
        }
    }

    /// Whether a model of this name or id served a turn here.
    pub(crate) fn has_model(&self, name: &str) -> bool {
        self.models.iter().any(|(id, known)| known == name || id.to_string() == name)
    }

    /// The name of a model that served a turn here.
    pub(crate) fn model_name(&self, model: ModelId) -> Option<&str> {
        self.models.get(&model).map(String::as_str)
    }

    fn entry(&mut self, node: NodeId, now_ms: u64) -> &mut NodeExperience {
        if !self.nodes.contains_key(&node) && self.nodes.len() >= MAX_NODES {
            self.make_room(now_ms);
        }
        self.nodes.entry(node).or_default()
    }

    /// Removes the node with the oldest entry; a node that lied only if there is no other, or it could return
    /// by having others asked.
    fn make_room(&mut self, now_ms: u64) {
        let order = |entry: &NodeExperience| (entry.lied_until_ms > now_ms, entry.at_ms);
        let least = self.nodes.iter().min_by_key(|(_, entry)| order(entry)).map(|(node, _)| *node);
        least.and_then(|node| self.nodes.remove(&node));
    }

    /// Makes a table from a disk harmless, and keeps its bounds.
    fn tame(&mut self, now_ms: u64) {
        self.nodes.values_mut().for_each(|entry| entry.tame(now_ms));
        let latest_ms = now_ms.saturating_add(WARM_MS);
        self.warm.values_mut().for_each(|until_ms| *until_ms = latest_ms.min(*until_ms));
        bound(&mut self.nodes, MAX_NODES);
        bound(&mut self.warm, MAX_WARM);
        bound(&mut self.models, MAX_MODEL_NAMES);
    }

    /// Merges another process's table of the same home: of a node, the later entry and the longer avoidance.
    pub(crate) fn merge(&mut self, other: Self, now_ms: u64) {
        for (node, theirs) in other.nodes {
            let fits = self.nodes.len() < MAX_NODES;
            match self.nodes.get_mut(&node) {
                Some(ours) => {
                    let lied_until_ms = ours.lied_until_ms.max(theirs.lied_until_ms);
                    let proved = [&*ours, &theirs].into_iter().find(|entry| entry.is_proved(now_ms));
                    let proved = proved.and_then(|entry| entry.last_fault);
                    if theirs.at_ms > ours.at_ms {
                        *ours = theirs;
                    }
                    ours.lied_until_ms = lied_until_ms;
                    if proved.is_some() {
                        ours.last_fault = proved;
                    }
                }
                None if fits && theirs.tells(now_ms) => {
                    self.nodes.insert(node, theirs);
                }
                None => {}
            }
        }
        for (tag, until_ms) in other.warm {
            if self.warm.len() < MAX_WARM && until_ms > now_ms {
                self.warm.entry(tag).or_insert(until_ms);
            }
        }
        for (model, name) in other.models {
            if self.models.len() < MAX_MODEL_NAMES {
                self.models.entry(model).or_insert(name);
            }
        }
    }
}
