//! Tensors: their encodings, shapes and sizes.

use super::{GgufError, MAX_NAME_BYTES, MAX_TENSOR_ELEMENTS, cursor::Cursor, unsound};

/// The encoding of a tensor's numbers, with its number in a file. The names are ggml's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are ggml's")]
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q4K = 12,
    Q5K = 13,
    Q6K = 14,
    Bf16 = 30,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u32 == id)
    }

    /// Numbers in a block, and bytes of a block.
    #[must_use]
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }
}

/// A tensor's name, shape and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its encoding.
    pub dtype: DType,
    /// Numbers in a row: the dimension that varies fastest. For a matrix, its inputs.
    pub columns: usize,
    /// Rows: the product of the other dimensions. For a matrix, its outputs.
    pub rows: usize,
    /// Number of dimensions in the file.
    pub dimensions: usize,
    /// Offset of its first byte from the file's start.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Tensor {
    /// Reads a tensor's description. Its offset is still relative to the start of the data.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        const WHAT: &str = "a tensor's description";
        let name = cursor.string("a tensor's name", MAX_NAME_BYTES)?.to_owned();
        let refuse = |why| unsound(format!("tensor {name:?} has a shape that is not accepted: {why}"));
        let dimensions = cursor.u32(WHAT)?;
        if !(1..=4).contains(&dimensions) {
            return Err(refuse("one to four dimensions are"));
        }
        let (mut columns, mut rows) = (0, 1_u64);
        for index in 0..dimensions {
            let size = cursor.u64(WHAT)?;
            if size == 0 {
                return Err(refuse("a dimension of zero"));
            }
            if index == 0 {
                columns = size;
            } else {
                rows = rows.checked_mul(size).ok_or_else(|| refuse("too many rows"))?;
            }
        }
        if columns.checked_mul(rows).is_none_or(|elements| elements > MAX_TENSOR_ELEMENTS) {
            return Err(refuse("too many elements"));
        }
        let id = cursor.u32(WHAT)?;
        let offset = cursor.u64(WHAT)?;
        let Some(dtype) = DType::from_id(id) else {
            return Err(GgufError::TensorType { name, id });
        };
        let (block, block_bytes) = dtype.block();
        if !columns.is_multiple_of(block as u64) {
            return Err(refuse("its rows are no whole blocks"));
        }
        // Cannot overflow: at most 2^40 elements of at most 4 bytes.
        let bytes = columns / block as u64 * block_bytes as u64 * rows;
        let size = |value| usize::try_from(value).map_err(|_| refuse("too large for this machine"));
        let (columns, rows) = (size(columns)?, size(rows)?);
        Ok(Self { dtype, columns, rows, dimensions: dimensions as usize, offset, bytes, name })
    }
}
