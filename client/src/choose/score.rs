//! How good a node is for a turn, by what was measured and by its price. Every factor has bounds, so that none of them
//! can decide alone.

use super::{BELIEVED_SLOTS, Evidence, Speed};

/// A node that was never asked counts as one that served so many turns...
const PRIOR_SERVED: f64 = 8.0;
/// ...and failed so many times: a failure more weighs then little for a node that serves, and little for a newcomer.
const PRIOR_FAILED: f64 = 1.0;
/// Measured turns that the middle of all measured nodes weighs beside a node's own: one long prompt makes nobody slow.
const PRIOR_TURNS: f64 = 8.0;
/// The answer by which speeds are compared: a paragraph or two.
const TYPICAL_TOKENS: f64 = 200.0;
/// Speed of a node whose answers were too short to tell.
const ASSUMED_TOKENS_PER_SECOND: f64 = 20.0;
/// Slower than five times the middle makes no difference any more: such a node is out of the draw anyway.
const MIN_SPEED: f64 = 0.2;
/// Being faster than the others by more than a quarter gains nothing: otherwise one fast machine had everybody.
const MAX_SPEED: f64 = 1.25;
/// A dear node keeps so much of its score: the price limit is the user's means against dear ones.
const MIN_PRICE: f64 = 0.6;
/// The part of the price limit below which prices hardly differ.
const PRICE_GRAIN: u64 = 100;
/// What the limit is taken for where there is none.
const ASSUMED_MAX_PRICE: u64 = crate::config::DEFAULT_MAX_PRICE;
/// The node that read this conversation a moment ago weighs so many times as much in the draw. It neither brings a bad node
/// into the draw nor drives a good one out.
const WARM_BONUS: f64 = 2.0;

/// What a score is made of; each factor is 1 where it makes no difference, but for `success`, which is below 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// Expected part of turns that succeed, to the power of three: a failed attempt costs more than its own time.
    pub success: f64,
    /// Time of a typical answer, compared with the middle of all measured nodes; 0.2 to 1.25.
    pub speed: f64,
    /// This client's own turns there, and answers that the node is busy; at most 1.
    pub load: f64,
    /// Price, compared with the cheapest one; 0.6 to 1.
    pub price: f64,
    /// 2 for the node that served the turn before a moment ago.
    pub warm: f64,
}

impl Factors {
    /// The score, by which it is decided who is in the draw.
    #[must_use]
    pub fn score(&self) -> f64 {
        self.success * self.speed * self.load * self.price
    }

    /// The weight in the draw.
    pub(super) fn weight(&self) -> f64 {
        self.score() * self.warm
    }
}

/// What the candidates of one choice are compared with.
pub(super) struct Reference {
    /// Milliseconds of a typical answer at the middle one of the measured nodes, the faster of two; none measured, none.
    expected_ms: Option<f64>,
    /// The lowest price.
    cheapest: u64,
    /// Prices that differ by less hardly differ.
    grain: u64,
}

impl Reference {
    /// Of the nodes' speeds, and of all offers' prices.
    pub(super) fn new(
        speeds: impl Iterator<Item = Speed>,
        prices: impl Iterator<Item = u64>,
        max_price: Option<u64>,
    ) -> Self {
        let mut times: Vec<f64> = speeds.map(|speed| expected_ms(&speed)).collect();
        times.sort_by(f64::total_cmp);
        Self {
            expected_ms: times.get(times.len().saturating_sub(1) / 2).copied(),
            cheapest: prices.min().unwrap_or(0),
            grain: (max_price.unwrap_or(ASSUMED_MAX_PRICE) / PRICE_GRAIN).max(1),
        }
    }

    /// The factors of one offer; `slots` as its node claims.
    pub(super) fn factors(
        &self,
        evidence: &Evidence,
        (in_flight, slots): (u32, u32),
        price: u64,
        warm: bool,
    ) -> Factors {
        let rate = (evidence.served + PRIOR_SERVED)
            / (evidence.served + evidence.failed + PRIOR_SERVED + PRIOR_FAILED);
        let slots = f64::from(slots.clamp(1, BELIEVED_SLOTS));
        let load = 1.0 / ((1.0 + f64::from(in_flight) / slots) * (1.0 + evidence.busy));
        Factors {
            success: rate * rate * rate,
            speed: self.speed(evidence.speed.as_ref()),
            load,
            price: self.price(price),
            warm: if warm { WARM_BONUS } else { 1.0 },
        }
    }

    fn speed(&self, speed: Option<&Speed>) -> f64 {
        let (Some(speed), Some(middle)) = (speed, self.expected_ms) else { return 1.0 };
        let own = (expected_ms(speed) * speed.turns + middle * PRIOR_TURNS) / (speed.turns + PRIOR_TURNS);
        (middle / own).clamp(MIN_SPEED, MAX_SPEED)
    }

    /// The square root makes twice the price less than twice as bad.
    fn price(&self, price: u64) -> f64 {
        let grain = self.grain as f64;
        ((self.cheapest as f64 + grain) / (price as f64 + grain)).sqrt().clamp(MIN_PRICE, 1.0)
    }
}

/// Milliseconds that a typical answer takes.
fn expected_ms(speed: &Speed) -> f64 {
    let rate = speed.tokens_per_second.unwrap_or(ASSUMED_TOKENS_PER_SECOND);
    // Never zero, so that two of them can be compared.
    (speed.first_token_ms + TYPICAL_TOKENS * 1000.0 / rate.max(0.01)).max(1.0)
}
