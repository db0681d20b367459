//! Weighs every offer of every candidate: which are excluded and why, which come after others, and each other
//! offer's share of the draw. [`super::choose`] draws from this, and `baton nodes --explain` shows it, so the
//! two cannot disagree.

use baton_proto::{
    ids::{ExchangeKey, NodeId},
    limits::VERSION,
    node_record::{ModelOffer, NodeRecord, OutOfTime},
    receipt::EngineKind,
};

use super::{
    Candidate, GOOD_PART, MAX_SHARE, UNPROVEN_SHARE, Wish, price,
    score::{Factors, Reference},
};

/// Verified turns from which a node is proven: one, until it has decayed to half.
const PROVEN: f64 = 0.5;

/// An offer with its verdict.
#[derive(Debug, Clone)]
pub struct OfferAssessment<'a> {
    /// The node's record.
    pub record: &'a NodeRecord,
    /// The offer; none if the node as a whole is excluded.
    pub offer: Option<&'a ModelOffer>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict on an offer.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It cannot be chosen.
    Excluded(Exclusion),
    /// It can be chosen.
    Ranked(OfferRank),
}

/// A condition that is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// Another node was named.
    NotNamed,
    /// It speaks no supported version of the protocol.
    Version,
    /// Its record or exchange key expired.
    RanOut {
        /// How long ago, in milliseconds.
        by_ms: u64,
    },
    /// Its record's first exchange key is not yet valid: its clock, or this machine's, is wrong.
    NotBegun {
        /// Time until then, in milliseconds.
        by_ms: u64,
    },
    /// It does not serve the model; also for a node without any offer.
    Model,
    /// It embeds texts and a turn was requested, or the reverse.
    Purpose,
    /// A test engine that is not allowed.
    Echo,
    /// The turn may cost more than the limit.
    Price {
        /// The most that it may cost there.
        price: u64,
    },
}

/// An offer that can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferRank {
    /// The exchange key to seal to.
    pub key: ExchangeKey,
    /// The most that the turn may cost there.
    pub price: u64,
    /// The factors of its score.
    pub factors: Factors,
    /// Why it is not in the draw, if so.
    pub behind: Option<Behind>,
    /// Its probability.
    pub share: f64,
}

/// Why an offer comes after others, which are all tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// Its node failed in this turn.
    FailedNow,
    /// Its node gives no sign of life.
    Gone,
    /// Its node lied.
    Lied {
        /// Until when that counts, in milliseconds since the Unix epoch.
        until_ms: u64,
    },
    /// Its node failed lately.
    Paused {
        /// Until when that counts, in milliseconds since the Unix epoch.
        until_ms: u64,
    },
    /// Another kind of engine is preferred.
    Engine,
    /// Others are far better.
    Score,
}

/// The class of an offer; the lowest is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OfferClass {
    trouble: u8,
    paused_until_ms: u64,
    engine: u8,
}

/// An offer that meets all conditions.
struct Fit {
    /// Position of its row.
    row: usize,
    class: OfferClass,
    proven: bool,
}

/// Weighs the offers of all candidates, in the order of node and model.
#[must_use]
pub fn weigh<'a>(candidates: &[Candidate<'a>], wish: &Wish<'_>) -> Vec<OfferAssessment<'a>> {
    let mut sorted: Vec<&Candidate<'a>> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| candidate.record.node);
    let fits = |candidate: &&&Candidate<'a>| {
        let mut offers = candidate.record.models.iter();
        meets(candidate, wish).is_ok() && offers.any(|offer| suits(candidate, offer, wish).is_ok())
    };
    let priced = sorted.iter().flat_map(|candidate| {
        candidate.record.models.iter().filter_map(|offer| suits(candidate, offer, wish).ok())
    });
    let speeds = sorted.iter().filter(fits).filter_map(|candidate| candidate.evidence.speed);
    let reference = Reference::new(speeds, priced, wish.max_price);

    let (mut rows, mut fitting) = (Vec::new(), Vec::new());
    for candidate in sorted {
        let record = candidate.record;
        let key = match meets(candidate, wish) {
            Ok(_) if record.models.is_empty() => Err(Exclusion::Model),
            key => key,
        };
        let key = match key {
            Ok(key) => key,
            Err(exclusion) => {
                rows.push(OfferAssessment { record, offer: None, verdict: Verdict::Excluded(exclusion) });
                continue;
            }
        };
        for offer in &record.models {
            let verdict = match suits(candidate, offer, wish) {
                Err(exclusion) => Verdict::Excluded(exclusion),
                Ok(price) => {
                    let warm = wish.warm == Some(record.node);
                    let factors = reference.factors(candidate, price, warm);
                    let proven = candidate.evidence.served >= PROVEN;
                    fitting.push(Fit { row: rows.len(), class: class(candidate, offer, wish), proven });
                    let key = key.clone();
                    Verdict::Ranked(OfferRank { key, price, factors, behind: None, share: 0.0 })
                }
            };
            rows.push(OfferAssessment { record, offer: Some(offer), verdict });
        }
    }
    draw(&mut rows, &fitting, candidates, wish);
    rows
}

/// Checks the conditions on a node as a whole; returns the key to seal to.
fn meets<'a>(candidate: &Candidate<'a>, wish: &Wish<'_>) -> Result<&'a ExchangeKey, Exclusion> {
    if wish.node.is_some_and(|node| node != candidate.record.node) {
        return Err(Exclusion::NotNamed);
    }
    if !candidate.record.versions.contains(&VERSION) {
        return Err(Exclusion::Version);
    }
    candidate.record.current_key(wish.now_ms).map_err(|_| match candidate.record.out_of_time(wish.now_ms) {
        Some(OutOfTime::NotBegun { by_ms }) => Exclusion::NotBegun { by_ms },
        Some(OutOfTime::RanOut { by_ms }) => Exclusion::RanOut { by_ms },
        None => Exclusion::RanOut { by_ms: 0 },
    })
}

/// Checks the conditions on an offer; returns its price.
fn suits(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> Result<u64, Exclusion> {
    let wanted = |model: &str| offer.name == model || offer.model.to_string() == model;
    if !wish.model.is_none_or(wanted) {
        return Err(Exclusion::Model);
    }
    if (offer.engine == EngineKind::Embedding) != wish.embeddings {
        return Err(Exclusion::Purpose);
    }
    if offer.engine == EngineKind::Echo && !wish.allow_echo {
        return Err(Exclusion::Echo);
    }
    let price = price(candidate, offer, wish);
    if price > wish.max_price.unwrap_or(u64::MAX) { Err(Exclusion::Price { price }) } else { Ok(price) }
}

fn lied(candidate: &Candidate<'_>, wish: &Wish<'_>) -> bool {
    candidate.evidence.lied_until_ms > wish.now_ms
}

fn class(candidate: &Candidate<'_>, offer: &ModelOffer, wish: &Wish<'_>) -> OfferClass {
    let failures = wish.tried.iter().filter(|node| **node == candidate.record.node).count();
    // A node that lied is asked only once every honest node that answers failed twice in this turn. Then it
    // is better than none: its claims are checked like all others, so at worst it costs time.
    let trouble = match (lied(candidate, wish), candidate.gone, failures) {
        (false, false, 0) => 0,
        (false, false, 1) => 1,
        (false, true, 0) => 2,
        (true, _, 0) => 3,
        (false, _, _) => 4,
        (true, _, _) => 5,
    };
    let paused_until_ms = candidate.evidence.paused_until_ms;
    OfferClass {
        trouble,
        paused_until_ms: if paused_until_ms > wish.now_ms { paused_until_ms } else { 0 },
        engine: match offer.engine {
            EngineKind::Native => 0,
            EngineKind::Library => 1,
            EngineKind::Proxied => 2,
            EngineKind::Echo => 3,
            // Embedding engines compete only with each other.
            EngineKind::Embedding => 0,
        },
    }
}

/// Why an offer is not in the best class.
fn behind(candidate: &Candidate<'_>, own: &OfferClass, best: &OfferClass, wish: &Wish<'_>) -> Option<Behind> {
    let evidence = &candidate.evidence;
    if own == best {
        None
    } else if own.trouble != best.trouble {
        Some(if lied(candidate, wish) {
            Behind::Lied { until_ms: evidence.lied_until_ms }
        } else if wish.tried.contains(&candidate.record.node) {
            Behind::FailedNow
        } else {
            Behind::Gone
        })
    } else if own.paused_until_ms != best.paused_until_ms {
        Some(Behind::Paused { until_ms: evidence.paused_until_ms })
    } else {
        Some(Behind::Engine)
    }
}

/// A node in the draw.
struct DrawEntry {
    node: NodeId,
    proven: bool,
    /// The weight of all its offers together.
    weight: f64,
    /// Offers in the draw.
    offers: u32,
}

/// Gives each fitting row its share, or the reason for having none.
fn draw(rows: &mut [OfferAssessment<'_>], fitting: &[Fit], candidates: &[Candidate<'_>], wish: &Wish<'_>) {
    let Some(best) = fitting.iter().map(|fit| fit.class).min() else { return };
    let best_score = fitting
        .iter()
        .filter(|fit| fit.class == best)
        .filter_map(|fit| Some(ranked(rows.get(fit.row)?)?.factors.score()))
        .fold(0.0, f64::max);
    let mut drawn: Vec<DrawEntry> = Vec::new();
    for fit in fitting {
        let Some(row) = rows.get_mut(fit.row) else { continue };
        let node = row.record.node;
        let Verdict::Ranked(ranked) = &mut row.verdict else { continue };
        let candidate = candidates.iter().find(|candidate| candidate.record.node == node);
        ranked.behind = candidate.and_then(|candidate| behind(candidate, &fit.class, &best, wish));
        if ranked.behind.is_none() && ranked.factors.score() < best_score * GOOD_PART {
            ranked.behind = Some(Behind::Score);
        }
        if ranked.behind.is_some() {
            continue;
        }
        match drawn.last_mut().filter(|last| last.node == node) {
            // Many offers count no more than one: a node has the mean of their weights.
            Some(last) => {
                let offers = f64::from(last.offers);
                last.weight = (last.weight * offers + ranked.factors.weight()) / (offers + 1.0);
                last.offers += 1;
            }
            None => {
                let weight = ranked.factors.weight();
                drawn.push(DrawEntry { node, proven: fit.proven, weight, offers: 1 });
            }
        }
    }
    bound(&mut drawn);
    let total: f64 = drawn.iter().map(|drawn| drawn.weight).sum();
    for row in rows {
        let Verdict::Ranked(ranked) = &mut row.verdict else { continue };
        let in_draw = drawn.iter().find(|drawn| ranked.behind.is_none() && drawn.node == row.record.node);
        ranked.share = in_draw.map_or(0.0, |drawn| drawn.weight / total / f64::from(drawn.offers));
    }
}

fn ranked<'a>(row: &'a OfferAssessment<'_>) -> Option<&'a OfferRank> {
    match &row.verdict {
        Verdict::Ranked(ranked) => Some(ranked),
        Verdict::Excluded(_) => None,
    }
}

/// Reduces shares of the draw that exceed the limits.
fn bound(drawn: &mut [DrawEntry]) {
    let of = |drawn: &[DrawEntry], proven: bool| -> f64 {
        drawn.iter().filter(|drawn| drawn.proven == proven).map(|drawn| drawn.weight).sum()
    };
    let (proven, new) = (of(drawn, true), of(drawn, false));
    let most = proven * UNPROVEN_SHARE / (1.0 - UNPROVEN_SHARE);
    if proven > 0.0 && new > most {
        for unproven in drawn.iter_mut().filter(|drawn| !drawn.proven) {
            unproven.weight *= most / new;
        }
    }
    let total: f64 = drawn.iter().map(|drawn| drawn.weight).sum();
    if drawn.len() < 2 {
        return;
    }
    // At most one node can have more than half.
    if let Some(largest) = drawn.iter_mut().find(|drawn| drawn.weight > total * MAX_SHARE) {
        largest.weight = (total - largest.weight) * MAX_SHARE / (1.0 - MAX_SHARE);
    }
}
