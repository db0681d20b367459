//! The key-value cache: the keys and values of a sequence's positions, in blocks of half-precision numbers
//! from one budget.
//!
//! A block holds [`KV_BLOCK`] positions of all layers. For each layer and each head of keys and values, a
//! block stores:
//!
//! 1. the keys: for each 16 positions, 16 numbers of dimension 0, of dimension 1, and so on;
//! 2. the values: for each slice of dimensions, the numbers of each position (see
//!    [`Score::block`](crate::kernels::attention::Score::block)).
//!
//! Full blocks never change, so sequences with the same beginning may share them. The block in progress
//! belongs to one sequence, and after its end to the next that goes on from there. A freed block is overwritten with
//! zeros.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use zeroize::Zeroize;

pub use crate::kernels::attention::KV_BLOCK;

/// The dimensions of a model's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
}

impl KvShape {
    /// Numbers in the keys (and likewise in the values) of one layer and head of a block.
    #[must_use]
    pub const fn half(&self) -> usize {
        KV_BLOCK * self.head_dim
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        self.layers * self.heads * self.half() * 2 * 2
    }
}

/// The budget from which all blocks of a model come.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    budget: usize,
    used: AtomicUsize,
}

impl KvPool {
    /// A pool of at most `budget` bytes. Nothing is allocated yet.
    #[must_use]
    pub fn new(shape: KvShape, budget: usize) -> Arc<Self> {
        Arc::new(Self { shape, budget, used: AtomicUsize::new(0) })
    }

    /// Bytes of the existing blocks.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// The dimensions of its blocks.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    fn take(self: &Arc<Self>, count: usize) -> Result<Vec<Arc<KvBlock>>, String> {
        let wanted = count.saturating_mul(self.shape.block_bytes());
        let fits = |used: usize| used.checked_add(wanted).filter(|sum| *sum <= self.budget);
        let budget = self.budget;
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|used| {
            format!(
                "the cache's budget of {budget} bytes is used up: {used} are taken and {wanted} more wanted"
            )
        })?;
        Ok((0..count).map(|_| Arc::new(KvBlock::new(self))).collect())
    }
}

/// Numbers in a cache line.
const LINE: usize = 32;

/// The keys and values of [`KV_BLOCK`] positions.
#[derive(Debug)]
pub struct KvBlock {
    data: Box<[u16]>,
    /// Index of the first number: at a cache line, so that no vector crosses two. It differs between blocks.
    start: usize,
    pool: Arc<KvPool>,
}

impl KvBlock {
    fn new(pool: &Arc<KvPool>) -> Self {
        let data = vec![0_u16; pool.shape.block_bytes() / 2 + LINE].into_boxed_slice();
        let start = data.as_ptr().align_offset(2 * LINE).min(LINE);
        Self { data, start, pool: Arc::clone(pool) }
    }

    fn at(&self, layer: usize, head: usize) -> usize {
        let shape = self.pool.shape;
        (layer * shape.heads + head) * 2 * shape.half()
    }

    fn numbers(&self) -> &[u16] {
        &self.data[self.start..][..self.pool.shape.block_bytes() / 2]
    }

    fn numbers_mut(&mut self) -> &mut [u16] {
        &mut self.data[self.start..][..self.pool.shape.block_bytes() / 2]
    }

    /// The keys and the values of a layer and a head.
    #[must_use]
    #[inline]
    pub fn parts(&self, layer: usize, head: usize) -> (&[u16], &[u16]) {
        let half = self.pool.shape.half();
        self.numbers()[self.at(layer, head)..][..2 * half].split_at(half)
    }

    /// As [`Self::parts`], but writable.
    pub(crate) fn parts_mut(&mut self, layer: usize, head: usize) -> (&mut [u16], &mut [u16]) {
        let (at, half) = (self.at(layer, head), self.pool.shape.half());
        self.numbers_mut()[at..][..2 * half].split_at_mut(half)
    }
}

impl Drop for KvBlock {
    fn drop(&mut self) {
        self.data.zeroize();
        self.pool.used.fetch_sub(self.pool.shape.block_bytes(), Ordering::Relaxed);
    }
}

/// A sequence of computed tokens: the keys and values of its positions.
#[derive(Debug)]
pub struct Sequence {
    pool: Arc<KvPool>,
    blocks: Vec<Arc<KvBlock>>,
    length: usize,
}

impl Sequence {
    /// An empty sequence.
    #[must_use]
    pub fn new(pool: &Arc<KvPool>) -> Self {
        Self { pool: Arc::clone(pool), blocks: Vec::new(), length: 0 }
    }

    /// A sequence that begins with blocks of another sequence, up to `length` positions.
    ///
    /// # Panics
    /// If a block belongs to another pool, or the blocks are not as many as these positions have.
    #[must_use]
    pub fn from_blocks(pool: &Arc<KvPool>, blocks: Vec<Arc<KvBlock>>, length: usize) -> Self {
        assert!(blocks.iter().all(|block| Arc::ptr_eq(&block.pool, pool)), "blocks of this pool");
        assert_eq!(blocks.len(), length.div_ceil(KV_BLOCK), "the blocks of these positions");
        Self { pool: Arc::clone(pool), length, blocks }
    }

    /// Computed positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no position has been computed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The blocks with all positions computed: they may be shared.
    #[must_use]
    pub fn full_blocks(&self) -> &[Arc<KvBlock>] {
        &self.blocks[..self.length / KV_BLOCK]
    }

    /// Forgets all positions from `length` on, and frees the blocks left empty.
    pub fn truncate(&mut self, length: usize) {
        if length < self.length {
            self.length = length;
            self.blocks.truncate(length.div_ceil(KV_BLOCK));
        }
    }

    pub(crate) fn pool(&self) -> &Arc<KvPool> {
        &self.pool
    }

    /// Makes room for `more` positions in this sequence's own blocks. The error says what the budget lacks.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), String> {
        let needed = (self.length + more).div_ceil(KV_BLOCK);
        // A shared block that is no longer full, after a truncation, is copied before it is written to.
        let partial = self.length / KV_BLOCK;
        let is_shared = self.blocks.get_mut(partial).is_some_and(|block| Arc::get_mut(block).is_none());
        let copied = usize::from(more > 0 && is_shared);
        let mut fresh = self.pool.take(needed.saturating_sub(self.blocks.len()) + copied)?;
        if copied == 1
            && let (Some(mut copy), Some(shared)) = (fresh.pop(), self.blocks.get_mut(partial))
        {
            if let Some(block) = Arc::get_mut(&mut copy) {
                block.numbers_mut().copy_from_slice(shared.numbers());
            }
            *shared = copy;
        }
        self.blocks.append(&mut fresh);
        Ok(())
    }

    /// Frees the unused room from [`Self::reserve`].
    pub(crate) fn release(&mut self) {
        self.blocks.truncate(self.length.div_ceil(KV_BLOCK));
    }

    pub(crate) fn advance(&mut self, by: usize) {
        self.length += by;
    }

    pub(crate) fn blocks(&self) -> &[Arc<KvBlock>] {
        &self.blocks
    }

    /// The blocks from the next position's block on.
    pub(crate) fn open_blocks(&mut self) -> impl Iterator<Item = &mut KvBlock> {
        let from = self.length / KV_BLOCK;
        self.blocks[from..]
            .iter_mut()
            .map(|block| Arc::get_mut(block).expect("reserved blocks are the sequence's own"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(blocks: usize) -> Arc<KvPool> {
        let shape = KvShape { layers: 2, heads: 3, head_dim: 16 };
        KvPool::new(shape, blocks * shape.block_bytes() + 1)
    }

    #[test]
    fn the_budget_holds_and_comes_back() {
        let pool = pool(3);
        let (mut first, mut second) = (Sequence::new(&pool), Sequence::new(&pool));
        first.reserve(2 * KV_BLOCK).unwrap();
        let error = second.reserve(KV_BLOCK + 1).unwrap_err();
        assert!(error.contains(&format!("{} more wanted", 2 * pool.shape().block_bytes())), "{error}");
        second.reserve(KV_BLOCK).unwrap();
        drop(first);
        assert_eq!(pool.used(), pool.shape().block_bytes());
        drop(second);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_shared_block_is_copied_before_it_is_written_to() {
        let pool = pool(3);
        let mut first = Sequence::new(&pool);
        first.reserve(KV_BLOCK).unwrap();
        first.open_blocks().next().unwrap().parts_mut(1, 2).0.fill(7);
        first.advance(KV_BLOCK);
        let mut second = Sequence::from_blocks(&pool, first.full_blocks().to_vec(), KV_BLOCK);
        assert_eq!((second.len(), pool.used()), (KV_BLOCK, pool.shape().block_bytes()));
        second.truncate(5);
        second.reserve(1).unwrap();
        second.open_blocks().next().unwrap().parts_mut(1, 2).0[0] = 8;
        assert_eq!(first.blocks()[0].parts(1, 2).0[..2], [7, 7]);
        assert_eq!(second.blocks()[0].parts(1, 2).0[..2], [8, 7]);
    }

    #[test]
    fn truncation_frees_empty_blocks() {
        let pool = pool(4);
        let mut sequence = Sequence::new(&pool);
        sequence.reserve(3 * KV_BLOCK + 1).unwrap();
        sequence.advance(3 * KV_BLOCK + 1);
        sequence.truncate(KV_BLOCK + 1);
        assert_eq!(pool.used(), 2 * pool.shape().block_bytes());
        sequence.reserve(40).unwrap();
        sequence.release();
        assert_eq!((sequence.len(), pool.used()), (KV_BLOCK + 1, 2 * pool.shape().block_bytes()));
    }
}
