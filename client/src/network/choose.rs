//! Chooses the node of the next attempt: a pure function of verified node records, this client's own
//! experience with the nodes, and one random number. It does no I/O and reads no clock.
//!
//! The choice has three steps:
//! 1. Hard conditions ([`Exclusion`]).
//! 2. Classes: a node that failed in this turn, is gone, or lied comes last.
//! 3. Within the best class, a draw weighted by a score of measurements.
//!
//! A node's own claims raise no score, so no node can talk a client into choosing it. No node has the whole
//! draw while others are good ([`MAX_SHARE`]), and unproven nodes share a bounded part of it
//! ([`UNPROVEN_SHARE`]). `docs/CHOOSING.md` gives the reasons.

mod score;
#[cfg(test)]
mod tests;
mod weigh;

use baton_proto::{
    ids::{ExchangeKey, NodeId},
    limits::{MAX_BLOB_BYTES, MAX_OUTPUT_TOKENS},
    node_record::{ModelOffer, NodeRecord, storage_units},
    receipt::{EngineKind, OfferTerms},
    turn::StoragePolicy,
};

pub use crate::error::NoChoice;
use crate::network::quota::QuotaHolder;
pub use score::Factors;
pub use weigh::{Behind, Exclusion, OfferAssessment, OfferRank, Verdict, weigh};

/// Nodes of the best class below this part of the best score are not in the draw. It is small enough that an
/// untried node of ordinary speed is in the draw whatever others offer.
pub const GOOD_PART: f64 = 1.0 / 3.0;
/// Largest probability of one node if another is in the draw.
pub const MAX_SHARE: f64 = 2.0 / 3.0;
/// Largest probability of all unproven nodes together, if a node that served this client is in the draw.
/// Identities cost nothing, so many of them must not be worth more than one.
pub const UNPROVEN_SHARE: f64 = 1.0 / 3.0;
/// Default limit for the price of one turn, in millionths of the node's unit: ten units. So a node's offer
/// alone never decides how much the client agrees to pay.
pub const DEFAULT_MAX_PRICE: u64 = 10_000_000;
/// Most simultaneous turns that a node's own claim can count for.
pub const BELIEVED_SLOTS: u32 = 4;

/// A node that could be asked.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its verified record.
    pub record: &'a NodeRecord,
    /// Turns of this client that it serves now.
    pub in_flight: u32,
    /// Whether it gives no sign of life: it did not answer, or was silent for a while.
    pub gone: bool,
    /// This client's experience with it.
    pub evidence: Evidence,
}

/// A client's own experience with a node, decayed to now; the default is a node that it never asked.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct Evidence {
    /// Turns that it served, by verified receipts.
    pub served: f64,
    /// Its weighted failures.
    pub failed: f64,
    /// Its busy answers of the last minutes.
    pub busy: f64,
    /// Speed of its answers, if any.
    pub speed: Option<Speed>,
    /// Until when it is avoided for recent failures, in milliseconds since the Unix epoch; 0 for not at all.
    pub paused_until_ms: u64,
    /// Until when it is avoided for a detected lie; 0 for not at all.
    pub lied_until_ms: u64,
}

/// Speed of a node's answers, averaged over turns.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Speed {
    /// Measured turns, decayed.
    pub turns: f64,
    /// Milliseconds from the sending of a turn to the first text of its answer.
    pub first_token_ms: f64,
    /// Tokens a second from then on, with four bytes of text per token; none if all answers were short.
    pub tokens_per_second: Option<f64>,
}

/// The requirements of a turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// Name or hex id of the model; any if none.
    pub model: Option<&'a str>,
    /// The only node to use.
    pub node: Option<NodeId>,
    /// Whether to embed texts instead of serving a turn.
    pub embeddings: bool,
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
    /// The node that just served the previous turn and may still have its prompt cached.
    pub warm: Option<NodeId>,
    /// Most requested tokens of the answer.
    pub output_tokens: u32,
    /// Most that the turn may cost, in millionths of the node's unit; unlimited if none.
    pub max_price: Option<u64>,
    /// The storage of the turn's blob; none if nothing is stored. A node that offers less is ordered less.
    pub storage: Option<StoragePolicy>,
    /// The grant that is shown to nodes.
    pub quota: Option<&'a QuotaHolder>,
    /// Nodes that already failed in this turn, one entry per failure: asked again only if there is no other.
    pub tried: &'a [NodeId],
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The chosen node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The node.
    pub node: NodeId,
    /// The chosen model's offer.
    pub offer: ModelOffer,
    /// The exchange key to seal to.
    pub key: ExchangeKey,
    /// Most tokens that the node gives in one answer.
    pub max_output_tokens: u32,
    /// The terms to which its receipt is held.
    pub terms: OfferTerms,
    /// The storage to order: the wanted one, as far as the node offers it.
    pub storage: StoragePolicy,
}

impl Choice {
    /// The most that a turn can cost at the offered prices: a full context, a full answer, and its blob.
    pub(crate) fn highest_price(&self, output_tokens: u32) -> u64 {
        highest_price(&self.offer, output_tokens, storage_price(self.terms.storage_price, &self.storage))
    }
}

/// Chooses a node by a draw among the nodes that [`weigh()`] admits, by their shares. `random` must be
/// uniformly distributed; the order of the candidates makes no difference.
///
/// # Errors
/// [`NoChoice`], naming the first condition that no node meets.
pub fn choose(candidates: &[Candidate<'_>], wish: &Wish<'_>, random: u64) -> Result<Choice, NoChoice> {
    let weighed = weigh(candidates, wish);
    // A double holds exactly 53 bits.
    let point = (random >> 11) as f64 / (1u64 << 53) as f64;
    let mut passed = 0.0;
    let mut chosen = None;
    for row in &weighed {
        let (Verdict::Ranked(ranked), Some(offer)) = (&row.verdict, row.offer) else { continue };
        if ranked.share <= 0.0 {
            continue;
        }
        chosen = Some((row, ranked, offer));
        passed += ranked.share;
        if point < passed {
            break;
        }
    }
    let (row, ranked, offer) = chosen.ok_or_else(|| none_fits(&weighed, wish))?;
    let terms = OfferTerms {
        engine: offer.engine,
        context_tokens: offer.context_tokens,
        input_price: offer.input_price,
        output_price: offer.output_price,
        storage_price: row.record.storage.price,
    };
    Ok(Choice {
        node: row.record.node,
        offer: offer.clone(),
        key: ranked.key.clone(),
        max_output_tokens: row.record.limits.max_output_tokens,
        terms,
        storage: ordered_storage(row.record, offer, wish).unwrap_or_default(),
    })
}

/// The lower of the wanted and the allowed tokens of an answer; an allowance of 0 means unspecified.
pub(crate) fn output_cap(wanted: u32, allowed: u32) -> u32 {
    let allowed = if allowed == 0 { MAX_OUTPUT_TOKENS } else { allowed };
    wanted.min(allowed).min(MAX_OUTPUT_TOKENS)
}

/// The wanted storage, as far as a node offers it; none if nothing is stored.
fn ordered_storage(record: &NodeRecord, offer: &ModelOffer, wish: &Wish<'_>) -> Option<StoragePolicy> {
    let granted = wish.quota.is_some_and(|quota| quota.applies((record.node, offer.model), wish.now_ms));
    Some(record.storage.limit(wish.storage?, granted))
}

/// The price of a blob's longer storage, at the price of a storage unit.
fn storage_price(price: u64, storage: &StoragePolicy) -> u64 {
    let epochs = storage.open_epochs.max(storage.closed_epochs);
    storage_units(MAX_BLOB_BYTES, epochs).saturating_mul(price)
}

/// The most that a turn can cost at the offered prices: a full context, a full answer, and storage.
fn highest_price(offer: &ModelOffer, output_tokens: u32, storage: u64) -> u64 {
    let input = u64::from(offer.context_tokens).saturating_mul(offer.input_price);
    let output = u64::from(output_tokens).saturating_mul(offer.output_price);
    input.saturating_add(output).div_ceil(1000).saturating_add(storage)
}

/// Most that a turn may cost, in millionths of the node's unit.
fn price(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> u64 {
    let record = candidate.record;
    let storage = ordered_storage(record, offer, wish);
    let storage = storage.map_or(0, |storage| storage_price(record.storage.price, &storage));
    highest_price(offer, output_cap(wish.output_tokens, record.limits.max_output_tokens), storage)
}

/// The first condition that no node meets.
fn none_fits(weighed: &[OfferAssessment<'_>], wish: &Wish<'_>) -> NoChoice {
    let excluded = |row: &OfferAssessment<'_>| match row.verdict {
        Verdict::Excluded(exclusion) => Some(exclusion),
        Verdict::Ranked(_) => None,
    };
    let exclusions: Vec<Exclusion> = weighed.iter().filter_map(excluded).collect();
    if exclusions.iter().all(|exclusion| *exclusion == Exclusion::NotNamed) {
        return wish.node.map_or(NoChoice::NoNodes, NoChoice::NodeUnknown);
    }
    let is_stale = |exclusion: &Exclusion| {
        use Exclusion::{NotBegun, NotNamed, RanOut, Version};
        matches!(exclusion, NotNamed | Version | RanOut { .. } | NotBegun { .. })
    };
    if exclusions.iter().all(is_stale) {
        return NoChoice::NoneCurrent;
    }
    let prices = exclusions.iter().filter_map(|exclusion| match exclusion {
        Exclusion::Price { price } => Some(*price),
        _ => None,
    });
    if let Some(cheapest) = prices.min() {
        return NoChoice::TooExpensive { cheapest, max_price: wish.max_price.unwrap_or(u64::MAX) };
    }
    let fits = |offer: &&ModelOffer| (offer.engine == EngineKind::Embedding) == wish.embeddings;
    let offers: Vec<&ModelOffer> = weighed.iter().filter_map(|row| row.offer).filter(fits).collect();
    nothing_fits(!exclusions.contains(&Exclusion::Echo), &offers, wish)
}

fn nothing_fits(none_named: bool, offers: &[&ModelOffer], wish: &Wish<'_>) -> NoChoice {
    match wish.model {
        Some(wanted) if none_named => {
            let mut served: Vec<&str> = offers.iter().map(|offer| offer.name.as_str()).collect();
            served.sort_unstable();
            served.dedup();
            let served = if served.is_empty() { "none".to_owned() } else { served.join(", ") };
            NoChoice::ModelUnavailable { wanted: wanted.to_owned(), served }
        }
        _ if offers.is_empty() => {
            NoChoice::ModelUnavailable { wanted: "any".to_owned(), served: "none".to_owned() }
        }
        _ => NoChoice::OnlyEcho,
    }
}
