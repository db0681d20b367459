//! Lines on standard output.

/// Prints a line.
pub(crate) fn println(line: &str) {
    use std::io::Write as _;
    // A closed standard output is the reader's choice, not an error.
    let _ = writeln!(std::io::stdout(), "{line}");
}
