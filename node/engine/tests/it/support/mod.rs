//! Test helpers.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod reference;
pub(crate) mod synthetic;
pub(crate) mod writer;

use std::path::PathBuf;

/// A generator of the same numbers everywhere (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 33) % limit
    }

    pub(crate) fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.unit() * size).collect()
    }

    pub(crate) fn tokens(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocabulary as u64) as u32).collect()
    }
}

/// A real model in the node's model folder, if it exists.
pub(crate) fn real_model(file: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let folder =
        variable("BATON_NODE_MODEL_DIR").or_else(|| cache().map(|cache| cache.join("baton/models")))?;
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    eprintln!("{} is not there: nothing is tested with it", path.display());
    None
}

/// A hash of all bits (FNV-1a).
pub(crate) fn hash(numbers: &[f32]) -> u64 {
    numbers
        .iter()
        .flat_map(|number| number.to_bits().to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
