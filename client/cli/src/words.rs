//! The 24 words of a key: read from a file, a prompt or standard input, and given to a terminal or a file alone.

use std::{io::IsTerminal as _, path::Path};

use baton_client::ClientError;
use baton_keys::words::read_words;
use baton_kit::prompt;
use zeroize::Zeroizing;

use crate::{failure::Failure, files::write_private, out::Out};

/// The 24 words of a file, of the terminal, or of standard input.
pub(crate) fn read(file: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    if let Some(path) = file.filter(|path| *path != Path::new("-")) {
        let read = std::fs::File::open(path).and_then(read_words);
        return read
            .map_err(|source| ClientError::File { action: "read", path: path.to_owned(), source }.into());
    }
    let typed = if file.is_none() { prompt::secret("The 24 words (not shown): ")? } else { None };
    Ok(typed.map_or_else(|| read_words(std::io::stdin().lock()), Ok)?)
}

/// Writes the words to a new file, or shows them at a terminal after a warning.
///
/// # Errors
/// A usage error without both: words in a pipe end up in logs and shell histories.
pub(crate) fn give(words: &str, file: Option<&Path>, warning: &str, out: &Out) -> Result<(), Failure> {
    if let Some(file) = file {
        return write_private(file, Zeroizing::new(format!("{words}\n")).as_bytes());
    }
    if out.json() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "The words are shown only at a terminal.",
            "write them to a file that only you can read: --out FILE",
        ));
    }
    out.warn(warning);
    let words: Vec<&str> = words.split_whitespace().collect();
    for (row, four) in words.chunks(4).enumerate() {
        let cells = four.iter().enumerate();
        let cells = cells.map(|(column, word)| format!("{:>2} {word:<10}", 4 * row + column + 1));
        out.line(Zeroizing::new(cells.collect::<String>()).trim_end())?;
    }
    Ok(())
}
