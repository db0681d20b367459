//! Weights in the kernels' layout: tiles of 16 outputs, repacked once when a model is loaded.
//!
//! A tile holds all inputs of 16 consecutive outputs, and an output is a lane, so a product of matrices never
//! adds across lanes. Nothing is requantised: a tile holds the file's integers and the file's scales.
//!
//! **Quantised** weights have blocks of 32 inputs, in groups of one block, or of eight in the K formats. A
//! tile is a sequence of groups: each group's scales, then its blocks' integers. So a tile is read from its
//! first byte to its last. `weights.rs` defines the places of a model's tiles. In the integers, *operand* `g`
//! (0 to 7) is 64 bytes: byte `4 l + i` belongs to lane `l`, input `4 g + i`. The storage of the integers:
//! - 4 bits: 4 lines of 64 bytes; line `j` has operand `2 j` in its low nibbles and `2 j + 1` in its high
//!   nibbles;
//! - 5 bits: the same, then a line whose bit `g` is the fifth bit of operand `g`;
//! - 6 bits: the same 4 lines, then 2 lines; bits `2 j` and `2 j + 1` of line `k` are the upper bits of
//!   operand `4 k + j`;
//! - 8 bits: 8 lines, one for each operand, with 128 added.
//!
//! The scales:
//! - Q4_0, Q5_0, Q8_0: for each block 16 half-precision scales;
//! - Q4_1, Q5_1: for each block 16 half-precision scales and 16 half-precision minima;
//! - Q4_K, Q5_K: for each 8 blocks 16 half-precision scales and 16 *negated* half-precision scales of the
//!   minima. Then for each block 16 bytes (factors of the scale) and 16 bytes (factors of the minimum);
//! - Q6_K: for each 8 blocks 16 half-precision scales; then for each 16 inputs 16 signed bytes.
//!
//! **Floating-point** weights (F32, F16, BF16) keep the file's encoding, input by input: 16 lanes of input 0,
//! 16 of input 1, and so on.
//!
//! Zeros fill up matrices whose outputs are not a multiple of 32: tiles come in pairs.

use std::sync::Arc;

use crate::{
    arena::Arena,
    gguf::DType,
    half::{bf16_to_f32, f16_to_f32},
    lanes::{BLOCK, LANES},
    quant::QuantBlock,
};

/// A matrix's encoding and size, and the derived tile size.
#[derive(Debug, Clone, Copy)]
pub struct TileShape {
    dtype: DType,
    columns: usize,
    rows: usize,
    tile_bytes: usize,
}

/// A matrix in tiles.
pub struct Tiles {
    shape: TileShape,
    arena: Arc<Arena>,
    /// The offset of each tile.
    places: Vec<usize>,
}

/// Bytes of a block's integers, bytes of a group's scales, and blocks in a group; none for floating point.
#[must_use]
pub const fn layout(dtype: DType) -> Option<(usize, usize, usize)> {
    Some(match dtype {
        DType::Q4_0 => (256, 32, 1),
        DType::Q4_1 => (256, 64, 1),
        DType::Q5_0 => (320, 32, 1),
        DType::Q5_1 => (320, 64, 1),
        DType::Q8_0 => (512, 32, 1),
        DType::Q4K => (256, 64 + 8 * 32, 8),
        DType::Q5K => (320, 64 + 8 * 32, 8),
        DType::Q6K => (384, 32 + 16 * 16, 8),
        DType::F32 | DType::F16 | DType::Bf16 => return None,
    })
}

impl TileShape {
    /// The shape of `rows` rows of `columns` numbers. The columns are a multiple of 32, and of whole blocks.
    #[must_use]
    pub fn new(dtype: DType, rows: usize, columns: usize) -> Self {
        let bytes = match layout(dtype) {
            Some((quants, scales, group)) => columns / BLOCK / group * (scales + group * quants),
            None => columns * LANES * dtype.block().1,
        };
        Self { dtype, columns, rows, tile_bytes: bytes.next_multiple_of(64) }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of tiles: always even.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(2 * LANES) * 2
    }

    /// Bytes of a tile: a multiple of 64.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// Bytes of all tiles.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes
    }

    /// Repacks rows from the file's bytes into `tiles`. Each tile has [`Self::tile_bytes`] zero bytes.
    pub fn repack(&self, bytes: &[u8], tiles: &mut [&mut [u8]]) {
        let (block, block_bytes) = self.dtype.block();
        for (row, bytes) in bytes.chunks_exact(self.columns / block * block_bytes).enumerate() {
            self.put_row(row % LANES, bytes, tiles[row / LANES]);
        }
    }

    fn put_row(&self, lane: usize, bytes: &[u8], tile: &mut [u8]) {
        let dtype = self.dtype;
        let (block, block_bytes) = dtype.block();
        let Some((quant_bytes, scale_bytes, group_blocks)) = layout(dtype) else {
            for (input, number) in bytes.chunks_exact(block_bytes).enumerate() {
                let at = (input * LANES + lane) * block_bytes;
                tile[at..at + block_bytes].copy_from_slice(number);
            }
            return;
        };
        // A block of the file becomes a group of the tile.
        let groups = tile.chunks_exact_mut(scale_bytes + group_blocks * quant_bytes);
        for (bytes, group) in bytes.chunks_exact(block_bytes).zip(groups) {
            let source = QuantBlock::read(dtype, bytes);
            let (group, quants) = group.split_at_mut(scale_bytes);
            let values = &source.values.as_chunks::<BLOCK>().0[..block / BLOCK];
            for (values, quants) in values.iter().zip(quants.chunks_exact_mut(quant_bytes)) {
                put_values(dtype, lane, values, quants);
            }
            for (lines, scale) in group.as_chunks_mut::<32>().0.iter_mut().zip(source.halves()) {
                lines[2 * lane..2 * lane + 2].copy_from_slice(&scale.to_le_bytes());
            }
            let factors = source.factors();
            let at = scale_bytes - factors.len() * LANES;
            for (lines, factor) in group[at..].as_chunks_mut::<LANES>().0.iter_mut().zip(factors) {
                lines[lane] = *factor;
            }
        }
    }
}

impl Tiles {
    /// Tiles in an arena, at the offsets in `places`.
    ///
    /// # Panics
    /// If a tile is outside the arena, or `places` has the wrong length.
    #[must_use]
    pub fn new(shape: TileShape, arena: Arc<Arena>, places: Vec<usize>) -> Self {
        assert!(places.len() == shape.tiles(), "a place for each tile");
        for place in &places {
            assert!(arena.bytes(*place, shape.tile_bytes).len() == shape.tile_bytes, "room in the arena");
        }
        Self { shape, arena, places }
    }

    /// Repacks one matrix into its own arena.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn repack(dtype: DType, rows: usize, columns: usize, bytes: &[u8]) -> std::io::Result<Self> {
        let shape = TileShape::new(dtype, rows, columns);
        let mut arena = Arena::new(shape.bytes())?;
        let mut tiles: Vec<&mut [u8]> = arena.bytes_mut().chunks_exact_mut(shape.tile_bytes.max(1)).collect();
        shape.repack(bytes, &mut tiles);
        let places = (0..shape.tiles()).map(|tile| tile * shape.tile_bytes).collect();
        Ok(Self::new(shape, arena.share(), places))
    }

    /// A tile's bytes.
    #[must_use]
    pub fn tile(&self, tile: usize) -> &[u8] {
        self.arena.bytes(self.places[tile], self.shape.tile_bytes)
    }

    /// The matrix's shape.
    #[must_use]
    pub fn shape(&self) -> TileShape {
        self.shape
    }

    /// The encoding.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// Inputs.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.shape.columns
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    /// Bytes of all tiles.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// One output's weights as numbers: an embedding. Each is `scale x integer`; in formats with a minimum, a
    /// fused multiply-add adds the minimum.
    ///
    /// # Panics
    /// If `row` is not below [`Self::rows`], or if `out` is shorter than the inputs.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        let TileShape { dtype, columns, rows, .. } = self.shape;
        assert!(row < rows, "a row of the matrix");
        let (tile, lane) = (self.tile(row / LANES), row % LANES);
        let half = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
        let Some((quant_bytes, scale_bytes, group_blocks)) = layout(dtype) else {
            for (input, out) in out[..columns].iter_mut().enumerate() {
                let at = input * LANES + lane;
                *out = match dtype {
                    DType::F16 => f16_to_f32(half(tile, at)),
                    DType::Bf16 => bf16_to_f32(half(tile, at)),
                    _ => f32::from_le_bytes([
                        tile[4 * at],
                        tile[4 * at + 1],
                        tile[4 * at + 2],
                        tile[4 * at + 3],
                    ]),
                };
            }
            return;
        };
        let group_bytes = scale_bytes + group_blocks * quant_bytes;
        for (index, out) in out[..columns].as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let within = index % group_blocks;
            let group = &tile[index / group_blocks * group_bytes..][..group_bytes];
            let (group, quants) = group.split_at(scale_bytes);
            let quants = &quants[within * quant_bytes..][..quant_bytes];
            let scale = f16_to_f32(half(group, lane));
            let minimum = || f16_to_f32(half(group, LANES + lane));
            for (input, out) in out.iter_mut().enumerate() {
                let value = f32::from(get_value(dtype, lane, input, quants));
                *out = match dtype {
                    DType::Q4_0 => scale * (value - 8.0),
                    DType::Q5_0 => scale * (value - 16.0),
                    DType::Q8_0 => scale * (value - 128.0),
                    DType::Q4_1 | DType::Q5_1 => scale.mul_add(value, minimum()),
                    DType::Q4K | DType::Q5K => {
                        let factors = &group[64 + within * 32..];
                        (scale * f32::from(factors[lane]))
                            .mul_add(value, minimum() * f32::from(factors[LANES + lane]))
                    }
                    _ => {
                        let factor = group[32 + (2 * within + input / 16) * LANES + lane];
                        scale * f32::from(factor.cast_signed()) * (value - 32.0)
                    }
                };
            }
        }
    }
}

/// Writes 32 integers of one lane into a block.
fn put_values(dtype: DType, lane: usize, values: &[u8; BLOCK], quants: &mut [u8]) {
    for (input, value) in values.iter().enumerate() {
        let (operand, byte) = (input / 4, 4 * lane + input % 4);
        if dtype == DType::Q8_0 {
            quants[64 * operand + byte] = *value;
            continue;
        }
        quants[64 * (operand / 2) + byte] |= (value & 15) << (4 * (operand % 2));
        if dtype == DType::Q6K {
            quants[256 + 64 * (operand / 4) + byte] |= (value >> 4) << (2 * (operand % 4));
        } else if quants.len() > 256 {
            quants[256 + byte] |= (value >> 4) << operand;
        }
    }
}

/// Reads an integer of a block.
fn get_value(dtype: DType, lane: usize, input: usize, quants: &[u8]) -> u8 {
    let (operand, byte) = (input / 4, 4 * lane + input % 4);
    if dtype == DType::Q8_0 {
        return quants[64 * operand + byte];
    }
    let low = quants[64 * (operand / 2) + byte] >> (4 * (operand % 2)) & 15;
    let high = if dtype == DType::Q6K {
        quants[256 + 64 * (operand / 4) + byte] >> (2 * (operand % 4)) & 3
    } else if quants.len() > 256 {
        quants[256 + byte] >> operand & 1
    } else {
        0
    };
    low | high << 4
}
