//! Products of weights in tiles and rows of activations.
//!
//! For one output and one row of a quantised matrix, every path computes the same result. It starts from 0
//! and does this for each block of 32 inputs in order:
//!
//! 1. The exact integer product `n`, as a float.
//! 2. `fma(n, scale x activation's scale, result)`.
//! 3. In formats with a minimum, `fma(minimum, activation's scaled sum, result)`.
//!
//! Formats without a minimum subtract their offset within `n`. Q6_K does the first two steps for each 16
//! inputs. Floating-point weights use, for each input in order, `fma(weight, activation, result)`.
//!
//! Few rows are multiplied directly from the tiles. For many rows, a tile's integers are spread out to bytes
//! once, for all rows. The steps, and so the bits, are the same.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
// Register arrays are indexed in loops: an iterator's own state may keep them out of registers.
#![expect(clippy::needless_range_loop, reason = "as above")]

mod formats;
mod loops;

use std::marker::PhantomData;

use formats::{Bf16, BlockArithmetic, F16, F32, Float, Format, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

use loops::{direct_rows, float_rows, spread_rows, spread_tile};

use super::{
    Isa, Kernel, LANES, Simd,
    math::{gelu, silu},
    rows::{ActBlock, BLOCK},
};
use crate::{gguf::DType, tiles::Tiles};

/// Maximum number of rows for which a matrix is multiplied directly from its tiles.
pub const DIRECT_ROWS: usize = 8;

/// A tile of a matrix.
#[derive(Clone, Copy)]
pub struct TileRef<'a> {
    /// The matrix.
    pub matrix: &'a Tiles,
    /// The tile's number in it.
    pub tile: usize,
}

/// How to combine the results of a panel's two tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// 32 outputs.
    Both,
    /// 16 outputs: `silu(first) x second`.
    Silu,
    /// 16 outputs: `gelu(first) x second`.
    Gelu,
}

impl Epilogue {
    /// Outputs of a panel.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::Both => 2 * LANES,
            Self::Silu | Self::Gelu => LANES,
        }
    }
}

/// 32 inputs of a tile, spread out: operands as bytes, scales as floats.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct SpreadBlock {
    operands: [[u8; 64]; 8],
    first: [f32; LANES],
    second: [f32; LANES],
}

impl SpreadBlock {
    /// An empty value.
    pub const EMPTY: Self = Self { operands: [[0; 64]; 8], first: [0.0; LANES], second: [0.0; LANES] };
}

/// Activations: rows of blocks for quantised weights, rows of numbers for floating-point weights.
#[derive(Clone, Copy)]
pub struct Acts<'a> {
    /// `columns / 32` blocks for each row.
    pub blocks: &'a [ActBlock],
    /// `columns` numbers for each row.
    pub floats: &'a [f32],
}

/// Multiplies a panel, which is two tiles, with rows of activations.
pub struct Panel<'a> {
    /// The tiles, of the same inputs.
    pub tiles: [TileRef<'a>; 2],
    /// The activations of `rows` rows.
    pub acts: Acts<'a>,
    /// How many rows.
    pub rows: usize,
    /// Whether to multiply directly from the tiles.
    pub direct: bool,
    /// How to combine the results.
    pub epilogue: Epilogue,
    /// `epilogue.width()` numbers for each row.
    pub out: &'a mut [f32],
    /// Room for the spread-out tiles: `2 x columns / 32`, if not direct.
    pub spread: &'a mut [SpreadBlock],
}

/// Calls `$call` with `$Q` as the format of `$dtype`, a quantised type.
macro_rules! with_format {
    ($dtype:expr, $Q:ident => $call:expr) => {
        match $dtype {
            DType::Q4_0 => {
                type $Q = Q4_0;
                $call
            }
            DType::Q4_1 => {
                type $Q = Q4_1;
                $call
            }
            DType::Q5_0 => {
                type $Q = Q5_0;
                $call
            }
            DType::Q5_1 => {
                type $Q = Q5_1;
                $call
            }
            DType::Q8_0 => {
                type $Q = Q8_0;
                $call
            }
            DType::Q4K => {
                type $Q = Q4K;
                $call
            }
            DType::Q5K => {
                type $Q = Q5K;
                $call
            }
            _ => {
                type $Q = Q6K;
                $call
            }
        }
    };
}

impl Panel<'_> {
    /// Multiplies.
    pub fn run(self, isa: Isa) {
        let Self { tiles, acts, rows, direct, epilogue, out, spread } = self;
        let [first, second] = tiles.map(|tile| tile.matrix.dtype());
        let out = Out { epilogue, out };
        if first != second {
            return mixed(isa, tiles, acts, rows, out);
        }
        match first {
            DType::F32 => {
                isa.run(FloatPanel::<F32> { tiles, acts: acts.floats, rows, out, weights: PhantomData })
            }
            DType::F16 => {
                isa.run(FloatPanel::<F16> { tiles, acts: acts.floats, rows, out, weights: PhantomData })
            }
            DType::Bf16 => {
                isa.run(FloatPanel::<Bf16> { tiles, acts: acts.floats, rows, out, weights: PhantomData })
            }
            dtype if direct => with_format!(dtype, Q => {
                isa.run(DirectPanel::<Q> { tiles, acts: acts.blocks, rows, out, format: PhantomData });
            }),
            dtype => {
                let blocks = tiles[0].matrix.columns() / BLOCK;
                let (first, second) = spread[..2 * blocks].split_at_mut(blocks);
                with_format!(dtype, Q => {
                    isa.run(SpreadOut::<Q> { tile: tiles[0], spread: first, format: PhantomData });
                    isa.run(SpreadOut::<Q> { tile: tiles[1], spread: second, format: PhantomData });
                    type T = <Q as Format>::Arithmetic;
                    isa.run(SpreadPanel::<T> {
                        tiles: [&*first, &*second],
                        acts: acts.blocks,
                        rows,
                        out,
                        arithmetic: PhantomData,
                    });
                });
            }
        }
    }
}

/// Multiplies two tiles of different encodings, each row by the single-row path.
fn mixed(isa: Isa, tiles: [TileRef<'_>; 2], acts: Acts<'_>, rows: usize, mut out: Out<'_>) {
    for row in 0..rows {
        let mut results = [[0.0; LANES]; 2];
        for (tile, result) in tiles.into_iter().zip(&mut results) {
            let columns = tile.matrix.columns();
            let floats = acts.floats.get(row * columns..).unwrap_or_default();
            let blocks = acts.blocks.get(row * (columns / BLOCK)..).unwrap_or_default();
            match tile.matrix.dtype() {
                DType::F32 => isa.run(FloatTile::<F32> { tile, acts: floats, result, weights: PhantomData }),
                DType::F16 => isa.run(FloatTile::<F16> { tile, acts: floats, result, weights: PhantomData }),
                DType::Bf16 => {
                    isa.run(FloatTile::<Bf16> { tile, acts: floats, result, weights: PhantomData })
                }
                dtype => with_format!(dtype, Q => {
                    isa.run(DirectTile::<Q> { tile, acts: blocks, result, format: PhantomData });
                }),
            }
        }
        isa.run(StoreRow { out: &mut out, row, results });
    }
}

struct FloatTile<'a, W> {
    tile: TileRef<'a>,
    acts: &'a [f32],
    result: &'a mut [f32; LANES],
    weights: PhantomData<W>,
}

impl<W: Float> Kernel for FloatTile<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        s.store(float_rows::<S, W, 1, 1>(s, [self.tile], self.acts)[0][0], self.result);
    }
}

struct DirectTile<'a, Q> {
    tile: TileRef<'a>,
    acts: &'a [ActBlock],
    result: &'a mut [f32; LANES],
    format: PhantomData<Q>,
}

impl<Q: Format> Kernel for DirectTile<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [result] = direct_rows::<S, Q, 1>(s, self.tile, self.acts);
        s.store(result, self.result);
    }
}

/// The destination of results, and how to combine them.
struct Out<'a> {
    epilogue: Epilogue,
    out: &'a mut [f32],
}

impl Out<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, row: usize, [first, second]: [S::F; 2]) {
        match self.epilogue {
            Epilogue::Both => {
                let out: &mut [f32; 2 * LANES] =
                    self.out[row * 2 * LANES..].first_chunk_mut().expect("room for each row");
                let (low, high) = out.split_at_mut(LANES);
                s.store(first, low.try_into().expect("16 of 32"));
                s.store(second, high.try_into().expect("16 of 32"));
            }
            Epilogue::Silu => s.store(s.mul(silu(s, first), second), self.half_row(row)),
            Epilogue::Gelu => s.store(s.mul(gelu(s, first), second), self.half_row(row)),
        }
    }

    #[inline(always)]
    fn half_row(&mut self, row: usize) -> &mut [f32; LANES] {
        self.out[row * LANES..].first_chunk_mut().expect("room for each row")
    }

    /// Stores some rows' results, and returns their number.
    #[inline(always)]
    fn put_all<S: Simd, const R: usize>(&mut self, s: S, row: usize, results: [[S::F; 2]; R]) -> usize {
        for at in 0..R {
            self.put(s, row + at, results[at]);
        }
        R
    }
}

/// Stores the results of one row.
struct StoreRow<'a, 'b> {
    out: &'a mut Out<'b>,
    row: usize,
    results: [[f32; LANES]; 2],
}

impl Kernel for StoreRow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [first, second] = &self.results;
        self.out.put(s, self.row, [s.load(first), s.load(second)]);
    }
}

struct DirectPanel<'a, Q> {
    tiles: [TileRef<'a>; 2],
    acts: &'a [ActBlock],
    rows: usize,
    out: Out<'a>,
    format: PhantomData<Q>,
}

impl<Q: Format> DirectPanel<'_, Q> {
    /// Multiplies `R` rows from `row` on, first with one tile, then with the other. Returns `R`.
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, s: S, row: usize) -> usize {
        let acts = &self.acts[row * (self.tiles[0].matrix.columns() / BLOCK)..];
        let first = direct_rows::<S, Q, R>(s, self.tiles[0], acts);
        let second = direct_rows::<S, Q, R>(s, self.tiles[1], acts);
        for at in 0..R {
            self.out.put(s, row + at, [first[at], second[at]]);
        }
        R
    }
}

impl<Q: Format> Kernel for DirectPanel<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut row = 0;
        while row < self.rows {
            row += match self.rows - row {
                1 => self.rows::<S, 1>(s, row),
                2 | 3 => self.rows::<S, 2>(s, row),
                8.. if S::MANY_REGISTERS => self.rows::<S, 8>(s, row),
                _ => self.rows::<S, 4>(s, row),
            };
        }
    }
}

struct SpreadPanel<'a, T> {
    tiles: [&'a [SpreadBlock]; 2],
    acts: &'a [ActBlock],
    rows: usize,
    out: Out<'a>,
    arithmetic: PhantomData<T>,
}

impl<T: BlockArithmetic> Kernel for SpreadPanel<'_, T> {
    type Output = ();

    /// Takes as many rows at once as the registers hold: six with 32 registers of 16 lanes, otherwise fewer.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tiles, rows, mut out, .. } = self;
        let row_blocks = tiles[0].len();
        let mut row = 0;
        while row < rows {
            let acts = &self.acts[row * row_blocks..];
            row += match rows - row {
                6.. if S::MANY_REGISTERS => out.put_all(s, row, spread_rows::<S, T, 6>(s, tiles, acts)),
                4.. if S::MANY_REGISTERS => out.put_all(s, row, spread_rows::<S, T, 4>(s, tiles, acts)),
                2.. => out.put_all(s, row, spread_rows::<S, T, 2>(s, tiles, acts)),
                _ => out.put_all(s, row, spread_rows::<S, T, 1>(s, tiles, acts)),
            };
        }
    }
}

struct FloatPanel<'a, W> {
    tiles: [TileRef<'a>; 2],
    acts: &'a [f32],
    rows: usize,
    out: Out<'a>,
    weights: PhantomData<W>,
}

impl<W: Float> Kernel for FloatPanel<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tiles, rows, mut out, .. } = self;
        let columns = tiles[0].matrix.columns();
        let mut row = 0;
        while row < rows {
            let acts = &self.acts[row * columns..];
            row += match rows - row {
                8.. if S::MANY_REGISTERS => out.put_all(s, row, float_rows::<S, W, 8, 2>(s, tiles, acts)),
                3.. => out.put_all(s, row, float_rows::<S, W, 3, 2>(s, tiles, acts)),
                _ => out.put_all(s, row, float_rows::<S, W, 1, 2>(s, tiles, acts)),
            };
        }
    }
}

struct SpreadOut<'a, Q> {
    tile: TileRef<'a>,
    spread: &'a mut [SpreadBlock],
    format: PhantomData<Q>,
}

impl<Q: Format> Kernel for SpreadOut<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        spread_tile::<S, Q>(s, self.tile, self.spread);
    }
}
