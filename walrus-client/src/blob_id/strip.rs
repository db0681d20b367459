//! The layout of symbols for the Reed-Solomon code.
//!
//! The code works on independent 16-bit elements. So one encoder call can take the elements of many symbols
//! as one long *lane shard*, and a symbol can be processed in strips. A symbol consists of 64-byte chunks;
//! the last may be shorter. In a chunk of c bytes, element i is the byte pair (i, c/2 + i), as in
//! `reed-solomon-simd`. A lane shard consists of whole chunks, so this module moves a short chunk's two runs
//! apart.

use std::ops::Range;

/// Chunk of `reed-solomon-simd`, in bytes.
pub(super) const CHUNK: usize = 64;
/// Elements in a chunk.
const HALF: usize = CHUNK / 2;
/// Bytes that must follow the last symbol in a buffer for [`Lanes`]: runs are copied in fixed sizes.
pub(super) const SLACK: usize = HALF;

/// Part of every symbol: from byte `start`, a multiple of 64, to byte `end`, another multiple or the symbol's
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Strip {
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }

    /// Cuts it into strips of this many bytes; the last may be shorter.
    pub(super) fn split(self, most: usize) -> impl Iterator<Item = Self> {
        let end = self.end;
        (self.start..end).step_by(most).map(move |start| Self { start, end: end.min(start + most) })
    }

    /// The position of this strip's bytes in those of an enclosing strip.
    pub(super) fn within(self, outer: Self) -> Range<usize> {
        self.start - outer.start..self.end - outer.start
    }
}

/// The layout of one strip of several symbols in a lane shard. All whole chunks come first, symbol by symbol.
/// The short chunks follow in slots of 1, 2, 4, 8, 16 or 32 elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    /// Symbols in the shard.
    count: usize,
    /// Bytes of whole chunks in a strip.
    whole: usize,
    /// Elements of the short chunk; 0 if there is none.
    tail: usize,
    /// Elements between the starts of two short chunks.
    slot: usize,
}

/// Runs `$body` with a constant `$slot`, the elements of a slot.
macro_rules! with_slot {
    ($value:expr, $slot:ident => $body:expr) => {
        match $value {
            1 => {
                const $slot: usize = 1;
                $body
            }
            2 => {
                const $slot: usize = 2;
                $body
            }
            4 => {
                const $slot: usize = 4;
                $body
            }
            8 => {
                const $slot: usize = 8;
                $body
            }
            16 => {
                const $slot: usize = 16;
                $body
            }
            _ => {
                const $slot: usize = 32;
                $body
            }
        }
    };
}

impl Lanes {
    /// The layout for strips of `length` bytes, an even number, of `count` symbols.
    pub(super) fn new(count: usize, length: usize) -> Self {
        let tail = length % CHUNK / 2;
        Self { count, whole: length - length % CHUNK, tail, slot: tail.next_power_of_two() }
    }

    /// Bytes of the lane shard.
    pub(super) fn bytes(&self) -> usize {
        let tails = if self.tail == 0 { 0 } else { (self.count * self.slot).div_ceil(HALF) * CHUNK };
        self.count * self.whole + tails
    }

    /// Start of the first run of a symbol's short chunk; the second run is 32 bytes further.
    fn tail_at(&self, symbol: usize) -> usize {
        let element = symbol * self.slot;
        self.count * self.whole + element / HALF * CHUNK + element % HALF
    }

    /// Fills a lane shard with symbols that begin `stride` bytes apart. `symbols` continues for [`SLACK`]
    /// bytes after the last symbol.
    #[expect(clippy::indexing_slicing, reason = "a hot loop over buffers of this layout")]
    pub(super) fn pack(&self, symbols: &[u8], stride: usize, shard: &mut [u8]) {
        if self.whole > 0 {
            for (symbol, target) in
                symbols.chunks(stride).zip(shard.chunks_exact_mut(self.whole)).take(self.count)
            {
                target.copy_from_slice(&symbol[..self.whole]);
            }
        }
        if self.tail > 0 {
            with_slot!(self.slot, SLOT => for symbol in 0..self.count {
                let from = symbol * stride + self.whole;
                let to = self.tail_at(symbol);
                copy::<SLOT>(&symbols[from..], &mut shard[to..]);
                copy::<SLOT>(&symbols[from + self.tail..], &mut shard[to + HALF..]);
            });
        }
    }

    /// Copies one symbol out of a lane shard. Zeros up to [`SLACK`] bytes after it in `target`.
    #[expect(clippy::indexing_slicing, reason = "a hot loop over buffers of this layout")]
    pub(super) fn unpack_loosely(&self, shard: &[u8], symbol: usize, target: &mut [u8]) {
        target[..self.whole].copy_from_slice(&shard[symbol * self.whole..][..self.whole]);
        if self.tail > 0 {
            let from = self.tail_at(symbol);
            let target = &mut target[self.whole..];
            with_slot!(self.slot, SLOT => {
                copy::<SLOT>(&shard[from..], target);
                copy::<SLOT>(&shard[from + HALF..], &mut target[self.tail..]);
                copy::<SLOT>(&[0; SLOT], &mut target[2 * self.tail..]);
            });
        }
    }

    /// Copies one symbol out of a lane shard, and touches nothing else.
    #[expect(clippy::indexing_slicing, reason = "a hot loop over buffers of this layout")]
    pub(super) fn unpack(&self, shard: &[u8], symbol: usize, target: &mut [u8]) {
        let (whole, tail) = target.split_at_mut(self.whole);
        whole.copy_from_slice(&shard[symbol * self.whole..][..self.whole]);
        if self.tail > 0 {
            let from = self.tail_at(symbol);
            let (low, high) = tail.split_at_mut(self.tail);
            low.copy_from_slice(&shard[from..][..self.tail]);
            high.copy_from_slice(&shard[from + HALF..][..self.tail]);
        }
    }

    /// Eight 2-byte symbols as little-endian numbers. `first` is a multiple of 8. Numbers past the last
    /// symbol are meaningless. For strips of 2 bytes only.
    #[expect(clippy::indexing_slicing, reason = "a hot loop over buffers of this layout")]
    pub(super) fn pairs(&self, shard: &[u8], first: usize) -> [u16; 8] {
        debug_assert!(self.whole == 0 && self.tail == 1 && first.is_multiple_of(8));
        let at = self.tail_at(first);
        std::array::from_fn(|symbol| u16::from_le_bytes([shard[at + symbol], shard[at + HALF + symbol]]))
    }
}

/// Copies a constant number of bytes.
#[expect(clippy::indexing_slicing, reason = "callers leave that many bytes on both sides")]
#[inline(always)]
fn copy<const COUNT: usize>(from: &[u8], to: &mut [u8]) {
    to[..COUNT].copy_from_slice(&from[..COUNT]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_come_back_from_a_lane_shard_at_every_size() {
        for length in (2..300).step_by(2) {
            for count in [1, 2, 7, 8, 33] {
                let mut symbols = vec![0; count * length + SLACK];
                blake3::Hasher::new().finalize_xof().fill(&mut symbols);
                let lanes = Lanes::new(count, length);
                let mut shard = vec![0; lanes.bytes()];
                assert_eq!(shard.len() % CHUNK, 0);
                lanes.pack(&symbols, length, &mut shard);
                for (number, symbol) in symbols[..count * length].chunks(length).enumerate() {
                    let mut exact = vec![0; length];
                    lanes.unpack(&shard, number, &mut exact);
                    assert_eq!(exact, symbol);
                    let mut loose = vec![0xff; length + SLACK];
                    lanes.unpack_loosely(&shard, number, &mut loose);
                    assert_eq!(&loose[..length], symbol);
                    if length == 2 && number % 8 == 0 {
                        assert_eq!(lanes.pairs(&shard, number)[0].to_le_bytes(), symbol);
                    }
                }
            }
        }
    }

    #[test]
    fn a_lane_shard_codes_each_symbol_as_if_it_were_alone() {
        for length in [2, 6, 20, 48, 64, 66, 130] {
            let (originals, recovery, count) = (5, 3, 9);
            let symbols: Vec<Vec<u8>> = (0..originals)
                .map(|number| {
                    let mut bytes = vec![0; count * length + SLACK];
                    blake3::Hasher::new().update(&[number]).finalize_xof().fill(&mut bytes);
                    bytes
                })
                .collect();
            let lanes = Lanes::new(count, length);
            let shards = symbols.iter().map(|symbols| {
                let mut shard = vec![0; lanes.bytes()];
                lanes.pack(symbols, length, &mut shard);
                shard
            });
            let coded = reed_solomon_simd::encode(originals as usize, recovery, shards).unwrap();
            for at in 0..count {
                let alone = symbols.iter().map(|symbols| &symbols[at * length..][..length]);
                let alone = reed_solomon_simd::encode(originals as usize, recovery, alone).unwrap();
                for (shard, expected) in coded.iter().zip(&alone) {
                    let mut symbol = vec![0; length];
                    lanes.unpack(shard, at, &mut symbol);
                    assert_eq!(&symbol, expected);
                }
            }
        }
    }
}
