//! Sizes that the kernels and the tiles of weights share.

/// Lanes of a vector: 16 numbers of 32 bits.
pub const LANES: usize = 16;

/// Inputs in a block of quantised activations.
pub const BLOCK: usize = 32;
