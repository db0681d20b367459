//! The search index of one owner in memory: exact, complete, wiped on drop.
//!
//! Items occupy slots. A word's postings are ascending by slot, so that a scan reads memory forwards. Vectors
//! lie in blocks that never move, so that growth leaves no copies.

use std::collections::HashMap;

use zeroize::Zeroize as _;

use super::{
    CandidateRow, Candidates, Features, QuantisedVector,
    candidates::{Bm25, CosineStatistics, CosineSums, NOTHING, Shares, Statistics},
    features::Cue,
    question::Question,
    vector::{as_cosine, dot},
};

/// Slots of a block of vectors.
const BLOCK: usize = 1_024;

/// An occurrence of a term.
#[derive(Clone, Copy)]
struct Posting {
    slot: u32,
    count: u16,
}

/// A slot without an item.
const FREE: u64 = u64::MAX;

/// The search index of one owner.
#[derive(Default)]
pub struct Index {
    dimensions: usize,
    /// The item in each slot.
    numbers: Vec<u64>,
    lengths: Vec<u32>,
    /// Term ids of each slot, so that a removal need not read all postings.
    terms: Vec<Box<[u32]>>,
    /// 0 for a slot without a vector.
    scales: Vec<f32>,
    blocks: Vec<Box<[i8]>>,
    slots: HashMap<u64, u32>,
    free: Vec<u32>,
    /// The id of each hash. Its freed memory has hashes under the owner's key, and no words.
    ids: HashMap<u64, u32>,
    postings: Vec<Vec<Posting>>,
}

impl Index {
    /// An empty index for vectors with this many dimensions; 0 for none. Vectors of another length come from
    /// another embedder and are ignored.
    #[must_use]
    pub fn new(dimensions: usize) -> Self {
        let mut index = Self::default();
        index.dimensions = dimensions;
        index
    }

    /// Whether an item is in it.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.slots.contains_key(&number)
    }

    /// Items in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Its approximate bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let postings: usize = self.postings.iter().map(|list| list.capacity() * size_of::<Posting>()).sum();
        let terms: usize = self.terms.iter().map(|terms| size_of_val(&**terms)).sum();
        let maps = (self.slots.capacity() + self.ids.capacity()) * size_of::<(u64, u32)>();
        let slots = self.numbers.capacity() * (8 + 4 + 4 + size_of::<Box<[u32]>>());
        postings
            + terms
            + maps
            + slots
            + self.postings.capacity() * size_of::<Vec<Posting>>()
            + self.blocks.len() * BLOCK * self.dimensions
    }

    /// Inserts an item, or replaces the one with its number.
    pub fn insert(&mut self, number: u64, features: Features) {
        self.remove(number);
        let slot = self.take_slot(number);
        let at = slot as usize;
        let mut ids = Vec::with_capacity(features.terms.len());
        for (hash, count) in &features.terms {
            let id = self.term_id(*hash);
            let Some(list) = self.postings.get_mut(id as usize) else { continue };
            let posting = Posting { slot, count: *count };
            match list.last() {
                Some(last) if last.slot >= slot => {
                    let place = list.partition_point(|other| other.slot < slot);
                    list.insert(place, posting);
                }
                _ => list.push(posting),
            }
            ids.push(id);
        }
        self.terms[at] = ids.into_boxed_slice();
        self.lengths[at] = features.length;
        self.put_vector(slot, features.vector.as_ref());
    }

    /// Sets or removes an item's vector. Does nothing for an unknown item.
    pub fn set_vector(&mut self, number: u64, vector: Option<QuantisedVector>) {
        if let Some(slot) = self.slots.get(&number).copied() {
            self.put_vector(slot, vector.as_ref());
        }
    }

    /// Removes an item and wipes its data. Returns whether it existed.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some(slot) = self.slots.remove(&number) else { return false };
        let at = slot as usize;
        let mut ids = std::mem::take(&mut self.terms[at]);
        for id in &ids {
            let Some(list) = self.postings.get_mut(*id as usize) else { continue };
            if let Ok(place) = list.binary_search_by_key(&slot, |posting| posting.slot) {
                list.remove(place);
            }
        }
        ids.zeroize();
        self.put_vector(slot, None);
        self.numbers[at] = FREE;
        self.lengths[at] = 0;
        self.free.push(slot);
        true
    }

    fn take_slot(&mut self, number: u64) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.numbers.len()).expect("memory holds fewer than 2^32 items");
            self.numbers.push(FREE);
            self.lengths.push(0);
            self.terms.push(Box::default());
            self.scales.push(0.0);
            if self.numbers.len() > self.blocks.len() * BLOCK {
                self.blocks.push(vec![0; BLOCK * self.dimensions].into_boxed_slice());
            }
            slot
        });
        self.numbers[slot as usize] = number;
        self.slots.insert(number, slot);
        slot
    }

    fn term_id(&mut self, hash: u64) -> u32 {
        let next = u32::try_from(self.postings.len()).expect("memory holds fewer than 2^32 terms");
        let id = *self.ids.entry(hash).or_insert(next);
        if id == next {
            self.postings.push(Vec::new());
        }
        id
    }

    fn put_vector(&mut self, slot: u32, vector: Option<&QuantisedVector>) {
        let at = slot as usize;
        let begin = at % BLOCK * self.dimensions;
        let Some(place) =
            self.blocks.get_mut(at / BLOCK).and_then(|block| block.get_mut(begin..begin + self.dimensions))
        else {
            return;
        };
        match vector.filter(|vector| vector.codes.len() == place.len() && vector.scale > 0.0) {
            Some(vector) => {
                place.copy_from_slice(&vector.codes);
                self.scales[at] = vector.scale;
            }
            None => {
                place.zeroize();
                self.scales[at] = 0.0;
            }
        }
    }

    fn list(&self, hash: u64) -> &[Posting] {
        let list = self.ids.get(&hash).and_then(|id| self.postings.get(*id as usize));
        list.map_or(&[], Vec::as_slice)
    }

    /// Scores every item that `allowed` admits; it is called once for each item, before any count.
    pub fn scan(&self, question: &Question, allowed: &dyn Fn(u64) -> bool) -> Candidates {
        let visible: Vec<bool> =
            self.numbers.iter().map(|number| *number != FREE && allowed(*number)).collect();
        let documents = visible.iter().filter(|sees| **sees).count() as u64;
        let lengths = self.lengths.iter().zip(&visible).filter(|(_, sees)| **sees);
        let total_length = lengths.map(|(length, _)| u64::from(*length)).sum();
        let lists: Vec<&[Posting]> = question.hashes().iter().map(|hash| self.list(*hash)).collect();
        let all = documents == self.len() as u64;
        let count = |list: &&[Posting]| if all { list.len() } else { count_visible(list, &visible) };
        let counts = lists.iter().map(|list| u32::try_from(count(list)).unwrap_or(u32::MAX)).collect();
        let statistics = Statistics { documents, total_length, counts, cosines: None };
        self.score(question, &visible, &statistics)
    }

    /// Scores all items, with statistics of more documents than these.
    pub(crate) fn scan_among(&self, question: &Question, statistics: &Statistics) -> Candidates {
        let there: Vec<bool> = self.numbers.iter().map(|number| *number != FREE).collect();
        self.score(question, &there, statistics)
    }

    /// Scores the visible slots.
    fn score(&self, question: &Question, visible: &[bool], statistics: &Statistics) -> Candidates {
        let lists: Vec<&[Posting]> = question.hashes().iter().map(|hash| self.list(*hash)).collect();
        let bm25 = Bm25::new(statistics, question);
        let mut scratch = vec![Scratch::default(); self.numbers.len()];
        let mut shares = Shares::default();
        for (word, synonyms) in question.synonyms_by_word().iter().enumerate() {
            for posting in lists.get(word).copied().unwrap_or_default() {
                let slot = posting.slot as usize;
                let worth = bm25.term(word, posting.count, self.lengths[slot]);
                let found = &mut scratch[slot];
                found.lexical += shares.take(&mut found.list, word, worth);
                found.words |= 1 << word;
            }
            for synonym in synonyms.iter().filter(|synonym| bm25.counts(**synonym)) {
                for posting in lists.get(question.related() + synonym).copied().unwrap_or_default() {
                    let slot = posting.slot as usize;
                    let worth = bm25.related(*synonym, posting.count, self.lengths[slot]);
                    let found = &mut scratch[slot];
                    found.lexical += shares.take(&mut found.list, word, worth);
                }
            }
        }
        for list in lists.get(question.speakers()).unwrap_or_default() {
            list.iter().for_each(|posting| scratch[posting.slot as usize].speaker_named = true);
        }
        for (list, cue) in lists.iter().skip(question.cues()).zip(Cue::ALL) {
            list.iter().for_each(|posting| scratch[posting.slot as usize].cues |= cue.bit());
        }
        let mut found = Candidates {
            shares,
            full_weights: bm25.full,
            worth: bm25.worth,
            weights: bm25.weights,
            lexical_deviation: bm25.deviation,
            names_speaker: bm25.names_speaker,
            documents: statistics.documents,
            ..Candidates::default()
        };
        let cosines = self.collect(question, visible, &scratch, &mut found);
        found.cosines = statistics.cosines.unwrap_or(cosines);
        found
    }

    /// Computes the cosines of visible slots, and the rows; returns the statistics of these cosines.
    fn collect(
        &self,
        question: &Question,
        visible: &[bool],
        scratch: &[Scratch],
        found: &mut Candidates,
    ) -> CosineStatistics {
        let vector = question.vector().filter(|vector| vector.codes.len() == self.dimensions);
        if vector.is_some() {
            found.rows.reserve_exact(self.len());
        }
        let mut cosines = CosineSums::default();
        for (slot, number) in self.numbers.iter().enumerate().filter(|(slot, _)| visible[*slot]) {
            let scale = self.scales[slot];
            let cosine = vector.filter(|_| scale > 0.0).map(|vector| {
                let begin = slot % BLOCK * self.dimensions;
                let codes = &self.blocks[slot / BLOCK][begin..begin + self.dimensions];
                as_cosine(dot(codes, &vector.codes), scale, vector.scale)
            });
            if let Some(cosine) = cosine {
                cosines.add(f64::from(cosine), 0.0);
            }
            let Scratch { lexical, words, list, cues, speaker_named } = scratch[slot];
            if cosine.is_some() || words != 0 || list != NOTHING {
                let length = self.lengths[slot];
                found.rows.push(CandidateRow {
                    number: *number,
                    lexical,
                    cosine,
                    words,
                    length,
                    cues,
                    speaker_named,
                    list,
                });
            }
        }
        if !found.rows.is_sorted_by_key(|row| row.number) {
            found.rows.sort_unstable_by_key(|row| row.number);
        }
        cosines.statistics()
    }
}

/// The results of a scan for a slot before the vectors.
#[derive(Clone, Copy)]
struct Scratch {
    words: u64,
    lexical: f32,
    list: u32,
    cues: u8,
    speaker_named: bool,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { words: 0, lexical: 0.0, list: NOTHING, cues: 0, speaker_named: false }
    }
}

fn count_visible(list: &[Posting], visible: &[bool]) -> usize {
    list.iter().filter(|posting| visible[posting.slot as usize]).count()
}

impl Drop for Index {
    fn drop(&mut self) {
        self.blocks.zeroize();
        self.scales.zeroize();
        self.lengths.zeroize();
        self.numbers.zeroize();
        self.terms.iter_mut().for_each(|terms| terms.zeroize());
        for list in &mut self.postings {
            list.iter_mut().for_each(|posting| {
                posting.slot.zeroize();
                posting.count.zeroize();
            });
        }
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("items", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
