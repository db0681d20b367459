//! A model file, mapped into memory.

use std::{fs::File, ops::Range, path::Path};

use memmap2::Mmap;

use super::{Gguf, GgufError, Tensor, Value};

/// An open file: its header, and its bytes by memory map.
#[derive(Debug)]
pub struct GgufFile {
    header: Gguf,
    map: Mmap,
}

impl GgufFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`GgufError`] if it cannot be opened or is not sound.
    #[expect(unsafe_code, reason = "mapping a file")]
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path)?;
        // SAFETY: the map is only read, through bounds-checked slices of bytes, for which every bit pattern is valid;
        // what was checked in the header has been copied out of it. A model file is written once under another name
        // and renamed, so nobody changes it in place; somebody who does can make the answers wrong, or the process
        // die of a bus error by shortening it, but whoever may write the node's model folder may do that anyway.
        let map = unsafe { Mmap::map(&file)? };
        let header = Gguf::parse(&map)?;
        Ok(Self { header, map })
    }

    /// What the file says it holds.
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

    /// Gives back the memory that some of the file's bytes are in. They can be read again, from the file.
    #[cfg_attr(unix, expect(unsafe_code, reason = "giving a map's pages back"))]
    pub fn release(&self, range: Range<usize>) {
        let Range { start, end } = range;
        #[cfg(unix)]
        if self.map.get(start..end).is_some_and(|bytes| !bytes.is_empty()) {
            // It is a request: where it is refused, the pages stay until the system wants them.
            // SAFETY: the range is within the map. The map is a shared one of a file and never written to: what is read
            // of it afterwards is the file's bytes again, the same as before.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }

    /// The strings of an array in the metadata; none if there is no such array.
    pub fn strings(&self, key: &str) -> impl Iterator<Item = &[u8]> {
        let array = match self.header.get(key) {
            Some(Value::Array(array)) => Some(array),
            _ => None,
        };
        array.into_iter().flat_map(|array| array.strings(&self.map))
    }
}
