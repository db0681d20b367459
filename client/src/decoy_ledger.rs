//! The ledger of decoys: their budget, the nodes that they checked, and the shapes of real turns that they
//! imitate. Pure, apart from [`mod@file`]: clock and randomness are parameters.
//!
//! Decoys are throw-away sessions that this client sends to several nodes, to compare the answers. The budget
//! is a share of the tokens of the owner's turns at nodes with their own engine. The ledger holds sizes,
//! settings and counts; it holds no text of a turn, and names no session.

pub(crate) mod draws;
pub(crate) mod file;
pub(crate) mod plan;
mod prompts;
#[cfg(test)]
mod tests;
pub(crate) mod verdict;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_proto::ids::{ModelId, NodeId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use draws::Draws;
use file::DecoyFile;
use plan::DecoyPlan;

/// Default share of decoys in the tokens at nodes with their own engine, in thousandths.
pub const DEFAULT_DECOY_SHARE: u32 = 30;
/// Largest share, in thousandths: beyond it, decoys cost more than they show.
pub const MAX_DECOY_SHARE: u32 = 200;
/// Tokens that decoys may be ahead of their share: a new client checks its nodes soon, and later turns pay for
/// it. Some decoys of ordinary length cost as much.
const ADVANCE_TOKENS: u64 = 16_384;
/// The owner's turns from one decoy to the next in the background: the first decoys would otherwise follow the first
/// turn at once, and know no other shape.
const TURNS_BETWEEN_DECOYS: u64 = 2;
/// Real turns whose shapes are remembered; the oldest is forgotten.
const MAX_SHAPES: usize = 64;
/// Nodes in the ledger; when full, the node with the fewest unchecked tokens is forgotten.
const MAX_NODES: usize = 256;

/// Whether, and when, a client sends decoys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoyPolicy {
    /// Share of the tokens at nodes with their own engine, in thousandths: at most [`MAX_DECOY_SHARE`], 0 for
    /// no decoys.
    pub share: u32,
    /// Shortest time between a decoy's becoming due and its start.
    pub min_delay: Duration,
    /// Longest such time. A random time in between keeps decoys apart from the turn that made them due.
    pub max_delay: Duration,
    /// Longest pause between two turns of a decoy.
    pub max_pause: Duration,
}

impl Default for DecoyPolicy {
    fn default() -> Self {
        Self {
            share: DEFAULT_DECOY_SHARE,
            min_delay: Duration::from_secs(60),
            max_delay: Duration::from_secs(30 * 60),
            max_pause: Duration::from_secs(5 * 60),
        }
    }
}

impl DecoyPolicy {
    /// No decoys.
    #[must_use]
    pub fn off() -> Self {
        Self { share: 0, ..Self::default() }
    }
}

/// Sums over all decoys of a home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecoyTotals {
    /// Tokens of the owner's turns at nodes with their own engine, prompts and answers.
    pub real_tokens: u64,
    /// Tokens of decoys, prompts and answers.
    pub decoy_tokens: u64,
    /// Price of decoys, in millionths of the nodes' unit.
    pub price: u64,
    /// Sessions of decoys, each at one node.
    pub sessions: u64,
    /// Turns of decoys.
    pub turns: u64,
    /// Nodes found to contradict at least two others.
    pub contradictions: u64,
    /// Contradictions of two nodes that no third node decided.
    pub undecided: u64,
}

impl DecoyTotals {
    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.real_tokens, other.real_tokens),
            (&mut self.decoy_tokens, other.decoy_tokens),
            (&mut self.price, other.price),
            (&mut self.sessions, other.sessions),
            (&mut self.turns, other.turns),
            (&mut self.contradictions, other.contradictions),
            (&mut self.undecided, other.undecided),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Tokens that decoys may still use at this share, in thousandths; below zero if they are ahead.
    #[must_use]
    pub fn credit(&self, share: u32) -> i64 {
        let earned = u128::from(self.real_tokens) * u128::from(share.min(MAX_DECOY_SHARE)) / 1000;
        let earned = i128::try_from(earned + u128::from(ADVANCE_TOKENS)).unwrap_or(i128::MAX);
        let credit = earned - i128::from(self.decoy_tokens);
        i64::try_from(credit).unwrap_or(if credit < 0 { i64::MIN } else { i64::MAX })
    }
}

/// The shape of one of the owner's turns, as its node saw it, without any text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnShape {
    /// Its model.
    pub(crate) model: ModelId,
    /// Its position in its session.
    pub(crate) seq: u64,
    /// Bytes of the new message.
    pub(crate) bytes: u32,
    /// Bytes of the pinned system text.
    pub(crate) system_bytes: u32,
    /// As in its sampling settings.
    pub(crate) temperature: f32,
    /// As in its sampling settings.
    pub(crate) top_p: f32,
    /// As in its sampling settings.
    pub(crate) top_k: u32,
    /// As in its sampling settings.
    pub(crate) repetition_penalty: f32,
    /// As in its sampling settings.
    pub(crate) logprobs: u8,
    /// As in its sampling settings.
    #[serde(default)]
    pub(crate) presence_penalty: f32,
    /// As in its sampling settings.
    #[serde(default)]
    pub(crate) frequency_penalty: f32,
    /// Whether its sampling had a seed other than 0.
    pub(crate) seeded: bool,
    /// Most requested tokens of the answer.
    pub(crate) max_output_tokens: u32,
    /// Time since the session's last answer, in milliseconds; 0 for a first turn.
    pub(crate) pause_ms: u64,
}

/// The ledger's facts about one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeChecks {
    /// Tokens of the owner's turns since its last check.
    pub(crate) unchecked_tokens: u64,
    /// When it was last checked, in milliseconds since the Unix epoch; 0 for never.
    pub(crate) checked_ms: u64,
    /// Decoys in which it agreed with another node.
    pub(crate) agreed: u32,
}

/// The ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DecoyLedger {
    totals: DecoyTotals,
    /// The part of `totals` that the file lacks.
    unsaved: DecoyTotals,
    nodes: BTreeMap<NodeId, NodeChecks>,
    shapes: VecDeque<TurnShape>,
    /// The owner's turns since the last decoy.
    turns_since_decoy: u64,
}

impl DecoyLedger {
    fn count(&mut self, change: DecoyTotals) {
        self.totals.add(&change);
        self.unsaved.add(&change);
    }

    /// Records a turn of the owner at a node with its own engine; its shape if decoys may imitate it.
    pub(crate) fn note_turn(&mut self, node: NodeId, tokens: u64, shape: Option<TurnShape>) {
        self.count(DecoyTotals { real_tokens: tokens, ..DecoyTotals::default() });
        self.turns_since_decoy = self.turns_since_decoy.saturating_add(1);
        let checks = self.checks(node);
        checks.unchecked_tokens = checks.unchecked_tokens.saturating_add(tokens);
        if let Some(shape) = shape {
            self.shapes.push_back(shape);
            while self.shapes.len() > MAX_SHAPES {
                self.shapes.pop_front();
            }
        }
    }

    /// Records a turn of a decoy.
    pub(crate) fn note_decoy_turn(&mut self, tokens: u64, price: u64) {
        self.count(DecoyTotals { decoy_tokens: tokens, price, turns: 1, ..DecoyTotals::default() });
    }

    /// Records a session of a decoy.
    pub(crate) fn note_decoy_session(&mut self) {
        self.count(DecoyTotals { sessions: 1, ..DecoyTotals::default() });
    }

    /// Records that a node gave the same answers as another.
    pub(crate) fn note_agreement(&mut self, node: NodeId, now_ms: u64) {
        self.note_check(node, now_ms);
        let checks = self.checks(node);
        checks.agreed = checks.agreed.saturating_add(1);
    }

    /// Records that a node was checked without a result.
    pub(crate) fn note_check(&mut self, node: NodeId, now_ms: u64) {
        let checks = self.checks(node);
        (checks.unchecked_tokens, checks.checked_ms) = (0, now_ms);
    }

    /// Records a contradiction, and whether other nodes decided it.
    pub(crate) fn note_contradiction(&mut self, decided: bool) {
        let (contradictions, undecided) = (u64::from(decided), u64::from(!decided));
        self.count(DecoyTotals { contradictions, undecided, ..DecoyTotals::default() });
    }

    fn checks(&mut self, node: NodeId) -> &mut NodeChecks {
        if !self.nodes.contains_key(&node) && self.nodes.len() >= MAX_NODES {
            let least = self.nodes.iter().min_by_key(|(_, checks)| checks.unchecked_tokens);
            let least = least.map(|(node, _)| *node);
            least.and_then(|node| self.nodes.remove(&node));
        }
        self.nodes.entry(node).or_default()
    }

    /// The sums.
    pub(crate) fn totals(&self) -> DecoyTotals {
        self.totals
    }

    /// Whether the budget allows a decoy. One that costs more than expected delays the next.
    pub(crate) fn is_due(&self, share: u32) -> bool {
        share > 0 && !self.shapes.is_empty() && self.totals.credit(share) > 0
    }

    /// Whether enough of the owner's turns passed since the last decoy to send another in the background.
    pub(crate) fn is_time(&self) -> bool {
        self.turns_since_decoy >= TURNS_BETWEEN_DECOYS
    }

    /// Records that a decoy begins.
    pub(crate) fn note_start(&mut self) {
        self.turns_since_decoy = 0;
    }

    /// Plans a decoy in the shape of the owner's turns; none before the first such turn.
    pub(crate) fn plan(&self, max_pause: Duration, draws: &mut Draws) -> Option<DecoyPlan> {
        let shapes: Vec<TurnShape> = self.shapes.iter().copied().collect();
        DecoyPlan::imitate(&shapes, max_pause, draws)
    }

    /// Nodes in the order in which decoys should check them: first those with most tokens of the owner since
    /// their last check, and those of equal rank in random order.
    pub(crate) fn order_to_check(&self, mut nodes: Vec<NodeId>, draws: &mut Draws) -> Vec<NodeId> {
        nodes.sort_by_cached_key(|node| {
            let checks = self.nodes.get(node).copied().unwrap_or_default();
            let served_unchecked = checks.checked_ms == 0 && checks.unchecked_tokens > 0;
            (Reverse(served_unchecked), Reverse(checks.unchecked_tokens), draws.next())
        });
        nodes
    }

    /// Nodes in the order in which they should decide a contradiction: first those that agreed most often with
    /// others.
    pub(crate) fn order_to_decide(&self, mut nodes: Vec<NodeId>, draws: &mut Draws) -> Vec<NodeId> {
        nodes.sort_by_cached_key(|node| {
            (Reverse(self.nodes.get(node).map_or(0, |checks| checks.agreed)), draws.next())
        });
        nodes
    }

    /// Takes over another process's ledger of the same home.
    pub(crate) fn merge(&mut self, other: Self) {
        self.totals = other.totals;
        self.totals.add(&self.unsaved);
        self.unsaved = DecoyTotals::default();
        for (node, theirs) in other.nodes {
            if !self.nodes.contains_key(&node) && self.nodes.len() >= MAX_NODES {
                continue;
            }
            let ours = self.nodes.entry(node).or_insert(theirs);
            if theirs.checked_ms > ours.checked_ms {
                *ours = theirs;
            }
        }
        if self.shapes.is_empty() {
            self.shapes = other.shapes;
        }
    }
}

/// A client's ledger with its policy and its file. Clones of a client share it.
pub(crate) struct DecoyAccount {
    policy: DecoyPolicy,
    ledger: Mutex<DecoyLedger>,
    file: Option<DecoyFile>,
    /// Wakes the task that sends decoys, after a turn of the owner.
    pub(crate) noted: Notify,
    /// Held by the decoy under way.
    pub(crate) running: tokio::sync::Mutex<()>,
}

impl DecoyAccount {
    /// The account of a home, with its stored ledger; of a client without a home, without a file.
    pub(crate) fn new(policy: DecoyPolicy, file: Option<DecoyFile>, ledger: DecoyLedger) -> Self {
        Self {
            policy,
            ledger: Mutex::new(ledger),
            file,
            noted: Notify::new(),
            running: tokio::sync::Mutex::new(()),
        }
    }

    /// The ledger, locked for moments.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, DecoyLedger> {
        // Entries change in single steps, so a panic elsewhere leaves the ledger usable.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn policy(&self) -> DecoyPolicy {
        self.policy
    }

    /// Whether a decoy is due.
    pub(crate) fn is_due(&self) -> bool {
        self.ledger().is_due(self.policy.share)
    }

    /// Whether the task in the background should send a decoy.
    pub(crate) fn is_ready(&self) -> bool {
        let ledger = self.ledger();
        ledger.is_due(self.policy.share) && ledger.is_time()
    }

    /// Records a turn of the owner, and wakes the task that sends decoys.
    pub(crate) fn note_turn(&self, node: NodeId, tokens: u64, shape: Option<TurnShape>) {
        if self.policy.share == 0 {
            return;
        }
        self.ledger().note_turn(node, tokens, shape);
        self.noted.notify_one();
    }

    /// Writes the ledger, merged with another process's writes to this home. Blocking.
    pub(crate) fn save(&self) {
        let Some(file) = &self.file else { return };
        let stored = file.read();
        let (ledger, before) = {
            let mut ledger = self.ledger();
            if ledger.unsaved == DecoyTotals::default() {
                return;
            }
            let before = ledger.clone();
            match stored {
                Ok(other) => ledger.merge(other.unwrap_or_default()),
                // Its sums are lost; those of this process stay.
                Err(_) => ledger.unsaved = DecoyTotals::default(),
            }
            (ledger.clone(), before)
        };
        if let Err(error) = file.write(&ledger) {
            tracing::warn!(%error, "the ledger of decoys was not written");
            self.ledger().unsaved.add(&before.unsaved);
        }
    }
}
