//! Which node serves the next attempt: a pure function of verified node records, of what this client itself saw of the
//! nodes, and of one random number. It does no I/O and reads no clock.
//!
//! Hard conditions first ([`Exclusion`]), then classes (a node that failed in this turn, is gone, or lied comes last), and
//! within the best class a score of what was measured, by which a draw is weighted. What a node says of itself raises no
//! score, so nobody can talk a client into choosing it; no node has all the draw while others are good
//! ([`MAX_SHARE`]), and those that never served share a bounded part of it ([`NEWCOMERS_SHARE`]). `docs/CHOOSING.md`
//! says why.

mod score;
#[cfg(test)]
mod tests;
mod weigh;

use baton_proto::{
    ids::{ExchangeKey, ModelId, NodeId},
    limits::MAX_OUTPUT_TOKENS,
    node_record::{ModelOffer, NodeRecord},
    receipt::EngineKind,
};

use crate::clocks::ClockDifference;

pub use score::Factors;
pub use weigh::{Behind, Exclusion, Ranked, Verdict, Weighed, weigh};

/// Nodes of the best class whose score is below this part of the best one's are not in the draw. Small enough that a node of
/// ordinary speed that never served is in it whatever others offer.
pub const GOOD_PART: f64 = 1.0 / 3.0;
/// Largest probability of one node where another one is in the draw.
pub const MAX_SHARE: f64 = 2.0 / 3.0;
/// Largest probability of all nodes together that never served this client, where one that did is in the draw: identities
/// cost nothing, so many of them must not be worth more than one.
pub const NEWCOMERS_SHARE: f64 = 1.0 / 3.0;
/// Turns at once beyond which a node's word on how many it takes counts for nothing.
pub const BELIEVED_SLOTS: u32 = 4;

/// A node that could be asked.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its verified record.
    pub record: &'a NodeRecord,
    /// Turns of this client that it serves now.
    pub in_flight: u32,
    /// Whether nothing is heard of it: it did not answer, or gave no sign of life for a while.
    pub gone: bool,
    /// What this client saw of it.
    pub evidence: Evidence,
}

/// What a client itself saw of a node, decayed to now; the default is a node that it never asked.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Evidence {
    /// Turns that it served, as verified receipts say.
    pub served: f64,
    /// Its failures, each by its weight.
    pub failed: f64,
    /// Its answers that it is busy, of the last minutes.
    pub busy: f64,
    /// How fast its answers came, if any did.
    pub speed: Option<Speed>,
    /// Until when it is avoided because it failed lately, in milliseconds since the Unix epoch; 0 is not at all.
    pub paused_until_ms: u64,
    /// Until when it is avoided because it was caught at something untrue; 0 is not at all.
    pub lied_until_ms: u64,
}

/// How fast a node's answers came, averaged over turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Turns that were measured, decayed.
    pub turns: f64,
    /// Milliseconds from the sending of a turn to the first text of its answer.
    pub first_token_ms: f64,
    /// Tokens a second from then on, four bytes of text counted as one; none where all answers were short.
    pub tokens_per_second: Option<f64>,
}

/// What a turn asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// Name or hex id of the model, or any.
    pub model: Option<&'a str>,
    /// This node and no other.
    pub node: Option<NodeId>,
    /// Whether texts are to be embedded, and no turn served.
    pub embeddings: bool,
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
    /// Model of the turn before, preferred where the wish names none.
    pub last_model: Option<ModelId>,
    /// The node that served the turn before a moment ago and may still have its prompt at hand.
    pub warm: Option<NodeId>,
    /// Most tokens of the answer that are wanted.
    pub output_tokens: u32,
    /// Most that the turn may cost, in millionths of the node's unit; none is no limit.
    pub max_price: Option<u64>,
    /// Nodes that already failed in this turn, once for each failure: asked again only when there is no other.
    pub tried: &'a [NodeId],
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The node chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The node.
    pub node: NodeId,
    /// The model it is asked for.
    pub offer: ModelOffer,
    /// The exchange key to seal to.
    pub key: ExchangeKey,
    /// Most tokens that the node gives in one answer.
    pub max_output_tokens: u32,
}

/// Why no node can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// None is known.
    #[error("no node was found")]
    NoNodes,
    /// The one asked for is not among those known.
    #[error("node {0} was not found")]
    NodeUnknown(NodeId),
    /// Nodes are known, but none has a current record of a version spoken here.
    #[error("no known node has a current record")]
    NoneCurrent,
    /// Every node says of itself what does not fit this machine's clock.
    #[error("{0}")]
    ClocksDiffer(ClockDifference),
    /// Nobody serves the model.
    #[error("no node serves the model {wanted}; served are: {served}")]
    ModelUnavailable {
        /// What was asked for.
        wanted: String,
        /// Names of what is served.
        served: String,
    },
    /// Only test engines are there.
    #[error("only echo engines were found, and they are not asked unless allowed")]
    OnlyEcho,
    /// Everybody asks for more than the client pays.
    #[error(
        "the cheapest turn may cost {cheapest} millionths of the node's unit; at most {max_price} are allowed"
    )]
    TooExpensive {
        /// The lowest price that a turn with a full context could come to.
        cheapest: u64,
        /// The client's limit.
        max_price: u64,
    },
}

impl NoChoice {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoNodes => {
                "give one with --node /ip4/ADDRESS/tcp/PORT/p2p/ID, or start one on this network: baton-node run"
            }
            Self::NodeUnknown(_) => "give its address with --node, or see who is there: baton nodes",
            Self::NoneCurrent => "check this machine's clock, and that the nodes run",
            Self::ClocksDiffer(difference) => difference.hint(),
            Self::ModelUnavailable { .. } => "see what is served: baton nodes",
            Self::OnlyEcho => "for a test, allow them with --allow-echo",
            Self::TooExpensive { .. } => {
                "ask for fewer tokens with --max-tokens, or allow more with --max-price"
            }
        }
    }
}

/// Chooses a node: draws one of those that [`weigh()`] lets into the draw, by their shares. `random` must be uniformly
/// distributed; the order of the candidates makes no difference.
///
/// # Errors
/// [`NoChoice`], naming the first condition that nobody meets.
pub fn choose(candidates: &[Candidate<'_>], wish: &Wish<'_>, random: u64) -> Result<Choice, NoChoice> {
    let weighed = weigh(candidates, wish);
    // 53 bits are what a double holds exactly.
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
    Ok(Choice {
        node: row.record.node,
        offer: offer.clone(),
        key: ranked.key,
        max_output_tokens: row.record.limits.max_output_tokens,
    })
}

/// Tokens of an answer at a node that allows so many; 0 says nothing.
pub(crate) fn output_cap(wanted: u32, allowed: u32) -> u32 {
    let allowed = if allowed == 0 { MAX_OUTPUT_TOKENS } else { allowed };
    wanted.min(allowed).min(MAX_OUTPUT_TOKENS)
}

/// The most that a turn can cost at the offered prices: a full context and a full answer.
pub(crate) fn highest_price(offer: &ModelOffer, output_tokens: u32) -> u64 {
    let input = u64::from(offer.context_tokens).saturating_mul(offer.input_price);
    let output = u64::from(output_tokens).saturating_mul(offer.output_price);
    input.saturating_add(output).div_ceil(1000)
}

/// What a turn may cost at most, in millionths of the node's unit: a full context and a full answer.
fn price(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> u64 {
    highest_price(offer, output_cap(wish.output_tokens, candidate.record.limits.max_output_tokens))
}

/// The first condition that nobody meets.
fn none_fits(weighed: &[Weighed<'_>], wish: &Wish<'_>) -> NoChoice {
    let excluded = |row: &Weighed<'_>| match row.verdict {
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
