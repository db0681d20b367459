//! A forward reader of untrusted bytes.

use super::{GgufError, MAX_HEADER_BYTES, unsound};

fn truncated(what: &str) -> GgufError {
    unsound(format!("the file ends within {what}"))
}

/// A position in a file's header. It never passes [`MAX_HEADER_BYTES`].
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let limit = usize::try_from(MAX_HEADER_BYTES).unwrap_or(usize::MAX);
        Self { bytes: bytes.get(..limit).unwrap_or(bytes), at: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let slice = usize::try_from(count)
            .ok()
            .and_then(|count| self.at.checked_add(count))
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or_else(|| truncated(what))?;
        self.at += slice.len();
        Ok(slice)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let slice = self.take(N as u64, what)?;
        slice.try_into().map_err(|_| truncated(what))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items of at least `least_bytes` each, and checks that the rest of the file can hold
    /// them.
    pub(super) fn count(
        &mut self,
        what: &'static str,
        limit: u64,
        least_bytes: u64,
    ) -> Result<usize, GgufError> {
        let found = self.u64(what)?;
        let limit = limit.min(self.left() / least_bytes);
        let count = usize::try_from(found).ok().filter(|_| found <= limit);
        count.ok_or_else(|| unsound(format!("{what} of {found} is above {limit}")))
    }

    /// The bytes of a string with a length prefix.
    pub(super) fn text(&mut self, what: &'static str, limit: u64) -> Result<&'a [u8], GgufError> {
        let length = self.count(what, limit, 1)?;
        self.take(length as u64, what)
    }

    pub(super) fn string(&mut self, what: &'static str, limit: u64) -> Result<&'a str, GgufError> {
        std::str::from_utf8(self.text(what, limit)?).map_err(|_| unsound(format!("{what} is not UTF-8")))
    }
}
