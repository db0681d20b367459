//! Deliberate faults of a store's HTTP side, which test clients against the behaviour of real stores.
//!
//! Owns the plan ([`FaultPlan`]), its text form, and the choice of a fault for a request. The choice is a
//! pure function of the seed, the rule, and the request's number within its kind. So a run with one client at
//! a time can be repeated exactly. [`Faults::around`] lays the plan over a store's routes. Nothing here changes
//! stored content.
//!
//! The text form, for `baton-testnet store --faults`:
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
//! duration = number ( "ms" | "s" | "m" | "h" | "d" )
//! ```
//!
//! For example `put:500=0.1,get:404-after-put=3s,any:slow=200ms@0.05;seed=7`. A request meets the first drawn
//! rule for its kind, in the order of the text.

mod active;
mod inject;
pub(crate) mod text;

use std::time::Duration;

pub use active::Faults;

use crate::draws::Draws;

/// Most rules of a plan: each is drawn for every request.
pub const MAX_FAULT_RULES: usize = 64;

/// The faults of the store. The default has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FaultPlan {
    /// The seed of the choices, beside the number of the request.
    pub seed: u64,
    /// The rules, in the order of tries.
    pub rules: Vec<FaultRule>,
}

/// One kind of fault for one kind of request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultRule {
    /// The requests that it affects.
    pub route: FaultRoute,
    /// The fault.
    pub fault: Fault,
    /// The affected share, from 0 (none) to 1 (all).
    pub share: f64,
}

/// A kind of request. Each request of Walrus's routes has exactly one kind. The others (`/status`, `/v1/api`
/// and Baton's head index) never meet a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultRoute {
    /// PUT of a blob.
    Put,
    /// GET of a blob by any ID, and of several (`concat`).
    Get,
    /// HEAD of any object.
    Head,
    /// PUT and GET of quilts and their patches.
    Quilt,
    /// All kinds.
    Any,
}

/// A fault of a request. A request never meets a fault that makes no sense for it, such as a changed body for
/// HEAD or a wrong ID for GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Reads of a blob get 404 BLOB_NOT_FOUND for this long after its first PUT, as from a cache of its
    /// absence. The share is one of blobs, and the same for all their reads.
    NotFoundAfterPut(Duration),
    /// 500 INTERNAL_ERROR; nothing is stored.
    Internal,
    /// 503 BLOB_UNAVAILABLE; nothing is stored.
    Unavailable,
    /// 429 in plain text, as Walrus sheds load; nothing is stored.
    TooMany,
    /// 504: INSUFFICIENT_CONFIRMATIONS for a PUT, a proxy's plain text for a read; nothing is stored.
    GatewayTimeout,
    /// The request is served, and its answer begins this much later.
    Slow(Duration),
    /// The request is served, and its answer's body arrives in small pieces over this time.
    Drip(Duration),
    /// The answer promises its whole length, but the connection breaks halfway. A PUT has been stored.
    Truncated,
    /// The answer is twice as long, plus one byte.
    Oversized,
    /// The answer has no length and does not end before 1 GiB.
    Endless,
    /// One byte of the answer is changed.
    WrongBytes,
    /// The answer to a PUT names wrong IDs. The blob has been stored.
    WrongId,
    /// The request is served (a PUT is stored and on disk), but the connection breaks before any byte of the
    /// answer.
    AnswerLost,
}

impl Fault {
    /// Whether a request of this kind can meet it.
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

/// A pseudorandom number in [0, 1) from the seed, the rule, the route and the subject.
fn draw(seed: u64, rule: u64, route: FaultRoute, subject: u64) -> f64 {
    let of_rule = Draws::of(seed, rule * 8 + route as u64 + 1).next();
    let drawn = Draws::of(of_rule, subject).next();
    #[expect(clippy::cast_precision_loss, reason = "53 bits are all that a share needs")]
    let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
    share
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
