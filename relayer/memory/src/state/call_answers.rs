//! The latest calls with idempotency keys and their answers, so that a repeated call is recognised.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::{ids::ItemId, limits::MAX_CALL_ANSWERS};

/// The answers to the latest calls with idempotency keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct CallAnswers {
    /// By event number: key, call and answer.
    calls: BTreeMap<u64, ([u8; 32], [u8; 32], ItemId)>,
    numbers: HashMap<[u8; 32], u64>,
}

impl CallAnswers {
    pub(super) fn add(&mut self, number: u64, key: [u8; 32], call: [u8; 32], item: ItemId) {
        if let Some(before) = self.numbers.insert(key, number) {
            self.calls.remove(&before);
        }
        self.calls.insert(number, (key, call, item));
        while self.calls.len() > MAX_CALL_ANSWERS {
            if let Some((_, (key, ..))) = self.calls.pop_first() {
                self.numbers.remove(&key);
            }
        }
    }

    /// The events of calls whose answer is this item.
    pub(super) fn about(&self, item: ItemId) -> impl Iterator<Item = u64> {
        self.calls.iter().filter(move |(_, (.., answer))| *answer == item).map(|(number, _)| *number)
    }

    pub(super) fn forget(&mut self, item: ItemId) {
        for number in self.about(item).collect::<Vec<_>>() {
            if let Some((key, ..)) = self.calls.remove(&number) {
                self.numbers.remove(&key);
            }
        }
    }

    /// The call with a key, and its answer.
    pub(super) fn of(&self, key: &[u8; 32]) -> Option<([u8; 32], ItemId)> {
        let (_, call, item) = self.calls.get(self.numbers.get(key)?)?;
        Some((*call, *item))
    }
}
