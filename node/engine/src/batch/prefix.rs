//! Blocks of earlier requests, kept for the next request of the same session.
//!
//! A block's name is a hash over the model, the session, and all tokens up to the block's end. So only a
//! request of the same session with the same beginning finds it. The lookup also compares the session, so
//! that even a hash collision shares nothing. The tokens themselves are not kept.
//!
//! The last block of an ended request is kept too, full or not. The request that finds it goes on with it, so it
//! leaves the cache.
//!
//! Eviction removes the least recently used block. Among equals it removes the block furthest back in its
//! sequence, which is useless without the earlier blocks. An evicted block is overwritten with zeros as soon
//! as no sequence uses it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use super::request::SessionKey;
use crate::kv::{KV_BLOCK, KvBlock};

type Name = [u8; 32];

/// When a block was used: the number of the use, and the block's depth in its sequence.
type Age = (u64, Reverse<usize>);

/// A block with its owner and its last use.
struct CacheEntry {
    block: Arc<KvBlock>,
    session: SessionKey,
    age: Age,
    used_at: Instant,
}

/// The cache of blocks, by their names.
pub(super) struct PrefixCache {
    model_id: [u8; 32],
    idle: Duration,
    /// Maximum number of blocks kept.
    limit: usize,
    entries: HashMap<Name, CacheEntry>,
    by_age: BTreeMap<Age, Name>,
    uses: u64,
}

impl PrefixCache {
    pub(super) fn new(model_id: [u8; 32], limit: usize, idle: Duration) -> Self {
        Self { model_id, idle, limit, entries: HashMap::new(), by_age: BTreeMap::new(), uses: 0 }
    }

    /// Number of kept blocks.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Blocks that eviction would free.
    pub(super) fn evictable(&self) -> usize {
        self.entries.values().filter(|entry| is_free(entry)).count()
    }

    /// The name of no tokens of a session.
    fn root(&self, session: &SessionKey) -> Name {
        let mut hasher = blake3::Hasher::new_derive_key("baton-engine 2026 prefix of a session");
        hasher.update(&self.model_id).update(&session.0);
        hasher.finalize().into()
    }

    /// The kept block of this name, if it is the session's.
    fn block(&self, session: &SessionKey, name: &Name) -> Option<Arc<KvBlock>> {
        let entry = self.entries.get(name).filter(|entry| entry.session == *session);
        entry.map(|entry| Arc::clone(&entry.block))
    }

    /// The kept blocks with which a sequence of these tokens can begin, and how many tokens they have. The last token
    /// is never among them, because its logits are not kept.
    pub(super) fn find(
        &mut self,
        session: &SessionKey,
        tokens: &[u32],
        now: Instant,
    ) -> (Vec<Arc<KvBlock>>, usize) {
        let mut found = Vec::new();
        if self.entries.is_empty() {
            return (found, 0);
        }
        self.uses += 1;
        let mut rest = &tokens[..tokens.len().saturating_sub(1)];
        let mut before = self.root(session);
        while let Some((tokens, after)) = rest.split_at_checked(KV_BLOCK) {
            let name = name_after(&before, tokens);
            let Some(block) = self.block(session, &name) else { break };
            found.push(block);
            self.touch(&name, found.len(), now);
            (before, rest) = (name, after);
        }
        let mut count = found.len() * KV_BLOCK;
        for begun in (1..=rest.len().min(KV_BLOCK - 1)).rev() {
            let name = name_after(&before, &rest[..begun]);
            if let Some(block) = self.block(session, &name) {
                self.remove(&name);
                found.push(block);
                count += begun;
                break;
            }
        }
        (found, count)
    }

    /// Keeps the blocks of a sequence that has computed `tokens`. A block that is not full must be at rest.
    pub(super) fn keep(
        &mut self,
        session: &SessionKey,
        tokens: &[u32],
        blocks: &[Arc<KvBlock>],
        now: Instant,
    ) {
        if self.limit == 0 {
            return;
        }
        self.uses += 1;
        let mut name = self.root(session);
        for (depth, (tokens, block)) in (1..=self.limit).zip(tokens.chunks(KV_BLOCK).zip(blocks)) {
            name = name_after(&name, tokens);
            let entry = CacheEntry {
                block: Arc::clone(block),
                session: session.clone(),
                age: (0, Reverse(0)),
                used_at: now,
            };
            self.entries.entry(name).or_insert(entry);
            self.touch(&name, depth, now);
        }
        while self.entries.len() > self.limit && self.evict_if(|_| true) {}
    }

    fn touch(&mut self, name: &Name, depth: usize, now: Instant) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let (old, new) = (entry.age, (self.uses, Reverse(depth)));
        (entry.age, entry.used_at) = (new, now);
        self.by_age.remove(&old);
        self.by_age.insert(new, *name);
    }

    /// Evicts the least recently used block that no sequence uses; false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        self.evict_if(is_free)
    }

    fn evict_if(&mut self, may_remove: impl Fn(&CacheEntry) -> bool) -> bool {
        let name = self.by_age.values().copied().find(|name| self.entries.get(name).is_some_and(&may_remove));
        name.is_some_and(|name| self.remove(&name))
    }

    fn remove(&mut self, name: &Name) -> bool {
        let Some(entry) = self.entries.remove(name) else { return false };
        self.by_age.remove(&entry.age);
        true
    }

    /// Drops blocks that were unused for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        // Older uses come first.
        while let Some(name) = self.by_age.values().next().copied()
            && let Some(entry) = self.entries.get(&name)
            && now.saturating_duration_since(entry.used_at) >= self.idle
        {
            self.remove(&name);
        }
    }
}

/// The name of a block with these tokens, after a block of another name.
fn name_after(before: &Name, tokens: &[u32]) -> Name {
    let mut hasher = blake3::Hasher::new_keyed(before);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Whether only the cache holds the block.
fn is_free(entry: &CacheEntry) -> bool {
    Arc::strong_count(&entry.block) == 1
}

#[cfg(test)]
#[path = "prefix/tests.rs"]
mod tests;
