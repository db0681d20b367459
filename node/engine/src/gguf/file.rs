//! A model file, mapped into memory.

use std::{fs::File, ops::Range, path::Path};

use memmap2::Mmap;

use super::{Gguf, GgufError, Tensor, Value};

/// An open file: its header, and its memory-mapped bytes.
#[derive(Debug)]
pub struct GgufFile {
    header: Gguf,
    map: Mmap,
}

impl GgufFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`GgufError`] if the file cannot be opened or is not sound.
    #[expect(unsafe_code, reason = "mapping a file")]
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path)?;
        // SAFETY: the map is only read, through bounds-checked slices of bytes, for which every bit pattern
        // is valid. Checked values of the header have been copied out. Writers write a model file under
        // another name and rename it, so no writer changes it in place. A writer that does can make the
        // answers wrong, or kill the process with a bus error by shortening the file. A writer of the node's
        // model folder has that power anyway.
        let map = unsafe { Mmap::map(&file)? };
        let header = Gguf::parse(&map)?;
        Ok(Self { header, map })
    }

    /// The file's header.
    #[must_use]
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// A tensor's bytes.
    #[must_use]
    pub fn data(&self, tensor: &Tensor) -> &[u8] {
        let place = |value| usize::try_from(value).unwrap_or(usize::MAX);
        let (start, bytes) = (place(tensor.offset), place(tensor.bytes));
        self.map.get(start..start.saturating_add(bytes)).unwrap_or_default()
    }

    /// Releases the memory pages of some of the file's bytes. Later reads load them from the file again.
    #[cfg_attr(unix, expect(unsafe_code, reason = "giving a map's pages back"))]
    pub fn release(&self, range: Range<usize>) {
        let Range { start, end } = range;
        #[cfg(unix)]
        if self.map.get(start..end).is_some_and(|bytes| !bytes.is_empty()) {
            // This is only a request: if refused, the pages stay until the system needs them.
            // SAFETY: the range is within the map. The map is a shared map of a file, and never written to. A
            // later read gets the same bytes from the file.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }

    /// The strings of a metadata array; empty if there is no such array.
    pub fn strings(&self, key: &str) -> impl Iterator<Item = &[u8]> {
        let array = match self.header.get(key) {
            Some(Value::Array(array)) => Some(array),
            _ => None,
        };
        array.into_iter().flat_map(|array| array.strings(&self.map))
    }
}
