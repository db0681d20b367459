//! The innermost loops of products.

#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
// Arrays of registers are walked by their index: what an iterator leaves of itself may keep them out of registers.
#![expect(clippy::needless_range_loop, reason = "as above")]

use super::{
    super::{
        LANES, Simd,
        rows::{ActBlock, BLOCK},
    },
    Spread, TileRef,
    formats::{Float, Format, Style},
};

/// How many blocks ahead weights are asked for that are used once: some hundred nanoseconds' worth.
const AHEAD: usize = 8;

/// Spreads a tile out.
#[inline(always)]
pub(super) fn spread_tile<S: Simd, Q: Format>(s: S, tile: TileRef<'_>, spread: &mut [Spread]) {
    let (quants, scales) = tile.matrix.parts(tile.tile);
    for (index, (spread, quants)) in spread.iter_mut().zip(quants.chunks_exact(Q::QUANT_BYTES)).enumerate() {
        let group = &scales[index / Q::GROUP * Q::SCALE_BYTES..][..Q::SCALE_BYTES];
        let operands = Q::operands(s, quants);
        for (to, operand) in spread.operands.iter_mut().zip(operands) {
            s.store_b(operand, to);
        }
        let (first, second) = Q::scales(s, group, index % Q::GROUP);
        s.store(first, &mut spread.first);
        s.store(second, &mut spread.second);
    }
}

/// `R` rows times two tiles that are spread out.
#[inline(always)]
pub(super) fn spread_rows<S: Simd, T: Style, const R: usize>(
    s: S,
    tiles: [&[Spread]; 2],
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

/// `R` rows times `N` tiles right from the tiles.
#[inline(always)]
pub(super) fn direct_rows<S: Simd, Q: Format, const R: usize, const N: usize>(
    s: S,
    tiles: [TileRef<'_>; N],
    acts: &[ActBlock],
) -> [[S::F; N]; R] {
    let blocks = tiles[0].matrix.columns() / BLOCK;
    let mut rows = [&acts[..blocks]; R];
    for (row, of) in rows.iter_mut().enumerate() {
        *of = &acts[row * blocks..][..blocks];
    }
    let mut parts = [tiles[0].matrix.parts(tiles[0].tile); N];
    for tile in 1..N {
        parts[tile] = tiles[tile].matrix.parts(tiles[tile].tile);
    }
    // From a tile to the one that takes its place in the next panels: panels of one matrix take tiles in order, those
    // of two one of each.
    let one_matrix = std::ptr::eq(tiles[0].matrix, tiles[N - 1].matrix);
    let next = parts[0].0.len() + parts[0].1.len();
    let next = if one_matrix { N * next } else { N / 2 * next };
    let mut results = [[s.splat(0.0); N]; R];
    for block in 0..blocks {
        let mut acts = [&rows[0][block]; R];
        for row in 1..R {
            acts[row] = &rows[row][block];
        }
        for (tile, (quants, scales)) in parts.iter().enumerate() {
            let group = &scales[block / Q::GROUP * Q::SCALE_BYTES..][..Q::SCALE_BYTES];
            let quants = &quants[block * Q::QUANT_BYTES..][..Q::QUANT_BYTES];
            if N > 1 {
                // Of this tile, or of the one that comes in its place.
                let ahead = if block + AHEAD < blocks { 0 } else { next - blocks * Q::QUANT_BYTES };
                for line in 0..Q::QUANT_BYTES / 64 {
                    s.prefetch(quants, ahead + AHEAD * Q::QUANT_BYTES + 64 * line);
                }
                let ahead =
                    if block + AHEAD < blocks { 0 } else { next - blocks / Q::GROUP * Q::SCALE_BYTES };
                s.prefetch(group, ahead + AHEAD / Q::GROUP * Q::SCALE_BYTES);
            }
            let operands = Q::operands(s, quants);
            let (first, second) = Q::scales(s, group, block % Q::GROUP);
            for row in 0..R {
                let act = acts[row];
                let mut result = results[row][tile];
                for part in 0..Q::Style::PARTS {
                    let mut sum = Q::Style::start(s, act, part);
                    for operand in part * 8 / Q::Style::PARTS..(part + 1) * 8 / Q::Style::PARTS {
                        sum = Q::Style::dot(s, sum, operands[operand], act.q[operand]);
                    }
                    let scale = s.mul(if part == 0 { first } else { second }, s.splat(act.scale));
                    result = s.fma(s.to_float(sum), scale, result);
                }
                if Q::Style::MINIMUM {
                    result = s.fma(second, s.splat(act.sum), result);
                }
                results[row][tile] = result;
            }
        }
    }
    results
}

/// `R` rows times `N` tiles of floating-point weights.
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
