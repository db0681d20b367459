//! Lines on standard output.

/// Prints a line.
pub(crate) fn println(line: &str) {
    baton_kit::output::print_line(line);
}
