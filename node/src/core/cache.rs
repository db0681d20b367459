//! Cache of recently fetched blobs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use baton_proto::ids::FetchProof;
use parking_lot::Mutex;

/// Recently fetched blobs, bounded by bytes; the least recently used goes first. The key is the proof of
/// knowing the blob's key. So a digest alone reveals nothing about reads on this node.
#[derive(Debug)]
pub(crate) struct BlobCache {
    limit: usize,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    bytes: usize,
    clock: u64,
    blobs: HashMap<FetchProof, (u64, Arc<[u8]>)>,
    by_use: BTreeMap<u64, FetchProof>,
}

impl BlobCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    pub(crate) fn get(&self, proof: &FetchProof) -> Option<Arc<[u8]>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let (used, bytes) = state.blobs.get_mut(proof)?;
        let (before, bytes) = (std::mem::replace(used, now), bytes.clone());
        state.by_use.remove(&before);
        state.by_use.insert(now, *proof);
        Some(bytes)
    }

    pub(crate) fn put(&self, proof: FetchProof, bytes: Arc<[u8]>) {
        let mut state = self.state.lock();
        if bytes.len() > self.limit || state.blobs.contains_key(&proof) {
            return;
        }
        state.clock += 1;
        let now = state.clock;
        state.bytes += bytes.len();
        state.blobs.insert(proof, (now, bytes));
        state.by_use.insert(now, proof);
        while state.bytes > self.limit {
            let Some((_, oldest)) = state.by_use.pop_first() else { break };
            if let Some((_, bytes)) = state.blobs.remove(&oldest) {
                state.bytes -= bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_what_was_used_last() {
        let cache = BlobCache::new(30);
        let proof = |fill: u8| FetchProof([fill; 32]);
        for fill in 1..=3u8 {
            cache.put(proof(fill), vec![fill; 10].into());
        }
        assert!(cache.get(&proof(1)).is_some());
        cache.put(proof(4), vec![4; 10].into());
        assert!(cache.get(&proof(2)).is_none(), "the one longest unused went");
        assert!([1, 3, 4].iter().all(|fill| cache.get(&proof(*fill)).is_some()));
        cache.put(proof(5), vec![5; 31].into());
        assert!(cache.get(&proof(5)).is_none(), "larger than the cache");
        assert_eq!(cache.state.lock().bytes, 30);
    }
}
