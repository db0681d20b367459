//! Files that a call names: read within a bound, and written for their owner alone.

use std::{io::Read as _, path::Path};

use baton_client::ClientError;
use baton_keys::files;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let read = std::fs::File::open(path)?.take(limit + 1).read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(text)
}

/// Writes a file that only its owner may read; refuses to overwrite one.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    files::write_private(path, bytes).map_err(|source| {
        let exists = source.kind() == std::io::ErrorKind::AlreadyExists;
        let source = if exists { std::io::Error::new(source.kind(), "it exists already") } else { source };
        ClientError::File { action: "create", path: path.to_owned(), source }.into()
    })
}
