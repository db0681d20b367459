use super::*;
use crate::{
    Sequence,
    kv::{KvPool, KvShape},
};

const KEYS: [SessionKey; 2] = [SessionKey([1; 32]), SessionKey([2; 32])];

struct Bench {
    pool: Arc<KvPool>,
    cache: PrefixCache,
    start: Instant,
}

impl Bench {
    fn new(limit: usize) -> Self {
        let shape = KvShape { layers: 1, heads: 1, head_dim: 16 };
        let pool = KvPool::new(shape, 100 * shape.block_bytes());
        let cache = PrefixCache::new([0; 32], limit, Duration::from_secs(10));
        Self { pool, cache, start: Instant::now() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn used(&self) -> usize {
        self.pool.used() / self.pool.shape().block_bytes()
    }

    fn keep(&mut self, session: usize, tokens: &[u32], seconds: u64) {
        let mut sequence = Sequence::new(&self.pool);
        sequence.reserve(tokens.len()).unwrap();
        sequence.advance(tokens.len());
        let now = self.at(seconds);
        self.cache.keep(&KEYS[session], tokens, sequence.blocks(), now);
    }

    /// The found blocks.
    fn found(&mut self, session: usize, tokens: &[u32], seconds: u64) -> usize {
        let now = self.at(seconds);
        let (blocks, count) = self.cache.find(&KEYS[session], tokens, now);
        assert_eq!(blocks.len(), count.div_ceil(KV_BLOCK));
        blocks.len()
    }
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn full_blocks_are_found_by_the_same_session_and_the_same_tokens() {
    let mut bench = Bench::new(100);
    bench.keep(0, &tokens(96), 0);
    assert_eq!(bench.found(0, &tokens(200), 0), 3);
    assert_eq!(bench.found(0, &tokens(97), 0), 3);
    assert_eq!(bench.found(0, &tokens(96), 0), 2, "the last token is computed");
    assert_eq!(bench.found(0, &tokens(32), 0), 0);
    assert_eq!(bench.found(1, &tokens(200), 0), 0, "another session");
    let mut other = tokens(200);
    other[40] = 7;
    assert_eq!(bench.found(0, &other, 0), 1);
    other[0] = 7;
    assert_eq!(bench.found(0, &other, 0), 0);
    bench.cache.model_id = [1; 32];
    assert_eq!(bench.found(0, &tokens(200), 0), 0, "another model");
}

#[test]
fn a_block_that_is_not_full_goes_over_to_the_next_request_of_the_session() {
    let mut bench = Bench::new(100);
    bench.keep(0, &tokens(70), 0);
    let mut found = |session: usize, count| {
        let now = bench.start;
        let (blocks, count) = bench.cache.find(&KEYS[session], &tokens(count), now);
        let own = blocks.last().is_some_and(|block| Arc::strong_count(block) == 1);
        (count, own, bench.cache.len())
    };
    assert_eq!(found(0, 70), (64, false, 3), "the last token is computed");
    assert_eq!(found(1, 71), (0, false, 3), "another session");
    assert_eq!(found(0, 71), (70, true, 2));
    assert_eq!(found(0, 71), (64, false, 2));
    bench.keep(0, &tokens(65), 0);
    bench.keep(0, &tokens(80), 0);
    assert_eq!(bench.used(), 4);
    let now = bench.start;
    assert_eq!(bench.cache.find(&KEYS[0], &tokens(96), now).1, 80, "the longest");
    assert_eq!(bench.cache.find(&KEYS[0], &tokens(80), now).1, 65);
}

#[test]
fn a_name_that_belongs_to_another_session_is_not_enough() {
    let mut bench = Bench::new(100);
    bench.keep(0, &tokens(64), 0);
    bench.cache.entries.values_mut().for_each(|entry| entry.session = KEYS[1].clone());
    assert_eq!(bench.found(0, &tokens(100), 0), 0);
}

#[test]
fn eviction_takes_the_least_recently_used_block_from_the_end() {
    let mut bench = Bench::new(6);
    bench.keep(0, &tokens(96), 0);
    bench.keep(1, &tokens(96), 1);
    assert_eq!(bench.found(0, &tokens(97), 2), 3);
    assert!(bench.cache.evict());
    assert_eq!((bench.found(1, &tokens(97), 3), bench.used()), (2, 5));
    // No sequence uses two of session 0's blocks; one uses the third.
    let (held, _) = bench.cache.find(&KEYS[0], &tokens(40), bench.at(4));
    assert_eq!((held.len(), bench.cache.evictable()), (1, 4));
    for _ in 0..4 {
        assert!(bench.cache.evict());
    }
    assert!(!bench.cache.evict(), "what is in use stays");
    assert_eq!((bench.cache.len(), bench.used()), (1, 1));
    drop(held);
    assert!(bench.cache.evict());
    assert_eq!((bench.cache.len(), bench.used(), bench.cache.by_age.len()), (0, 0, 0));
}

#[test]
fn the_cache_holds_at_most_its_limit() {
    let mut bench = Bench::new(4);
    bench.keep(0, &tokens(96), 0);
    bench.keep(1, &tokens(96), 1);
    assert_eq!(bench.used(), 4);
    assert_eq!((bench.found(1, &tokens(97), 2), bench.found(0, &tokens(97), 2)), (3, 1));
    bench.keep(0, &tokens(320), 3);
    assert_eq!((bench.used(), bench.found(0, &tokens(321), 4)), (4, 4));
    let mut none = Bench::new(0);
    none.keep(0, &tokens(96), 0);
    assert_eq!((none.used(), none.found(0, &tokens(97), 0)), (0, 0));
}

#[test]
fn blocks_expire_after_the_idle_time() {
    let mut bench = Bench::new(100);
    bench.keep(0, &tokens(96), 0);
    bench.keep(1, &tokens(96), 5);
    bench.cache.expire(bench.at(9));
    assert_eq!(bench.used(), 6);
    assert_eq!(bench.found(0, &tokens(64), 9), 1);
    bench.cache.expire(bench.at(10));
    assert_eq!((bench.used(), bench.cache.by_age.len()), (4, 4));
    bench.cache.expire(bench.at(15));
    assert_eq!(bench.used(), 1);
    bench.cache.expire(bench.at(19));
    assert_eq!(bench.used(), 0);
}
