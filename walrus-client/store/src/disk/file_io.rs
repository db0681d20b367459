//! Reads and writes at an offset of a file, and folder syncs, for each operating system.

use std::{fs::File, io, path::Path};

/// Fills the buffer with the bytes from `offset` on.
#[cfg(unix)]
pub(super) fn read(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// Writes all bytes from `offset` on.
#[cfg(unix)]
pub(super) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// A folder, for syncing its names.
#[cfg(unix)]
pub(super) fn open_folder(path: &Path) -> io::Result<Option<File>> {
    File::open(path).map(Some)
}

/// Fills the buffer with the bytes from `offset` on.
#[cfg(windows)]
pub(super) fn read(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_read(file, buffer, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = buffer.get_mut(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}

/// Writes all bytes from `offset` on.
#[cfg(windows)]
pub(super) fn write(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        bytes = bytes.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}

/// Windows cannot sync folders.
#[cfg(windows)]
pub(super) fn open_folder(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}
