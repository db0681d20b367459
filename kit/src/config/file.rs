//! Reads a configuration file, with a limit.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    ops::Range,
    path::Path,
};

use super::ConfigError;

/// Largest accepted file; the commented ones have some six kilobytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// The text of a file; `None` if it is missing and not required.
///
/// # Errors
/// [`ConfigError::Read`].
pub fn read_text(path: &Path, required: bool) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if !required && error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes"))));
    }
    Ok(Some(text))
}

/// The line of a span's start, from 1.
pub(super) fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start);
    1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count()
}
