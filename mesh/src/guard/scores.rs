//! Decaying points, and bans of growing length. Pure.

use std::{collections::HashMap, hash::Hash};

/// Half-life of points: a bad minute is nearly forgotten within half an hour.
pub(super) const HALF_LIFE_MS: u64 = 3 * 60_000;
/// Length of the first ban.
pub(super) const FIRST_BAN_MS: u64 = 2 * 60_000;
/// Maximum length of a ban.
pub(super) const LONGEST_BAN_MS: u64 = 3_600_000;
/// A time without a ban after which the next ban grows one step less.
pub(super) const BAN_MEMORY_MS: u64 = 3_600_000;
/// Maximum number of keys with points; some sixty bytes each. Keys with the fewest points go first.
pub(super) const MAX_SCORES: usize = 4096;

/// Points by key.
#[derive(Debug)]
pub(super) struct Scores<K> {
    entries: HashMap<K, Score>,
}

impl<K> Default for Scores<K> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Score {
    points: u32,
    at_ms: u64,
    bans: u32,
    banned_until_ms: u64,
    /// Number of visits during the ban.
    came: u32,
}

/// Decayed points: halved after each half-life, linear in between.
pub(super) fn faded(points: u32, elapsed_ms: u64) -> u32 {
    let halvings = u32::try_from(elapsed_ms / HALF_LIFE_MS).unwrap_or(u32::MAX);
    let points = points.checked_shr(halvings).unwrap_or(0);
    let lost = u64::from(points) * (elapsed_ms % HALF_LIFE_MS) / (2 * HALF_LIFE_MS);
    points - u32::try_from(lost).unwrap_or(points)
}

impl Score {
    fn points(&self, now_ms: u64) -> u32 {
        faded(self.points, now_ms.saturating_sub(self.at_ms))
    }

    fn set(&mut self, points: u32, now_ms: u64) {
        self.points = points;
        self.at_ms = self.at_ms.max(now_ms);
    }
}

impl<K: Copy + Eq + Hash> Scores<K> {
    pub(super) fn points(&self, key: &K, now_ms: u64) -> u32 {
        self.entries.get(key).map_or(0, |score| score.points(now_ms))
    }

    /// Adds points up to the maximum `most`. Returns the current points.
    pub(super) fn add(&mut self, key: K, points: u32, most: u32, now_ms: u64) -> u32 {
        self.make_room(&key, now_ms);
        let score = self.entries.entry(key).or_default();
        let total = score.points(now_ms).saturating_add(points).min(most);
        score.set(total, now_ms);
        total
    }

    /// Removes points.
    pub(super) fn forgive(&mut self, key: &K, points: u32, now_ms: u64) {
        if let Some(score) = self.entries.get_mut(key) {
            score.set(score.points(now_ms).saturating_sub(points), now_ms);
        }
    }

    /// Bans a key that has points. Returns the length of the ban.
    pub(super) fn ban(&mut self, key: &K, probation: u32, now_ms: u64) -> u64 {
        let Some(score) = self.entries.get_mut(key) else { return 0 };
        let quiet = now_ms.saturating_sub(score.banned_until_ms) / BAN_MEMORY_MS;
        let before = score.bans.saturating_sub(u32::try_from(quiet).unwrap_or(u32::MAX));
        let span = FIRST_BAN_MS.checked_shl(before.min(16)).unwrap_or(LONGEST_BAN_MS).min(LONGEST_BAN_MS);
        score.bans = before.saturating_add(1);
        score.banned_until_ms = now_ms.saturating_add(span);
        score.came = 0;
        score.set(probation, now_ms);
        span
    }

    /// The remaining time of a ban.
    pub(super) fn banned_for(&self, key: &K, now_ms: u64) -> Option<u64> {
        let score = self.entries.get(key)?;
        score.banned_until_ms.checked_sub(now_ms).filter(|left| *left > 0)
    }

    /// Counts a visit during a ban. Returns the number of visits.
    pub(super) fn came_in_ban(&mut self, key: &K) -> u32 {
        self.entries.get_mut(key).map_or(0, |score| {
            score.came = score.came.saturating_add(1);
            score.came
        })
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn make_room(&mut self, key: &K, now_ms: u64) {
        if self.entries.len() < MAX_SCORES || self.entries.contains_key(key) {
            return;
        }
        let worth = |score: &Score| (score.banned_until_ms > now_ms, score.points(now_ms));
        let mut all: Vec<_> = self.entries.values().map(worth).collect();
        // Removes an eighth at once, so that a flood of fresh keys does not scan the table for each key.
        let mut left = MAX_SCORES / 8;
        let (_, least, _) = all.select_nth_unstable(left);
        let least = *least;
        self.entries.retain(|_, score| {
            let goes = left > 0 && worth(score) <= least;
            left -= usize::from(goes);
            !goes
        });
    }
}
