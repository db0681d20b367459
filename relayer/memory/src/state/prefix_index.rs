//! Facts by their first words, so that a new fact is compared with few others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use zeroize::Zeroize as _;

use super::Entry;
use crate::{extraction::canonical, model::Kind};

/// First words that tell facts apart.
const WORDS: usize = 2;

/// Facts by their first words, and facts with a slot, which holds one value.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixIndex {
    by_words: HashMap<String, BTreeSet<u64>>,
    with_slot: BTreeSet<u64>,
}

fn prefix(text: &str) -> String {
    let canonical = zeroize::Zeroizing::new(canonical(text));
    canonical.split(' ').take(WORDS).collect::<Vec<_>>().join(" ")
}

impl PrefixIndex {
    pub(super) fn of(entries: &BTreeMap<u64, Entry>) -> Self {
        let mut index = Self::default();
        entries.iter().for_each(|(number, entry)| index.add(*number, entry));
        index
    }

    pub(super) fn add(&mut self, number: u64, entry: &Entry) {
        if entry.item.kind == Kind::Fact {
            self.by_words.entry(prefix(&entry.item.text)).or_default().insert(number);
            if entry.item.stable_key.is_some() {
                self.with_slot.insert(number);
            }
        }
    }

    pub(super) fn remove(&mut self, number: u64, entry: &Entry) {
        if entry.item.kind == Kind::Fact {
            let mut words = prefix(&entry.item.text);
            let left = self.by_words.get_mut(&words).map(|numbers| {
                numbers.remove(&number);
                numbers.len()
            });
            if left == Some(0)
                && let Some((mut key, _)) = self.by_words.remove_entry(&words)
            {
                key.zeroize();
            }
            words.zeroize();
            self.with_slot.remove(&number);
        }
    }

    /// Facts with the same first words as a text, identical texts among them; also all facts with a slot if
    /// `slots`.
    pub(super) fn like(&self, text: &str, slots: bool) -> BTreeSet<u64> {
        let mut like = self.by_words.get(&prefix(text)).cloned().unwrap_or_default();
        if slots {
            like.extend(&self.with_slot);
        }
        like
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        for (mut words, _) in self.by_words.drain() {
            words.zeroize();
        }
    }
}
