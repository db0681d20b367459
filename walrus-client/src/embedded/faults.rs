//! Faults that the store's HTTP side shows on purpose, so that clients can be tested against what real stores do.
//!
//! Owns the plan ([`FaultPlan`]), its text form, and which fault a request meets. The decision is a pure function of
//! the seed, the rule and the number of the request among those of its kind, so a run with one client at a time can
//! be repeated exactly. `inject` acts on the decision. Nothing here changes what is stored.
//!
//! The text form, as `baton-testnet store --faults` and `PUT /admin/faults` take it:
//!
//! ```text
//! plan     = preset | rule *( "," rule ) [ ";seed=" number ]
//! preset   = "none" | "store" | "hostile"
//! rule     = route ":" fault
//! route    = "put" | "get" | "head" | "quilt" | "any"
//! fault    = plain [ ( "=" | "@" ) share ] | timed "=" duration [ "@" share ]
//! plain    = "500" | "503" | "429" | "504" | "truncated" | "oversized" | "endless"
//!          | "wrong-bytes" | "wrong-id" | "answer-lost"
//! timed    = "404-after-put" | "slow" | "drip"
//! share    = a number from 0 to 1: how many of the requests meet it; 1 when left out
//! duration = number ( "ms" | "s" | "m" )
//! ```
//!
//! For example `put:500=0.1,get:404-after-put=3s,any:slow=200ms@0.05;seed=7`. A request meets the first rule, in
//! the order of the text, that fits its kind and is drawn.

mod active;
mod inject;
mod text;

use std::time::Duration;

pub(super) use active::Faults;
pub(super) use inject::inject;
pub use text::FaultPlanError;

/// Most rules of a plan: each is drawn for every request.
pub const MAX_FAULT_RULES: usize = 64;

/// Which faults the store shows. The default shows none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FaultPlan {
    /// What the decisions are drawn from, together with the number of the request.
    pub seed: u64,
    /// The rules, in the order in which they are tried. Those beyond [`MAX_FAULT_RULES`] are not.
    pub rules: Vec<FaultRule>,
}

/// One kind of fault for one kind of request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRule {
    /// The requests it is for.
    pub route: FaultRoute,
    /// What happens to them.
    pub fault: Fault,
    /// To what part of them, from 0 (none) to 1 (all).
    pub share: f64,
}

/// A kind of request. Each request of Walrus's routes is of exactly one kind; the others (`/status`, `/v1/api` and
/// Baton's head index) never meet a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultRoute {
    /// PUT of a blob.
    Put,
    /// GET of a blob, by whatever ID, and of several (`concat`).
    Get,
    /// HEAD of anything.
    Head,
    /// PUT and GET of quilts and their patches.
    Quilt,
    /// All of these.
    Any,
}

/// What happens to a request. A fault that makes no sense for a request (bytes of an answer to HEAD, the ID in an
/// answer to GET) is not drawn for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Reads of a blob are answered 404 BLOB_NOT_FOUND for so long after the first PUT that stored it, as from a
    /// cache that remembers the blob's absence. The share is that of the blobs, and the same for all their reads.
    NotFoundAfterPut(Duration),
    /// 500 INTERNAL_ERROR; nothing is stored.
    Internal,
    /// 503 BLOB_UNAVAILABLE; nothing is stored.
    Unavailable,
    /// 429 in plain text, as Walrus sheds load; nothing is stored.
    TooMany,
    /// 504: INSUFFICIENT_CONFIRMATIONS for a PUT, a proxy's plain text for a read; nothing is stored.
    GatewayTimeout,
    /// The request is served, and its answer begins so much later.
    Slow(Duration),
    /// The request is served, and the body of its answer comes in small pieces over so long a time.
    Drip(Duration),
    /// The answer promises its whole length, and the connection is cut halfway. A PUT has been stored.
    Truncated,
    /// The answer is twice as long, and one byte.
    Oversized,
    /// The answer has no length and does not end before 1 GiB.
    Endless,
    /// One byte of the answer is another one.
    WrongBytes,
    /// The answer to a PUT names other IDs than the true ones. The blob has been stored.
    WrongId,
    /// The request is served (a PUT is stored and on disk), and the connection cut before any byte of the answer.
    AnswerLost,
}

impl Fault {
    /// Whether it can be shown to a request of this kind.
    fn fits(self, route: FaultRoute, reads: bool) -> bool {
        match self {
            Self::NotFoundAfterPut(_) => reads,
            Self::WrongId => !reads,
            Self::Truncated | Self::Oversized | Self::Endless | Self::WrongBytes | Self::Drip(_) => {
                route != FaultRoute::Head
            }
            _ => true,
        }
    }
}

impl FaultRoute {
    /// Whether a rule for `self` is for a request of kind `other`.
    fn covers(self, other: Self) -> bool {
        self == Self::Any || self == other
    }
}

/// A number that looks random, from the seed, the rule and what is drawn for: in [0, 1).
fn draw(seed: u64, rule: u64, route: FaultRoute, subject: u64) -> f64 {
    let mut state = seed;
    for part in [rule, route as u64, subject] {
        state = mix(state ^ mix(part.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    }
    #[expect(clippy::cast_precision_loss, reason = "53 bits are all that a share needs")]
    let drawn = (state >> 11) as f64 / (1u64 << 53) as f64;
    drawn
}

/// SplitMix64's finalizer: every bit of the input changes about half of the output's.
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_differ_by_seed_rule_and_route() {
        let count =
            |seed, rule, route| (0..10_000).filter(|number| draw(seed, rule, route, *number) < 0.1).count();
        for (seed, rule, route) in [
            (0, 0, FaultRoute::Put),
            (1, 0, FaultRoute::Put),
            (0, 1, FaultRoute::Put),
            (0, 0, FaultRoute::Get),
        ] {
            assert!((900..1100).contains(&count(seed, rule, route)), "{seed} {rule} {route:?}");
        }
        let numbers = |seed, rule, route| -> Vec<u64> {
            (0..100).filter(|number| draw(seed, rule, route, *number) < 0.5).collect()
        };
        let base = numbers(7, 0, FaultRoute::Put);
        assert_eq!(base, numbers(7, 0, FaultRoute::Put));
        for other in
            [numbers(8, 0, FaultRoute::Put), numbers(7, 1, FaultRoute::Put), numbers(7, 0, FaultRoute::Get)]
        {
            assert_ne!(base, other);
        }
    }
}
