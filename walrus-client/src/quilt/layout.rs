//! The positions of bytes in a quilt: columns of k1 symbols, filled from the top, in a matrix stored row by
//! row.

use super::{INDEX_PREFIX_BYTES, MAX_INDEX_COLUMNS, QuiltError, refused};
use crate::blob_id::{MAX_SYMBOL_SIZE, ShardCount};

/// The matrix: k1 rows and k2 columns of symbols of an even size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    rows: usize,
    columns: usize,
    symbol: usize,
}

/// Most patches of a quilt: each needs a column, and so does the index.
#[must_use]
pub fn max_patches(shards: ShardCount) -> usize {
    shards.columns() - 1
}

/// The refusal of more patches than there are columns for.
pub(super) fn too_many(given: usize, limit: usize) -> QuiltError {
    refused(format!("{given} patches are too many: there are columns for {limit}"))
}

impl Layout {
    /// The layout with the smallest symbols that hold an index and patches of these sizes.
    pub(super) fn smallest(
        shards: ShardCount,
        index_length: usize,
        patches: &[usize],
    ) -> Result<Self, QuiltError> {
        let with = |half: usize| Self { rows: shards.rows(), columns: shards.columns(), symbol: 2 * half };
        let fits = |half: usize| {
            let layout = with(half);
            let index_columns = layout.columns_for(index_length);
            let patch_columns =
                patches.iter().try_fold(0_usize, |sum, size| sum.checked_add(layout.columns_for(*size)));
            layout.column_bytes() >= INDEX_PREFIX_BYTES
                && index_columns <= layout.max_index_columns()
                && patch_columns.is_some_and(|columns| columns <= layout.columns - index_columns)
        };
        // If one size fits, every larger size fits, so binary search finds the smallest.
        let (mut low, mut high) = (1, MAX_SYMBOL_SIZE / 2);
        if !fits(high) {
            return Err(refused(format!("the patches are too large for one quilt on {shards} shards")));
        }
        while low < high {
            let middle = low.midpoint(high);
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        Ok(with(low))
    }

    /// The layout of a quilt of this length.
    pub(super) fn of_length(length: usize, shards: ShardCount) -> Result<Self, QuiltError> {
        let (rows, columns) = (shards.rows(), shards.columns());
        let symbol = length / (rows * columns);
        let whole = length.is_multiple_of(rows * columns) && symbol.is_multiple_of(2);
        if !whole || symbol == 0 || symbol > MAX_SYMBOL_SIZE {
            return Err(refused(format!("{length} bytes are no quilt on {shards} shards")));
        }
        Ok(Self { rows, columns, symbol })
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Columns that the index may take.
    pub(super) fn max_index_columns(&self) -> usize {
        self.columns.min(MAX_INDEX_COLUMNS)
    }

    /// Bytes of the whole matrix.
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.columns * self.symbol
    }

    /// Bytes of one column.
    pub(super) fn column_bytes(&self) -> usize {
        self.rows * self.symbol
    }

    /// Columns that this many bytes take.
    pub(super) fn columns_for(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.column_bytes())
    }

    /// The positions in the matrix of `length` bytes that start `skip` bytes below a column's top, symbol by
    /// symbol.
    fn pieces(&self, column: usize, skip: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
        let layout = *self;
        let mut at = skip;
        let end = skip + length;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (down, inside) = (at / layout.symbol, at % layout.symbol);
            let (column, row) = (column + down / layout.rows, down % layout.rows);
            let length = (layout.symbol - inside).min(end - at);
            at += length;
            Some(((row * layout.columns + column) * layout.symbol + inside, length))
        })
    }

    /// Writes bytes that fit, from `skip` bytes below the top of a column.
    #[expect(clippy::indexing_slicing, reason = "callers give bytes that fit")]
    pub(super) fn write(&self, matrix: &mut [u8], column: usize, skip: usize, mut bytes: &[u8]) {
        for (at, length) in self.pieces(column, skip, bytes.len()) {
            let (piece, rest) = bytes.split_at(length);
            matrix[at..at + length].copy_from_slice(piece);
            bytes = rest;
        }
    }

    /// Reads `length` bytes, from `skip` bytes below the top of column `start`. Returns `None` unless they
    /// end before column `end`, which is at most k2. Checks this before it allocates.
    pub(super) fn read(
        &self,
        matrix: &[u8],
        start: usize,
        end: usize,
        skip: usize,
        length: usize,
    ) -> Option<Vec<u8>> {
        let room = end.checked_sub(start)?.checked_mul(self.column_bytes())?;
        if end > self.columns || matrix.len() != self.bytes() || skip.checked_add(length)? > room {
            return None;
        }
        let mut out = Vec::with_capacity(length);
        for (at, length) in self.pieces(start, skip, length) {
            out.extend_from_slice(matrix.get(at..at + length)?);
        }
        Some(out)
    }
}
