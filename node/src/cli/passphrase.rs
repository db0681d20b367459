//! Passphrases and recovery words, from a file or from the terminal.

use std::path::Path;

use baton_keys::words::read_words;
use baton_kit::prompt;
use zeroize::Zeroizing;

use super::{Exit, Failure};

/// A new passphrase. At the terminal it must be typed twice.
pub(super) fn new(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(file) = file {
        return from_file(file);
    }
    let typed = prompt::new_passphrase().map_err(|error| Failure::new(Exit::Usage, error))?;
    typed.ok_or_else(unattended)
}

/// The passphrase of an existing file.
pub(super) fn existing(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(file) = file {
        return from_file(file);
    }
    let typed = prompt::secret("Passphrase: ")?;
    typed.ok_or_else(unattended)
}

/// The words of a backup; `-` is standard input.
pub(super) fn words(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let read = match path == Path::new("-") {
        true => read_words(std::io::stdin().lock()),
        false => std::fs::File::open(path).and_then(read_words),
    };
    read.map_err(|error| Failure::text(Exit::Usage, format!("cannot read {}: {error}", path.display())))
}

fn unattended() -> Failure {
    let text = "nobody can be asked for a passphrase here: name a file that holds it with --passphrase-file";
    Failure::text(Exit::Usage, text)
}

/// The first line of a file; `-` is standard input.
fn from_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    prompt::secret_file(path)
        .map_err(|error| Failure::text(Exit::Usage, format!("cannot read {}: {error}", path.display())))
}
