//! One memory mapping for all weights of a model.
//!
//! The arena asks the system for large pages, because a decoding step reads every byte once. With 4 KB pages,
//! the processor would spend a good part of that time on address translation.

use std::sync::Arc;

use memmap2::MmapMut;

/// Alignment of every matrix: one cache line of the processor.
pub const ALIGNMENT: usize = 64;

/// Memory that is filled in pieces, and then only read.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Zeroed memory of at least `bytes` bytes.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1))?;
        // This is only a request: a system without large pages computes the same.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map })
    }

    /// The whole memory, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// `length` bytes from `start` on.
    #[must_use]
    #[inline]
    pub fn bytes(&self, start: usize, length: usize) -> &[u8] {
        &self.map[start..][..length]
    }

    /// The arena as shared, read-only memory.
    #[must_use]
    pub fn share(self) -> Arc<Self> {
        Arc::new(self)
    }
}
