//! Generated blobs: the same bytes as in `scripts/conformance/ids.mjs`.

/// The numbers of mulberry32 from a seed, little-endian.
pub(crate) fn blob(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut out = Vec::with_capacity(length.next_multiple_of(4));
    while out.len() < length {
        state = state.wrapping_add(0x6d2b_79f5);
        let mut mixed = (state ^ (state >> 15)).wrapping_mul(state | 1);
        mixed ^= mixed.wrapping_add((mixed ^ (mixed >> 7)).wrapping_mul(mixed | 61));
        out.extend((mixed ^ (mixed >> 14)).to_le_bytes());
    }
    out.truncate(length);
    out
}
