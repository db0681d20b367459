"""Tests of the counts of size.py, on a file of known content."""

import unittest

import size

FILE = '''//! A kite.
use std::env; // code

/// A string: // no comment, no brace {.
const TEXT: &str = "// { BATON_NOTHING";
const NAME: &str = "BATON_WIND";

#[derive(Debug, Subcommand)]
enum Command {
    /// Fly
    #[command(alias = "up")]
    Fly(FlyArgs),
    Land { #[arg(long, value_parser = range(1))] soon: bool, #[arg(value_name = "LONG")] place: String },
    Wait,
}

options! {
    /// Options of a kite.
    #[derive(Args)]
    pub struct KiteOptions, "BATON_KITE_", table {
        "Flight" {
            /// Length of the line: metres
            [value_name = "N"] line_length: Option<u32> =
                number(), range(1, 9).default("a: b");
            colours: Vec<String>;
        }
    }
}

pub(crate) enum Entry {
    Opened(Box<Header>),
    Noted(Note),
    Turn { seq: u64, of: Vec<(u8, u8)> },
    Other(segment::Entry),
}

enum Note {
    Seen,
    Lost(u8),
}

#[cfg(test)]
mod tests {
    struct Note;
    // A comment.
    const OPTION: &str = "BATON_TEST";
}
'''


class Counts(unittest.TestCase):
    def setUp(self):
        self.code = size.masked(FILE)
        self.tested = size.without_tests(self.code)

    def test_lines_are_code_tests_comments_or_blank(self):
        counts = size.lines(FILE, self.code, self.tested)
        self.assertEqual(counts, {"code": 30, "tests": 5, "comments": 6})
        self.assertEqual(sum(counts.values()) + FILE.count("\n\n") + 1, len(FILE.split("\n")))

    def test_types_of_tests_are_no_types(self):
        self.assertEqual(size.TYPE.findall(self.tested), ["Command", "Entry", "Note"])

    def test_options_are_flags_and_rows(self):
        count, names = size.options(FILE, self.tested)
        self.assertEqual(count, 3)
        self.assertEqual(names, {"BATON_WIND", "BATON_KITE_LINE_LENGTH", "BATON_KITE_COLOURS"})

    def test_variants_are_commands_and_kinds(self):
        self.assertEqual([name for name, _ in size.variants(self.tested, self.tested.index("enum Command"))], ["Fly", "Land", "Wait"])
        self.assertEqual(size.journal_kinds(self.tested), 5)

    def test_a_function_is_long_from_71_lines_on(self):
        for lines, names in ((70, []), (71, ["fly"])):
            code = "    pub(crate) async fn fly() {\n" + '        let _ = "{";\n' * (lines - 2) + "    }\nfn land() {}\n"
            self.assertEqual([name for _, name, _ in size.long_functions(size.masked(code))], names)

    def test_only_a_rise_fails(self):
        rose, fell = size.compare({"code of a": 5, "tests of a": 3}, {"code of a": 4, "code of b": 1, "tests of a": 3})
        self.assertEqual((rose, fell), (["  code of b: from 0 to 1"], ["  code of a: from 5 to 4"]))


if __name__ == "__main__":
    unittest.main()
