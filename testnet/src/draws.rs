//! Seeded choices, so that a run can be repeated. They are not for secrets.

/// A pseudo-random sequence from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    /// The sequence of one lane; lanes that draw concurrently have different ones.
    pub(crate) fn of(seed: u64, lane: u64) -> Self {
        let mut draws = Self(seed ^ lane.wrapping_mul(0xd134_2543_de82_ef95));
        draws.next();
        draws
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.iter_mut().zip(number).for_each(|(byte, drawn)| *byte = drawn);
        }
        bytes
    }

    /// A number in `0..limit`; 0 if that is empty.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    /// One of the choices; `None` if there are none.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(choices.len() as u64)).unwrap_or(0);
        choices.get(index).copied()
    }
}
