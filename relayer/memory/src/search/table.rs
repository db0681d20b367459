//! A map between numbers that can be wiped: the standard map leaves keys in freed memory.
//!
//! Open addressing with linear probing (Knuth, "The art of computer programming", volume 3, 6.4). An attacker
//! cannot slow it by chosen keys: they are keyed hashes or consecutive numbers.

use zeroize::Zeroize as _;

/// Value of a free slot.
const FREE: u32 = u32::MAX;
/// Least slots of a map that is not empty.
const LEAST: usize = 16;
/// An odd number near 2^64 over the golden ratio: it spreads consecutive numbers (ibid., "Fibonacci
/// hashing").
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers to numbers. Wiped on growth, removal and drop.
#[derive(Default)]
pub(super) struct Table {
    /// Slots: a power of two, or none.
    slots: Vec<(u64, u32)>,
    used: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Its bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<(u64, u32)>()
    }

    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let (_, value) = self.slots.get(self.find(key)?)?;
        (*value != FREE).then_some(*value)
    }

    /// The value of a key; inserts `value` if the key is new.
    pub(super) fn get_or_insert(&mut self, key: u64, value: u32) -> u32 {
        if let Some(there) = self.get(key) {
            return there;
        }
        self.insert(key, value);
        value
    }

    /// Sets a key's value, which must not be `u32::MAX`.
    pub(super) fn insert(&mut self, key: u64, value: u32) {
        debug_assert!(value != FREE, "it would be a free slot");
        // At most three quarters full, so that a search soon finds a free slot.
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let Some(at) = self.find(key) else { return };
        self.used += usize::from(self.slots[at].1 == FREE);
        self.slots[at] = (key, value);
    }

    /// Removes a key and moves later entries up, so that no tombstone is left.
    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        let mut hole = self.find(key).filter(|at| self.slots[*at].1 != FREE)?;
        let value = self.slots[hole].1;
        let last = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & last;
            let (other, there) = self.slots[at];
            if there == FREE {
                break;
            }
            // It may move if its home slot is not between the hole and its present slot.
            let own = self.home_slot(other);
            if at.wrapping_sub(own) & last >= at.wrapping_sub(hole) & last {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (0, FREE);
        self.used -= 1;
        Some(value)
    }

    /// The home slot of a key.
    fn home_slot(&self, key: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        usize::try_from(key.wrapping_mul(SPREAD) >> (64 - bits)).expect("fewer bits than slots have")
    }

    /// The slot of a key, or the free slot for it.
    fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let last = self.slots.len() - 1;
        let mut at = self.home_slot(key);
        while self.slots[at].1 != FREE && self.slots[at].0 != key {
            at = (at + 1) & last;
        }
        Some(at)
    }

    fn grow(&mut self) {
        let room = (self.slots.len() * 2).max(LEAST);
        let mut old = std::mem::replace(&mut self.slots, vec![(0, FREE); room]);
        for (key, value) in old.iter().filter(|(_, value)| *value != FREE) {
            let at = self.find(*key).expect("there are slots");
            self.slots[at] = (*key, *value);
        }
        wipe(&mut old);
    }
}

fn wipe(slots: &mut [(u64, u32)]) {
    for (key, value) in slots {
        key.zeroize();
        value.zeroize();
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        wipe(&mut self.slots);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Colliding and other keys, inserted and removed in any order.
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((0_u64..60, 0_u32..9, any::<bool>()), 0..300)) {
            let mut table = Table::default();
            let mut map = HashMap::new();
            for (key, value, puts) in steps {
                // The inverse of the factor: these keys share four home slots.
                let key = if key % 2 == 0 { key } else { (((key % 4) << 62) | key).wrapping_mul(0xf1de_83e1_9937_733d) };
                if puts {
                    table.insert(key, value);
                    map.insert(key, value);
                } else {
                    prop_assert_eq!(table.remove(key), map.remove(&key));
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for (key, value) in &map {
                prop_assert_eq!(table.get(*key), Some(*value));
                prop_assert_eq!(table.get_or_insert(*key, 77), *value);
            }
            prop_assert_eq!(table.get(1_000_003), None);
            let left = table.slots.iter().filter(|slot| slot.1 == FREE);
            prop_assert!(left.clone().all(|slot| slot.0 == 0) && table.len() + left.count() == table.slots.len());
        }
    }

    #[test]
    fn f1_what_is_taken_out_leaves_no_key() {
        let mut table = Table::default();
        assert!(table.is_empty() && table.get(5).is_none() && table.remove(5).is_none());
        for key in 1..=12 {
            assert_eq!(table.get_or_insert(key, 3), 3);
        }
        assert!(table.bytes() >= 16 * 16);
        for key in 1..=12 {
            assert_eq!(table.remove(key), Some(3));
        }
        assert!(table.is_empty() && table.slots.iter().all(|slot| *slot == (0, FREE)));
        table.insert(9, 1);
        wipe(&mut table.slots);
        assert!(table.slots.iter().all(|slot| *slot == (0, 0)));
    }
}
