//! A table with a limit.

use std::{collections::HashMap, hash::Hash};

/// Keys of every table of this crate whose size no other limit bounds; some hundred bytes each at most.
pub const MAX_KEYS: usize = 4096;
/// Entries that are evicted at once, so that a flood of new keys does not scan a full table for each.
const EVICTED_AT_ONCE: usize = MAX_KEYS / 8;

/// At most [`MAX_KEYS`] entries.
#[derive(Debug, Clone)]
pub struct BoundedMap<K, V>(HashMap<K, V>);

impl<K, V> Default for BoundedMap<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Default> BoundedMap<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    /// The value of a key, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// The entry of a key, perhaps a new one. A full table first loses an eighth of its entries: those with the least
    /// worth.
    pub fn entry<W: Ord + Copy>(&mut self, key: K, worth: impl Fn(&V) -> W) -> &mut V {
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(&key) {
            let mut all: Vec<W> = self.0.values().map(&worth).collect();
            let (_, most, _) = all.select_nth_unstable(EVICTED_AT_ONCE);
            let (most, mut left) = (*most, EVICTED_AT_ONCE);
            self.0.retain(|_, value| {
                let goes = left > 0 && worth(value) <= most;
                left -= usize::from(goes);
                !goes
            });
        }
        self.0.entry(key).or_default()
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_loses_the_least_worth_and_stays_bounded() {
        let mut table = BoundedMap::<usize, usize>::default();
        for key in 0..3 * MAX_KEYS {
            // Every tenth is worth more than all others.
            *table.entry(key, |worth| *worth) = if key % 10 == 0 { key + 100_000 } else { key };
            assert!(table.len() <= MAX_KEYS);
        }
        assert!((0..3 * MAX_KEYS).step_by(10).all(|key| table.get(&key).is_some()));
        assert!(table.get(&1).is_none() && table.get(&(3 * MAX_KEYS - 1)).is_some());
    }
}
