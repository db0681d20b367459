//! Files with a publisher's bearer token, or the secret for minting tokens.
//!
//! Settings of node and client name them. A file that others can read is refused: its content lets them store
//! at the operator's cost.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::jwt::PublisherToken;

/// Most bytes read: tokens and secrets are far smaller.
const MAX_FILE_BYTES: u64 = 16 * 1024;

/// A file and its kind of content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenFile {
    /// A bearer token, sent unchanged.
    Bearer(PathBuf),
    /// A secret shared with the publisher, which mints a token for each PUT.
    Secret(PathBuf),
}

/// The reason why such a file cannot be used, and the next step.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenFileError(String);

impl TokenFile {
    /// Reads the token, or the secret for minting.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn read(&self) -> Result<PublisherToken, TokenFileError> {
        let (path, token) = match self {
            Self::Bearer(path) => (path, PublisherToken::bearer(read_private(path)?.trim().to_owned())),
            Self::Secret(path) => (path, PublisherToken::minted(&read_secret(path)?)),
        };
        token.map_err(|error| TokenFileError(format!("{}: {error}", path.display())))
    }
}

/// The secret in a file, as in Walrus's publisher: hex digits after `0x`, or the text itself.
///
/// # Errors
/// [`TokenFileError`], also for invalid hex after `0x`.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, TokenFileError> {
    let text = read_private(path)?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits)
            .map(Zeroizing::new)
            .map_err(|_| unreadable(path, &io::Error::other("what follows 0x is not hexadecimal"))),
        None => Ok(Zeroizing::new(text.as_bytes().to_vec())),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> TokenFileError {
    let path = path.display();
    TokenFileError(format!("cannot read {path}: {error}; name a file with the publisher's token or secret"))
}

fn read_private(path: &Path) -> Result<Zeroizing<String>, TokenFileError> {
    let failed = |error| unreadable(path, &error);
    let file = File::open(path).map_err(failed)?;
    if is_open_to_others(&file).map_err(failed)? {
        let path = path.display();
        return Err(TokenFileError(format!("{path} can be read by others; run chmod 600 {path}")));
    }
    let mut text = Zeroizing::new(String::new());
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(failed(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes"))));
    }
    Ok(text)
}

#[cfg(unix)]
fn is_open_to_others(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(file.metadata()?.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn file(folder: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = folder.path().join(format!("{mode:o}-{}", text.len()));
        fs::write(&path, text).expect("the folder is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the file is ours");
        path
    }

    #[test]
    fn reads_tokens_and_secrets_of_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        assert!(TokenFile::Bearer(file(&folder, " abc.def\n", 0o600)).read().is_ok());
        assert!(TokenFile::Secret(file(&folder, &"s".repeat(40), 0o400)).read().is_ok());
        for (bad, reason) in [
            (TokenFile::Bearer(file(&folder, "abcdef", 0o640)), "can be read by others; run chmod 600"),
            (TokenFile::Bearer(folder.path().join("none")), "cannot read"),
            (TokenFile::Bearer(file(&folder, &"x".repeat(20_000), 0o600)), "longer than"),
            (TokenFile::Secret(file(&folder, "short", 0o600)), "at least 32 bytes"),
            (TokenFile::Bearer(file(&folder, "\n", 0o600)), "visible ASCII"),
        ] {
            let error = bad.read().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_secret_may_be_written_in_hex() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(*read_secret(&file(&folder, "0x0102ff\n", 0o600)).unwrap(), [1, 2, 255]);
        assert_eq!(*read_secret(&file(&folder, "0102ff\n", 0o600)).unwrap(), b"0102ff");
        assert!(read_secret(&file(&folder, "0xzz", 0o600)).is_err());
    }
}
