//! Random choices of decoys. A seed repeats them in tests; they are not for secrets.

use std::time::Duration;

/// A pseudo-random sequence from a seed (SplitMix64, by Steele, Lea and Flood).
#[derive(Clone, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    /// The sequence of a seed.
    #[cfg(test)]
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own.
    pub(crate) fn random() -> Self {
        Self(u64::from_le_bytes(baton_keys::secret::random_bytes()))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..limit`; 0 if that is empty.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let drawn = self.next().checked_rem(limit as u64).unwrap_or(0);
        usize::try_from(drawn).unwrap_or(0)
    }

    /// One of the choices; none if there are none.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let index = self.below(choices.len());
        choices.get(index).copied()
    }

    /// Whether an event of probability `part` in `whole` happens.
    pub(crate) fn happens(&mut self, part: usize, whole: usize) -> bool {
        self.below(whole) < part
    }

    /// A time between two others, to the millisecond.
    pub(crate) fn time_between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + Duration::from_millis(self.next() % span.saturating_add(1).max(1))
    }
}
