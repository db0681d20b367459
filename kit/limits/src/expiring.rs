//! Marks that end by themselves: a peer that is shut out, a subnet that was served.

use std::hash::Hash;

use crate::bounded_map::BoundedMap;

/// Keys, each with the end of its mark; at most [`MAX_KEYS`](crate::MAX_KEYS). When full, the marks that end first go.
#[derive(Debug, Clone)]
pub struct Expiring<K>(BoundedMap<K, u64>);

impl<K> Default for Expiring<K> {
    fn default() -> Self {
        Self(BoundedMap::default())
    }
}

impl<K: Copy + Eq + Hash> Expiring<K> {
    /// Marks a key until a time.
    pub fn insert(&mut self, key: K, until_ms: u64) {
        *self.0.entry(key, |until_ms| *until_ms) = until_ms;
    }

    /// Whether a key is marked.
    #[must_use]
    pub fn has(&self, key: &K, now_ms: u64) -> bool {
        self.0.get(key).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// The number of marked keys.
    #[must_use]
    pub fn count(&self, now_ms: u64) -> usize {
        self.0.iter().filter(|(_, until_ms)| **until_ms > now_ms).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_KEYS;

    #[test]
    fn a_mark_holds_for_its_time_and_the_table_is_bounded() {
        let mut marks = Expiring::default();
        marks.insert(1, 1000);
        assert!(marks.has(&1, 999) && !marks.has(&1, 1000) && !marks.has(&2, 0));
        for key in 0..2 * MAX_KEYS {
            marks.insert(key, 500);
        }
        marks.insert(1, 2000);
        assert!(marks.count(0) <= MAX_KEYS && marks.count(500) == 1);
    }
}
