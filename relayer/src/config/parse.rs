//! Reads the configuration file.

use std::{io::Read as _, path::Path};

use super::{ConfigError, Options};

/// Largest file that is read: the commented template has about five kilobytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Reads the file; one that is not `required` may be missing.
pub(super) fn read(path: &Path, required: bool) -> Result<Options, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Options::default());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(std::io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes"))));
    }
    parse(path, &text)
}

/// Parses options from TOML; errors name the line.
pub(super) fn parse(path: &Path, text: &str) -> Result<Options, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
        ConfigError::File { path: path.to_owned(), line, problem: error.message().replace('\n', ", ") }
    })
}
