//! A number at once, in all and for each key.

use std::{collections::HashMap, hash::Hash};

/// Counts the uses that run. Only keys with a use have an entry, so the limit in all bounds the table.
#[derive(Debug, Clone)]
pub struct Shares<K> {
    most: usize,
    per_key: usize,
    all: usize,
    of: HashMap<K, usize>,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// At most this number in all and for each key.
    #[must_use]
    pub fn new(most: usize, per_key: usize) -> Self {
        Self { most, per_key, all: 0, of: HashMap::new() }
    }

    /// Takes one, if there is one. `None` counts in all alone.
    pub fn take(&mut self, key: Option<K>) -> bool {
        let may = self.all < self.most && self.has_share(key);
        if may {
            self.add(key);
        }
        may
    }

    /// Counts one that was admitted elsewhere, whatever the limits.
    pub fn add(&mut self, key: Option<K>) {
        self.all += 1;
        key.into_iter().for_each(|key| *self.of.entry(key).or_default() += 1);
    }

    /// Whether a key has less than its share.
    #[must_use]
    pub fn has_share(&self, key: Option<K>) -> bool {
        key.is_none_or(|key| self.of(&key) < self.per_key)
    }

    /// Gives one back that was taken for this key.
    pub fn give_back(&mut self, key: Option<K>) {
        self.all = self.all.saturating_sub(1);
        if let Some(key) = key
            && let Some(count) = self.of.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&key);
            }
        }
    }

    /// The uses of a key.
    #[must_use]
    pub fn of(&self, key: &K) -> usize {
        self.of.get(key).copied().unwrap_or_default()
    }

    /// The limit in all.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// All uses.
    #[must_use]
    pub fn all(&self) -> usize {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_has_its_share_and_others_the_rest() {
        let mut shares = Shares::new(4, 2);
        let taken = [1, 1, 1, 2, 2, 3].map(|key| shares.take(Some(key)));
        assert_eq!(taken, [true, true, false, true, true, false]);
        assert!(!shares.take(None), "all are in use");
        shares.give_back(Some(1));
        assert!(shares.take(None) && !shares.take(Some(1)));
    }

    proptest! {
        #[test]
        fn no_limit_is_exceeded_and_idle_keys_are_forgotten(steps in prop::collection::vec((0u8..6, any::<bool>()), 0..300)) {
            let (mut shares, mut held) = (Shares::new(7, 3), Vec::new());
            for (key, takes) in steps {
                let key = (key > 0).then_some(key);
                if takes && shares.take(key) {
                    held.push(key);
                } else if let Some(key) = held.pop() {
                    shares.give_back(key);
                }
                prop_assert!(shares.all() == held.len() && held.len() <= 7);
                prop_assert!(shares.of.values().all(|count| (1..=3).contains(count)));
            }
            held.into_iter().for_each(|key| shares.give_back(key));
            prop_assert!(shares.all() == 0 && shares.of.is_empty());
        }
    }
}
