//! One piece of memory for all weights of a model.
//!
//! It is mapped at once and asked to be in large pages: a decoding step reads every byte of it once, and with pages of
//! 4 KB the processor would spend a good part of that time on finding them.

use std::sync::Arc;

use memmap2::MmapMut;

/// Every matrix begins at a multiple of this: a line of the processor's caches.
pub const ALIGNMENT: usize = 64;

/// Memory that is handed out in pieces, and then only read.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Zeroed memory of at least `bytes` bytes.
    ///
    /// # Errors
    /// If the system does not give it.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1))?;
        // It is a request: a system without large pages computes the same.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map })
    }

    /// All of it, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// Bytes from `start` on.
    #[must_use]
    #[inline]
    pub fn bytes(&self, start: usize, length: usize) -> &[u8] {
        &self.map[start..][..length]
    }

    /// Ready to be read by many.
    #[must_use]
    pub fn share(self) -> Arc<Self> {
        Arc::new(self)
    }
}
