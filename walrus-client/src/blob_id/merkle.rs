//! Walrus's Merkle trees, hashed many nodes at a time.
//!
//! Owns the hashing of the blob ID: BLAKE2b with a 32-byte output (a parameter of the hash, not a truncation),
//! leaf(x) = H(0x00 ‖ x) and inner(l, r) = H(0x01 ‖ l ‖ r). A level of more than one node and an odd count
//! gets a node of 32 zero bytes appended.

use blake2b_simd::{
    Hash, Params,
    many::{HashManyJob, hash_many},
};

use super::grid::Leaves;

/// A node of a tree.
pub(super) type Digest = [u8; 32];

const LEAF_PREFIX: u8 = 0;
const INNER_PREFIX: u8 = 1;
/// Prefix and two nodes.
const PAIR_BYTES: usize = 65;
/// Hashes handed to `hash_many` at once: a multiple of its widest degree, and few enough to stay on the stack.
const JOBS: usize = 16;
/// Trees built side by side: neighbouring columns share cache lines, and every level fills the hash's lanes.
const TREES: usize = 8;

/// BLAKE2b with a 32-byte output.
pub(super) fn params() -> Params {
    let mut params = Params::new();
    params.hash_length(32);
    params
}

/// The bytes of a hash made with [`params`].
pub(super) fn digest(hash: &Hash) -> Digest {
    hash.as_bytes().try_into().expect("params() asks for 32 bytes")
}

/// Hashes inputs of equal length that lie one after another.
fn hash_each(inputs: &[u8], length: usize, mut emit: impl FnMut(usize, Digest)) {
    let params = params();
    for (group, batch) in inputs.chunks(length * JOBS).enumerate() {
        let mut jobs: [HashManyJob<'_>; JOBS] = std::array::from_fn(|at| {
            HashManyJob::new(&params, batch.get(at * length..(at + 1) * length).unwrap_or(&[]))
        });
        let count = batch.len() / length;
        hash_many(&mut jobs[..count]);
        for (at, job) in jobs[..count].iter().enumerate() {
            emit(group * JOBS + at, digest(&job.to_hash()));
        }
    }
}

/// Leaf hashes of symbols of `symbol` bytes that lie one after another, one for each place in `out`.
pub(super) fn hash_leaves(symbols: &[u8], symbol: usize, out: &mut [Digest]) {
    let length = symbol + 1;
    // In batches, so that the prefixed copy stays small.
    for (symbols, out) in symbols.chunks(symbol * JOBS).zip(out.chunks_mut(JOBS)) {
        let mut prefixed = vec![LEAF_PREFIX; symbols.len() / symbol * length];
        for (source, target) in symbols.chunks_exact(symbol).zip(prefixed.chunks_exact_mut(length)) {
            target[1..].copy_from_slice(source);
        }
        hash_each(&prefixed, length, |at, hash| out[at] = hash);
    }
}

/// Root of the tree over all sliver pairs: row i with column n-1-i.
pub(super) fn pair_root(leaves: &Leaves) -> Digest {
    let n = leaves.n;
    let zeros = ZeroNodes::new(leaves);
    let rows = row_roots(leaves, &zeros);
    let columns = column_roots(leaves, &zeros);
    let mut pairs = vec![0; n * 64];
    for (i, pair) in pairs.chunks_exact_mut(64).enumerate() {
        pair[..32].copy_from_slice(&rows[i]);
        pair[32..].copy_from_slice(&columns[n - 1 - i]);
    }
    let mut hashes = vec![[0; 32]; n];
    hash_leaves(&pairs, 64, &mut hashes);
    let mut forest = Forest::new(n);
    forest.set_leaves(1, |_, at| hashes[at]);
    forest.roots(1, &ZeroNodes::none())[0]
}

/// Roots of all rows (primary slivers). Rows of zeros share one root.
fn row_roots(leaves: &Leaves, zeros: &ZeroNodes) -> Vec<Digest> {
    let n = leaves.n;
    let mut roots = vec![[0; 32]; n];
    let mut forest = Forest::new(n);
    if !zeros.is_empty() {
        forest.set_leaves(1, |_, _| leaves.zero_leaf);
        let root = forest.roots(1, &ZeroNodes::none())[0];
        roots[leaves.zero_start..leaves.zero_end].fill(root);
    }
    let others: Vec<usize> =
        (0..leaves.zero_start).chain(leaves.zero_end.max(leaves.zero_start)..n).collect();
    for group in others.chunks(TREES) {
        forest.set_leaves(group.len(), |tree, at| *leaves.get(group[tree], at));
        for (row, root) in group.iter().zip(forest.roots(group.len(), &ZeroNodes::none())) {
            roots[*row] = root;
        }
    }
    roots
}

/// Roots of all columns (secondary slivers). The subtrees under zero rows are the same in every column.
fn column_roots(leaves: &Leaves, zeros: &ZeroNodes) -> Vec<Digest> {
    let n = leaves.n;
    let mut roots = vec![[0; 32]; n];
    let mut forest = Forest::new(n);
    for (group, out) in roots.chunks_mut(TREES).enumerate() {
        let first = group * TREES;
        forest.set_leaves(out.len(), |tree, at| {
            if zeros.covers(0, at) { leaves.zero_leaf } else { *leaves.get(at, first + tree) }
        });
        out.copy_from_slice(&forest.roots(out.len(), zeros));
    }
    roots
}

/// Which nodes of a column's tree stand over zero leaves only, and their values level by level.
struct ZeroNodes {
    start: usize,
    end: usize,
    levels: Vec<Digest>,
}

impl ZeroNodes {
    fn none() -> Self {
        Self { start: 0, end: 0, levels: Vec::new() }
    }

    fn new(leaves: &Leaves) -> Self {
        if leaves.zero_start >= leaves.zero_end {
            return Self::none();
        }
        let mut node = leaves.zero_leaf;
        let mut levels = Vec::new();
        for _ in 0..usize::BITS {
            levels.push(node);
            if (1 << levels.len()) > leaves.zero_end {
                break;
            }
            let mut pair = [INNER_PREFIX; PAIR_BYTES];
            pair[1..33].copy_from_slice(&node);
            pair[33..].copy_from_slice(&node);
            hash_each(&pair, PAIR_BYTES, |_, hash| node = hash);
        }
        Self { start: leaves.zero_start, end: leaves.zero_end, levels }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether node `at` of a level (leaves are level 0) stands over zero leaves only.
    fn covers(&self, level: usize, at: usize) -> bool {
        !self.is_empty() && at << level >= self.start && (at + 1) << level <= self.end
    }

    /// The nodes of a level that [`Self::covers`] holds for, as a range that may be empty.
    fn range(&self, level: usize) -> std::ops::Range<usize> {
        let start = self.start.div_ceil(1 << level);
        start..(self.end >> level).max(start)
    }
}

/// Up to [`TREES`] trees of n leaves each, built level by level in step.
///
/// A level is kept as the inputs of the next one's hashes: each pair is the inner prefix and two nodes.
struct Forest {
    n: usize,
    level: Vec<u8>,
    next: Vec<u8>,
}

impl Forest {
    fn new(n: usize) -> Self {
        let bytes = TREES * n.div_ceil(2) * PAIR_BYTES;
        Self { n, level: vec![0; bytes], next: vec![0; bytes] }
    }

    /// Fills in the leaves of the first `trees` trees.
    fn set_leaves(&mut self, trees: usize, leaf: impl Fn(usize, usize) -> Digest) {
        let pairs = self.n.div_ceil(2);
        clear_level(&mut self.level, trees, pairs, self.n);
        for at in 0..self.n {
            for tree in 0..trees {
                put_node(&mut self.level, pairs, tree, at, &leaf(tree, at));
            }
        }
    }

    /// Hashes up to the roots. Nodes that `zeros` covers are filled in, not hashed.
    fn roots(&mut self, trees: usize, zeros: &ZeroNodes) -> Vec<Digest> {
        let mut roots = vec![[0; 32]; trees];
        let mut nodes = self.n.div_ceil(2);
        let mut height = 1;
        loop {
            let out_pairs = nodes.div_ceil(2);
            clear_level(&mut self.next, trees, out_pairs, nodes);
            let known = zeros.range(height);
            for (tree, root) in roots.iter_mut().enumerate() {
                let inputs = &self.level[tree * nodes * PAIR_BYTES..][..nodes * PAIR_BYTES];
                let next = &mut self.next;
                let mut emit = |at: usize, hash: Digest| {
                    if nodes == 1 { *root = hash } else { put_node(next, out_pairs, tree, at, &hash) }
                };
                let known = known.start.min(nodes)..known.end.min(nodes);
                hash_each(&inputs[..known.start * PAIR_BYTES], PAIR_BYTES, &mut emit);
                known.clone().for_each(|at| emit(at, zeros.levels[height]));
                let after = known.end.max(known.start);
                hash_each(&inputs[after * PAIR_BYTES..], PAIR_BYTES, |at, hash| emit(after + at, hash));
            }
            if nodes == 1 {
                return roots;
            }
            std::mem::swap(&mut self.level, &mut self.next);
            nodes = out_pairs;
            height += 1;
        }
    }
}

/// Prepares the prefixes, and the zero node that completes an odd level.
fn clear_level(level: &mut [u8], trees: usize, pairs: usize, nodes: usize) {
    for pair in level[..trees * pairs * PAIR_BYTES].chunks_exact_mut(PAIR_BYTES) {
        pair[0] = INNER_PREFIX;
    }
    if nodes % 2 == 1 {
        for tree in 0..trees {
            put_node(level, pairs, tree, nodes, &[0; 32]);
        }
    }
}

/// Writes node `at` of a tree into a level of `pairs` pairs a tree.
fn put_node(level: &mut [u8], pairs: usize, tree: usize, at: usize, node: &Digest) {
    let offset = (tree * pairs + at / 2) * PAIR_BYTES + 1 + at % 2 * 32;
    level[offset..offset + 32].copy_from_slice(node);
}
