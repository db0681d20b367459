//! Scores a node for a turn by measurements and price. Every factor has bounds, so that none of them decides
//! alone.

use super::{BELIEVED_SLOTS, Candidate, Speed};

/// A node that was never asked counts as having served this many turns...
const PRIOR_SERVED: f64 = 8.0;
/// ...and failed this many times: then one more failure weighs little for a serving node, and little for an
/// unproven one.
const PRIOR_FAILED: f64 = 1.0;
/// Weight of the median of all measured nodes, in turns, beside a node's own measurements: one long prompt
/// makes no node slow.
const PRIOR_TURNS: f64 = 8.0;
/// Length of the answer for comparing speeds: a paragraph or two.
const TYPICAL_TOKENS: f64 = 200.0;
/// Assumed speed of a node whose answers were too short to measure.
const ASSUMED_TOKENS_PER_SECOND: f64 = 20.0;
/// Lowest speed factor, five times slower than the median: a slower node is out of the draw anyway.
const MIN_SPEED: f64 = 0.2;
/// Highest speed factor: being faster than the others by more than a quarter gains nothing. Otherwise one
/// fast machine would get all clients.
const MAX_SPEED: f64 = 1.25;
/// Lowest price factor: the price limit is the user's protection against expensive nodes.
const MIN_PRICE: f64 = 0.6;
/// Divisor of the price limit; below that part of it prices hardly differ.
const PRICE_GRAIN: u64 = 100;
/// The assumed limit if there is none.
const ASSUMED_MAX_PRICE: u64 = super::DEFAULT_MAX_PRICE;
/// Factor in the draw for the node that just read this conversation. It neither brings a bad node into the
/// draw nor drives a good one out.
const WARM_BONUS: f64 = 2.0;

/// The factors of a score. A factor of 1 makes no difference; `success` is always below 1.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Factors {
    /// Expected success rate to the power of three: a failed attempt costs more than its own time.
    pub success: f64,
    /// Time of a typical answer, compared with the median of all measured nodes; 0.2 to 1.25.
    pub speed: f64,
    /// This client's own turns there, and its busy answers; at most 1.
    pub load: f64,
    /// Price, compared with the lowest; 0.6 to 1.
    pub price: f64,
    /// 2 for the node that just served the previous turn.
    pub warm: f64,
}

impl Factors {
    /// The score, which decides whether it is in the draw.
    #[must_use]
    pub fn score(&self) -> f64 {
        self.success * self.speed * self.load * self.price
    }

    /// The weight in the draw.
    pub(super) fn weight(&self) -> f64 {
        self.score() * self.warm
    }
}

/// The common reference for the candidates of one choice.
pub(super) struct Reference {
    /// Median time of a typical answer in milliseconds over the measured nodes, the lower of two; none if
    /// none was measured.
    expected_ms: Option<f64>,
    /// The lowest price.
    cheapest: u64,
    /// Prices that differ by less than this hardly differ.
    grain: u64,
}

impl Reference {
    /// From the nodes' speeds and all offers' prices.
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

    /// The factors of one offer.
    pub(super) fn factors(&self, candidate: &Candidate<'_>, price: u64, warm: bool) -> Factors {
        let evidence = &candidate.evidence;
        let rate = (evidence.served + PRIOR_SERVED)
            / (evidence.served + evidence.failed + PRIOR_SERVED + PRIOR_FAILED);
        // The number of slots is the node's claim.
        let slots = f64::from(candidate.record.limits.slots.clamp(1, BELIEVED_SLOTS));
        let load = 1.0 / ((1.0 + f64::from(candidate.in_flight) / slots) * (1.0 + evidence.busy));
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

/// Milliseconds of a typical answer.
fn expected_ms(speed: &Speed) -> f64 {
    let rate = speed.tokens_per_second.unwrap_or(ASSUMED_TOKENS_PER_SECOND);
    // Never zero, so that two values can be compared.
    (speed.first_token_ms + TYPICAL_TOKENS * 1000.0 / rate.max(0.01)).max(1.0)
}
