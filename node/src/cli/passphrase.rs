//! Reads passphrases from a file or from the terminal.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read as _},
    path::Path,
};

use zeroize::Zeroizing;

use super::{Exit, Failure};

/// Longest passphrase, far above any typed one.
const MAX_BYTES: usize = 4096;

/// A new passphrase. At the terminal it must be typed twice.
pub(super) fn new(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(file) = file {
        return from_file(file);
    }
    let first = ask("New passphrase: ")?;
    let second = ask("The same again: ")?;
    if first.is_empty() || first != second {
        return Err(Failure::text(Exit::Usage, "the passphrases are empty or differ; nothing was written"));
    }
    Ok(first)
}

/// The passphrase of an existing file.
pub(super) fn existing(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    file.map_or_else(|| ask("Passphrase: "), from_file)
}

/// The words of a backup, in one line.
pub(super) fn words(file: &Path) -> Result<Zeroizing<String>, Failure> {
    from_file(file)
}

fn ask(prompt: &str) -> Result<Zeroizing<String>, Failure> {
    if !io::stdin().is_terminal() {
        let text =
            "nobody can be asked for a passphrase here: name a file that holds it with --passphrase-file";
        return Err(Failure::text(Exit::Usage, text));
    }
    let typed = rpassword::prompt_password(prompt).map_err(|error| Failure::new(Exit::Failure, error))?;
    Ok(Zeroizing::new(typed))
}

/// The first line of a file; `-` is standard input.
fn from_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let failed =
        |error: io::Error| Failure::text(Exit::Usage, format!("cannot read {}: {error}", path.display()));
    // Reserves the maximum size: a growing string would leave copies in memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES + 1));
    if path == Path::new("-") {
        io::stdin().lock().take(MAX_BYTES as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    } else {
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_string(&mut text))
            .map_err(failed)?;
    }
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() || text.len() > MAX_BYTES {
        return Err(failed(io::Error::other("it must hold one line that is not empty")));
    }
    Ok(Zeroizing::new(line.to_owned()))
}
