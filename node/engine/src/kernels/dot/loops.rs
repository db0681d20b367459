//! The innermost loops of products.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
// Register arrays are indexed in loops: an iterator's own state may keep them out of registers.
#![expect(clippy::needless_range_loop, reason = "as above")]

use super::{
    super::{
        LANES, Simd,
        rows::{ActBlock, BLOCK},
    },
    SpreadBlock, TileRef,
    formats::{BlockArithmetic, Float, Format},
};

/// Spreads a tile out.
#[inline(always)]
pub(super) fn spread_tile<S: Simd, Q: Format>(s: S, tile: TileRef<'_>, spread: &mut [SpreadBlock]) {
    let bytes = tile.matrix.tile(tile.tile);
    for (index, spread) in spread.iter_mut().enumerate() {
        let (group, quants) = block_of::<Q>(bytes, index);
        let operands = Q::operands(s, quants);
        for (to, operand) in spread.operands.iter_mut().zip(operands) {
            s.store_b(operand, to);
        }
        let (first, second) = Q::scales(s, group, index % Q::GROUP);
        s.store(first, &mut spread.first);
        s.store(second, &mut spread.second);
    }
}

/// Multiplies `R` rows with two spread-out tiles.
#[inline(always)]
pub(super) fn spread_rows<S: Simd, T: BlockArithmetic, const R: usize>(
    s: S,
    tiles: [&[SpreadBlock]; 2],
    acts: &[ActBlock],
) -> [[S::F; 2]; R] {
    let blocks = tiles[0].len();
    let mut rows = [&acts[..blocks]; R];
    for (row, of) in rows.iter_mut().enumerate() {
        *of = &acts[row * blocks..][..blocks];
    }
    let mut results = [[s.splat(0.0); 2]; R];
    for (block, (first, second)) in tiles[0].iter().zip(tiles[1]).enumerate() {
        let mut acts = [&rows[0][block]; R];
        for row in 1..R {
            acts[row] = &rows[row][block];
        }
        for part in 0..T::PARTS {
            let mut sums = [[T::start(s, acts[0], part); 2]; R];
            for row in 1..R {
                sums[row] = [T::start(s, acts[row], part); 2];
            }
            let operands = part * 8 / T::PARTS..(part + 1) * 8 / T::PARTS;
            for operand in operands {
                let weights = [s.load_b(&first.operands[operand]), s.load_b(&second.operands[operand])];
                for row in 0..R {
                    for tile in 0..2 {
                        sums[row][tile] = T::dot(s, sums[row][tile], weights[tile], acts[row].q[operand]);
                    }
                }
            }
            let scales = if part == 0 {
                [s.load(&first.first), s.load(&second.first)]
            } else {
                [s.load(&first.second), s.load(&second.second)]
            };
            for row in 0..R {
                let act = s.splat(acts[row].scale);
                for tile in 0..2 {
                    let scale = s.mul(scales[tile], act);
                    results[row][tile] = s.fma(s.to_float(sums[row][tile]), scale, results[row][tile]);
                }
            }
        }
        if T::MINIMUM {
            let minima = [s.load(&first.second), s.load(&second.second)];
            for row in 0..R {
                let act = s.splat(acts[row].sum);
                for tile in 0..2 {
                    results[row][tile] = s.fma(minima[tile], act, results[row][tile]);
                }
            }
        }
    }
    results
}

/// The scales of a block's group, and the block's integers.
#[inline(always)]
fn block_of<Q: Format>(tile: &[u8], block: usize) -> (&[u8], &[u8]) {
    let bytes = Q::SCALE_BYTES + Q::GROUP * Q::QUANT_BYTES;
    let (scales, quants) = tile[block / Q::GROUP * bytes..][..bytes].split_at(Q::SCALE_BYTES);
    (scales, &quants[block % Q::GROUP * Q::QUANT_BYTES..][..Q::QUANT_BYTES])
}

/// Multiplies `R` rows with a tile directly.
///
/// One tile at a time, without prefetch instructions: the processor detects the single direction and
/// prefetches faster by itself.
#[inline(always)]
pub(super) fn direct_rows<S: Simd, Q: Format, const R: usize>(
    s: S,
    tile: TileRef<'_>,
    acts: &[ActBlock],
) -> [S::F; R] {
    let blocks = tile.matrix.columns() / BLOCK;
    let mut rows = [&acts[..blocks]; R];
    for (row, of) in rows.iter_mut().enumerate() {
        *of = &acts[row * blocks..][..blocks];
    }
    let bytes = tile.matrix.tile(tile.tile);
    let mut results = [s.splat(0.0); R];
    for block in 0..blocks {
        let (group, quants) = block_of::<Q>(bytes, block);
        let operands = Q::operands(s, quants);
        let (first, second) = Q::scales(s, group, block % Q::GROUP);
        for row in 0..R {
            let act = &rows[row][block];
            let mut result = results[row];
            for part in 0..Q::Arithmetic::PARTS {
                let mut sum = Q::Arithmetic::start(s, act, part);
                for operand in part * 8 / Q::Arithmetic::PARTS..(part + 1) * 8 / Q::Arithmetic::PARTS {
                    sum = Q::Arithmetic::dot(s, sum, operands[operand], act.q[operand]);
                }
                let scale = s.mul(if part == 0 { first } else { second }, s.splat(act.scale));
                result = s.fma(s.to_float(sum), scale, result);
            }
            if Q::Arithmetic::MINIMUM {
                result = s.fma(second, s.splat(act.sum), result);
            }
            results[row] = result;
        }
    }
    results
}

/// Multiplies `R` rows with `N` tiles of floating-point weights.
#[inline(always)]
pub(super) fn float_rows<S: Simd, W: Float, const R: usize, const N: usize>(
    s: S,
    tiles: [TileRef<'_>; N],
    acts: &[f32],
) -> [[S::F; N]; R] {
    let columns = tiles[0].matrix.columns();
    let mut rows = [&acts[..columns]; R];
    for (row, of) in rows.iter_mut().enumerate() {
        *of = &acts[row * columns..][..columns];
    }
    let tile_bytes = columns * LANES * W::BYTES;
    let mut bytes = [&tiles[0].matrix.tile(tiles[0].tile)[..tile_bytes]; N];
    for tile in 1..N {
        bytes[tile] = &tiles[tile].matrix.tile(tiles[tile].tile)[..tile_bytes];
    }
    let mut results = [[s.splat(0.0); N]; R];
    for column in 0..columns {
        let mut weights = [s.splat(0.0); N];
        for tile in 0..N {
            weights[tile] = W::load(s, &bytes[tile][column * LANES * W::BYTES..][..LANES * W::BYTES]);
        }
        for row in 0..R {
            let act = s.splat(rows[row][column]);
            for tile in 0..N {
                results[row][tile] = s.fma(weights[tile], act, results[row][tile]);
            }
        }
    }
    results
}
