//! Walrus's Merkle trees, eight at a time.
//!
//! leaf(x) = H(0x00 ‖ x), inner(l, r) = H(0x01 ‖ l ‖ r). H is BLAKE2b with a 32-byte output. A level with an
//! odd count of more than one node gets a node of 32 zero bytes appended.

use super::kernel::{HashKernel, Nodes, ZERO_NODES};

/// A node of a tree.
pub(super) type TreeHash = [u8; 32];

const LEAF_PREFIX: u8 = 0;
const INNER_PREFIX: u8 = 1;

/// BLAKE2b of concatenated parts with a 32-byte output (a parameter of the hash, not a truncation).
pub(super) fn hash(parts: &[&[u8]]) -> TreeHash {
    let mut state = blake2b_simd::Params::new().hash_length(32).to_state();
    for part in parts {
        state.update(part);
    }
    state.finalize().as_bytes().try_into().expect("the parameters ask for 32 bytes")
}

/// One lane of eight hashes.
#[expect(clippy::indexing_slicing, reason = "a lane of eight")]
pub(super) fn lane(nodes: &Nodes, lane: usize) -> TreeHash {
    let mut digest = [0; 32];
    for (bytes, word) in digest.chunks_exact_mut(8).zip(nodes) {
        bytes.copy_from_slice(&word.0[lane].to_le_bytes());
    }
    digest
}

/// Reduces eight trees of one size, one in each lane, level by level in place. Stops after `levels`, or when
/// each tree has a single node. Returns the first nodes.
#[expect(clippy::indexing_slicing, reason = "parents are fewer than nodes, and callers give a node at least")]
pub(super) fn reduce(kernel: HashKernel, nodes: &mut [Nodes], levels: Option<u32>) -> Nodes {
    let mut count = nodes.len();
    let mut level = 0;
    while levels.map_or(count > 1, |levels| level < levels) {
        let parents = count.div_ceil(2);
        for parent in 0..parents {
            let right = if 2 * parent + 1 < count { nodes[2 * parent + 1] } else { ZERO_NODES };
            nodes[parent] = kernel.inner(&nodes[2 * parent], &right);
        }
        count = parents;
        level += 1;
    }
    nodes[0]
}

/// Trees over columns that arrive row by row, eight columns in a group. Holds one pending node for each
/// level, so its memory grows only with the logarithm of the rows.
pub(super) struct ColumnTrees {
    kernel: HashKernel,
    /// Rows taken so far: bit i means that level i has a pending node.
    count: usize,
    /// For each level, the pending node of each group.
    pending: Vec<Vec<Nodes>>,
}

impl ColumnTrees {
    pub(super) fn new(kernel: HashKernel) -> Self {
        Self { kernel, count: 0, pending: Vec::new() }
    }

    /// Takes the leaves of the next row, and overwrites them.
    pub(super) fn push(&mut self, leaves: &mut [Nodes]) {
        self.push_at(0, leaves);
    }

    /// Takes nodes of a level, each over 2^level rows. The count so far is a multiple of that number.
    #[expect(clippy::indexing_slicing, reason = "the levels below have pending nodes")]
    fn push_at(&mut self, mut level: usize, nodes: &mut [Nodes]) {
        let rows = 1 << level;
        while self.count >> level & 1 == 1 {
            for (node, left) in nodes.iter_mut().zip(&self.pending[level]) {
                *node = self.kernel.inner(left, node);
            }
            level += 1;
        }
        while self.pending.len() <= level {
            self.pending.push(vec![ZERO_NODES; nodes.len()]);
        }
        self.pending[level].copy_from_slice(nodes);
        self.count += rows;
    }

    /// Takes rows that all have this leaf, in a number of steps that grows with the levels.
    #[expect(clippy::indexing_slicing, reason = "the subtrees reach the level")]
    pub(super) fn push_equal(&mut self, mut rows: usize, leaf: &Nodes, groups: usize) {
        let mut subtrees = vec![*leaf];
        while rows > 0 {
            let level = self.count.trailing_zeros().min(rows.ilog2()) as usize;
            while subtrees.len() <= level {
                let top = subtrees[subtrees.len() - 1];
                subtrees.push(self.kernel.inner(&top, &top));
            }
            self.push_at(level, &mut vec![subtrees[level]; groups]);
            rows -= 1 << level;
        }
    }

    /// The roots. At least one row has been taken.
    #[expect(clippy::indexing_slicing, reason = "both sides have a node for each group")]
    pub(super) fn finish(self) -> Vec<Nodes> {
        // The node right of the pending nodes of the level, if there is any.
        let mut carried: Option<Vec<Nodes>> = None;
        for (level, pending) in self.pending.into_iter().enumerate() {
            let before = self.count >> level;
            let has_pending = before & 1 == 1;
            let nodes = before + usize::from(carried.is_some());
            if nodes == 1 {
                return carried.unwrap_or(pending);
            }
            let join = |left: &[Nodes], right: Option<&[Nodes]>| -> Vec<Nodes> {
                let right = |at: usize| right.map_or(ZERO_NODES, |right| right[at]);
                left.iter().enumerate().map(|(at, left)| self.kernel.inner(left, &right(at))).collect()
            };
            carried = match carried {
                Some(right) if has_pending => Some(join(&pending, Some(&right))),
                Some(left) => Some(join(&left, None)),
                None if has_pending => Some(join(&pending, None)),
                None => None,
            };
        }
        carried.expect("a tree with a leaf has a root")
    }
}

/// Root of the tree over all sliver pairs: primary sliver i with secondary sliver n-1-i.
#[expect(clippy::indexing_slicing, reason = "chunks and the last level have a node at least")]
pub(super) fn pair_root(primary: &[TreeHash], secondary: &[TreeHash]) -> TreeHash {
    let mut level: Vec<TreeHash> = primary
        .iter()
        .zip(secondary.iter().rev())
        .map(|(primary, secondary)| hash(&[&[LEAF_PREFIX], primary, secondary]))
        .collect();
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| hash(&[&[INNER_PREFIX], &pair[0], pair.get(1).unwrap_or(&[0; 32])]))
            .collect();
    }
    level[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob_id::kernel::{HashWords, LANES};

    fn plain_root(mut level: Vec<TreeHash>) -> TreeHash {
        while level.len() > 1 {
            if level.len() % 2 == 1 {
                level.push([0; 32]);
            }
            level = level.chunks(2).map(|pair| hash(&[&[1], &pair[0], &pair[1]])).collect();
        }
        level[0]
    }

    /// A node in every lane.
    fn in_every_lane(digest: &TreeHash) -> Nodes {
        std::array::from_fn(|word| {
            let bytes = digest[word * 8..][..8].try_into().expect("eight bytes");
            HashWords([u64::from_le_bytes(bytes); LANES])
        })
    }

    fn leaf(row: usize) -> TreeHash {
        *blake3::hash(&row.to_le_bytes()).as_bytes()
    }

    #[test]
    fn trees_of_every_size_have_the_root_of_the_plain_rules() {
        let kernel = HashKernel::fastest();
        for rows in 1..70 {
            let expected = plain_root((0..rows).map(leaf).collect());
            let mut nodes: Vec<Nodes> = (0..rows).map(|row| in_every_lane(&leaf(row))).collect();
            assert_eq!(lane(&reduce(kernel, &mut nodes, None), 5), expected, "{rows} rows at once");
            let mut trees = ColumnTrees::new(kernel);
            for row in 0..rows {
                trees.push(&mut [ZERO_NODES, in_every_lane(&leaf(row))]);
            }
            assert_eq!(lane(&trees.finish()[1], 7), expected, "{rows} rows one by one");
        }
    }

    #[test]
    fn equal_rows_count_as_if_each_were_pushed() {
        let kernel = HashKernel::fastest();
        for (before, equal, after) in [(0, 1, 0), (0, 37, 0), (1, 30, 5), (8, 8, 16), (5, 300, 1), (3, 1, 2)]
        {
            let rows = (0..before).chain(std::iter::repeat_n(999, equal)).chain(before..before + after);
            let expected = plain_root(rows.map(leaf).collect());
            let mut trees = ColumnTrees::new(kernel);
            (0..before).for_each(|row| trees.push(&mut [in_every_lane(&leaf(row))]));
            trees.push_equal(equal, &in_every_lane(&leaf(999)), 1);
            (before..before + after).for_each(|row| trees.push(&mut [in_every_lane(&leaf(row))]));
            assert_eq!(lane(&trees.finish()[0], 0), expected, "{before} + {equal} + {after}");
        }
    }
}
