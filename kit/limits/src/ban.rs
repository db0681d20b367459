//! Points for misbehaviour, which fade, and bans of growing length.

use std::hash::Hash;

use crate::bounded_map::BoundedMap;

/// Half-life of points: a bad minute is nearly forgotten within half an hour.
pub(crate) const HALF_LIFE_MS: u64 = 3 * 60_000;
/// Length of the first ban.
pub const FIRST_BAN_MS: u64 = 2 * 60_000;
/// Maximum length of a ban.
pub const LONGEST_BAN_MS: u64 = 3_600_000;
/// A time without a ban after which the next ban grows one step less.
const BAN_MEMORY_MS: u64 = 3_600_000;
/// Tolerance for a peer that comes back before its retry time: two clocks, and the network delay.
const EARLY_SLACK_MS: u64 = 50;
/// Time until a refused peer has received its retry time. Requests already in transit do not count against it.
const HEARD_AFTER_MS: u64 = 500;

/// Points and bans by key; at most [`MAX_KEYS`](crate::MAX_KEYS). When full, keys that are not banned and have the
/// fewest points go.
#[derive(Debug, Clone)]
pub(crate) struct Bans<K>(BoundedMap<K, Conduct>);

impl<K> Default for Bans<K> {
    fn default() -> Self {
        Self(BoundedMap::default())
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Conduct {
    points: u32,
    at_ms: u64,
    bans: u32,
    banned_until_ms: u64,
    /// Number of visits during the ban.
    visits: u32,
    /// The retry time that it was told, and when it has heard it.
    retry: Option<RetryNotice>,
}

#[derive(Debug, Clone, Copy)]
struct RetryNotice {
    heard_ms: u64,
    again_ms: u64,
}

/// Faded points: halved after each half-life, linear in between.
fn faded(points: u32, elapsed_ms: u64) -> u32 {
    let halvings = u32::try_from(elapsed_ms / HALF_LIFE_MS).unwrap_or(u32::MAX);
    let points = points.checked_shr(halvings).unwrap_or(0);
    let lost = u64::from(points) * (elapsed_ms % HALF_LIFE_MS) / (2 * HALF_LIFE_MS);
    points - u32::try_from(lost).unwrap_or(points)
}

impl Conduct {
    fn points(&self, now_ms: u64) -> u32 {
        faded(self.points, now_ms.saturating_sub(self.at_ms))
    }

    fn set(&mut self, points: u32, now_ms: u64) {
        self.points = points;
        self.at_ms = self.at_ms.max(now_ms);
    }
}

impl<K: Copy + Eq + Hash> Bans<K> {
    fn entry(&mut self, key: K, now_ms: u64) -> &mut Conduct {
        self.0.entry(key, |conduct| (conduct.banned_until_ms > now_ms, conduct.points(now_ms)))
    }

    pub(crate) fn points(&self, key: &K, now_ms: u64) -> u32 {
        self.0.get(key).map_or(0, |conduct| conduct.points(now_ms))
    }

    /// Adds points up to the maximum `most`. Returns the current points.
    pub(crate) fn add(&mut self, key: K, points: u32, most: u32, now_ms: u64) -> u32 {
        let conduct = self.entry(key, now_ms);
        let total = conduct.points(now_ms).saturating_add(points).min(most);
        conduct.set(total, now_ms);
        total
    }

    /// Removes points.
    pub(crate) fn forgive(&mut self, key: &K, points: u32, now_ms: u64) {
        if let Some(conduct) = self.0.get_mut(key) {
            conduct.set(conduct.points(now_ms).saturating_sub(points), now_ms);
        }
    }

    /// Bans a key, which keeps `probation` points. Returns the length of the ban.
    pub(crate) fn ban(&mut self, key: K, probation: u32, now_ms: u64) -> u64 {
        let conduct = self.entry(key, now_ms);
        let quiet = now_ms.saturating_sub(conduct.banned_until_ms) / BAN_MEMORY_MS;
        let before = conduct.bans.saturating_sub(u32::try_from(quiet).unwrap_or(u32::MAX));
        let span = FIRST_BAN_MS.checked_shl(before.min(16)).unwrap_or(LONGEST_BAN_MS).min(LONGEST_BAN_MS);
        conduct.bans = before.saturating_add(1);
        conduct.banned_until_ms = now_ms.saturating_add(span);
        conduct.visits = 0;
        conduct.set(probation, now_ms);
        span
    }

    /// The remaining time of a ban.
    pub(crate) fn banned_for(&self, key: &K, now_ms: u64) -> Option<u64> {
        self.0.get(key)?.banned_until_ms.checked_sub(now_ms).filter(|left| *left > 0)
    }

    /// Counts a visit during a ban. Returns the number of visits.
    pub(crate) fn visited_in_ban(&mut self, key: &K) -> u32 {
        self.0.get_mut(key).map_or(0, |conduct| {
            conduct.visits = conduct.visits.saturating_add(1);
            conduct.visits
        })
    }

    /// Notes that a key is told to come again later. Returns whether it came before the time that it was told earlier.
    pub(crate) fn is_early(&mut self, key: K, retry_after_ms: u32, now_ms: u64) -> bool {
        let conduct = self.entry(key, now_ms);
        if let Some(told) = conduct.retry.filter(|told| now_ms < told.again_ms) {
            return now_ms >= told.heard_ms && now_ms.saturating_add(EARLY_SLACK_MS) < told.again_ms;
        }
        let again_ms = now_ms.saturating_add(retry_after_ms.into());
        conduct.retry = Some(RetryNotice { heard_ms: now_ms.saturating_add(HEARD_AFTER_MS), again_ms });
        false
    }

    /// Notes that a key need not come later.
    pub(crate) fn admitted(&mut self, key: &K) {
        if let Some(conduct) = self.0.get_mut(key) {
            conduct.retry = None;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn points_fade_and_never_grow(points in 0u32..10_000, first in 0u64..40 * HALF_LIFE_MS, more in 0u64..HALF_LIFE_MS) {
            prop_assert!(faded(points, first + more) <= faded(points, first));
            prop_assert_eq!(faded(points, HALF_LIFE_MS), points / 2);
            prop_assert_eq!(faded(points, 40 * HALF_LIFE_MS), 0);
        }
    }
}
