//! Questions to a person at a terminal, and secrets from files.
//!
//! Callers decide what happens where no person can answer: [`secret`] returns `None` there. Secrets are never
//! shown, and their memory is overwritten.
//!
//! ```
//! let mut output = Vec::new();
//! let answer = baton_kit::prompt::confirm(&mut "yes\n".as_bytes(), &mut output, "Delete it?");
//! assert!(answer.unwrap());
//! assert_eq!(output, b"Delete it? Type yes: ");
//! ```

use std::{
    fs::File,
    io::{self, BufRead, IsTerminal as _, Read, Write},
    path::Path,
};

use zeroize::Zeroizing;

/// Maximum length of an answer and of a secret in a file, in bytes; no typed text is as long.
pub const MAX_ANSWER_BYTES: usize = 4096;

/// Whether a person can answer: standard input is a terminal.
#[must_use]
pub fn is_interactive() -> bool {
    io::stdin().is_terminal()
}

/// Asks for a secret at the terminal; `None` where no person can answer.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn secret(question: &str) -> io::Result<Option<Zeroizing<String>>> {
    if !is_interactive() {
        return Ok(None);
    }
    rpassword::prompt_password(question).map(|text| Some(Zeroizing::new(text)))
}

/// Asks for a new passphrase twice; `None` where no person can answer.
///
/// # Errors
/// The two texts differ, or both are empty; or the terminal cannot be read or written.
pub fn new_passphrase() -> io::Result<Option<Zeroizing<String>>> {
    let Some(first) = secret("New passphrase: ")? else { return Ok(None) };
    let second = secret("The same again: ")?;
    if first.is_empty() || second.as_ref() != Some(&first) {
        return Err(io::Error::other("the passphrases are empty or differ; nothing was changed"));
    }
    Ok(Some(first))
}

/// The first line of a file that holds a secret; `-` is standard input.
///
/// # Errors
/// The file cannot be read, its first line is empty, or it is longer than [`MAX_ANSWER_BYTES`].
pub fn secret_file(path: &Path) -> io::Result<Zeroizing<String>> {
    let line = if path == Path::new("-") {
        line_of_stdin()?
    } else {
        let file = File::open(path)?;
        first_line(|text| file.take(MAX_ANSWER_BYTES as u64 + 1).read_to_string(text))?
    };
    if line.is_empty() {
        return Err(io::Error::other("its first line is empty"));
    }
    Ok(line)
}

/// Asks to confirm. Only the whole word `yes` confirms, against habitual answers.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn confirm(input: &mut impl BufRead, output: &mut impl Write, question: &str) -> io::Result<bool> {
    let answer = line(input, output, &format!("{question} Type yes: "))?;
    Ok(answer.is_some_and(|answer| answer.eq_ignore_ascii_case("yes")))
}

/// Asks to confirm at the terminal, by [`confirm`]; `None` where no person can answer.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn confirm_at_terminal(question: &str) -> io::Result<Option<bool>> {
    if !is_interactive() {
        return Ok(None);
    }
    confirm(&mut io::stdin().lock(), &mut io::stderr(), question).map(Some)
}

/// Asks for a line of text, and trims it; `None` at the end of the input.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn line(input: &mut impl BufRead, output: &mut impl Write, question: &str) -> io::Result<Option<String>> {
    output.write_all(question.as_bytes())?;
    output.flush()?;
    let mut answer = String::new();
    let read = input.take(MAX_ANSWER_BYTES as u64).read_line(&mut answer)?;
    Ok((read > 0).then(|| answer.trim().to_owned()))
}

/// Has `read` append to an empty text, and returns its first line.
fn first_line(read: impl FnOnce(&mut String) -> io::Result<usize>) -> io::Result<Zeroizing<String>> {
    // Reserves the maximum size: a growing string would leave copies in memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_ANSWER_BYTES + 1));
    read(&mut text)?;
    if text.len() > MAX_ANSWER_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_ANSWER_BYTES} bytes")));
    }
    let line = text.lines().next().unwrap_or_default();
    // Some editors begin a file with a byte order mark.
    Ok(Zeroizing::new(line.strip_prefix('\u{feff}').unwrap_or(line).to_owned()))
}

/// The first line of standard input.
fn line_of_stdin() -> io::Result<Zeroizing<String>> {
    first_line(|text| io::stdin().lock().take(MAX_ANSWER_BYTES as u64 + 1).read_line(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_word_confirms() {
        for (typed, confirmed) in
            [("yes\n", true), (" YES \n", true), ("yes", true), ("y\n", false), ("\n", false), ("", false)]
        {
            let mut shown = Vec::new();
            assert_eq!(confirm(&mut typed.as_bytes(), &mut shown, "Sure?").unwrap(), confirmed, "{typed:?}");
            assert_eq!(String::from_utf8(shown).unwrap(), "Sure? Type yes: ");
        }
        assert!(confirm(&mut [0xff; 100].as_slice(), &mut Vec::new(), "Sure?").is_err());
    }

    #[test]
    fn a_line_is_bounded_and_its_end_is_no_answer() {
        assert_eq!(line(&mut "".as_bytes(), &mut Vec::new(), "?").unwrap(), None);
        assert_eq!(line(&mut "\n".as_bytes(), &mut Vec::new(), "?").unwrap().as_deref(), Some(""));
        let long = "a".repeat(3 * MAX_ANSWER_BYTES);
        let answer = line(&mut long.as_bytes(), &mut Vec::new(), "?").unwrap().unwrap();
        assert_eq!(answer.len(), MAX_ANSWER_BYTES);
    }

    #[test]
    fn a_secret_file_gives_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = folder.path().join("secret");
            std::fs::write(&path, text).unwrap();
            secret_file(&path).map(|text| text.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(read("word one \r\nmore\n").unwrap(), "word one ");
        assert_eq!(read("last").unwrap(), "last");
        assert_eq!(read("\u{feff}marked\n").unwrap(), "marked");
        assert!(read("\nmore").unwrap_err().contains("empty"));
        assert!(read(&"a".repeat(MAX_ANSWER_BYTES + 1)).unwrap_err().contains("4096"));
        assert_eq!(read(&"a".repeat(MAX_ANSWER_BYTES)).unwrap().len(), MAX_ANSWER_BYTES);
    }
}
