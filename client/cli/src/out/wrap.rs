//! Text as rows of a terminal: measured in grapheme clusters, and broken between words. Pure.

use std::{borrow::Cow, ops::Range};

use ratatui::buffer::CellWidth as _;
use unicode_segmentation::UnicodeSegmentation as _;

use crate::out::printable;

/// The replacement of a tab.
const TAB: &str = "    ";
/// Most bytes shown of one grapheme cluster: the longest emoji have 35, and piled accents would be sent again
/// with every frame.
const MAX_GRAPHEME_BYTES: usize = 64;

/// Text without characters that act on a terminal, and with spaces for tabs.
pub(crate) fn clean(text: &str) -> String {
    printable::clean(text).replace('\t', TAB)
}

/// The same on one line.
pub(crate) fn clean_line(text: &str) -> String {
    clean(text).replace('\n', " ")
}

/// A character as shown, and its width in cells.
pub(crate) fn shown(grapheme: &str) -> (Cow<'_, str>, usize) {
    if grapheme == "\t" {
        return (TAB.into(), TAB.len());
    }
    let cleaned = if grapheme.chars().any(printable::acts) {
        Cow::Owned(grapheme.chars().filter(|c| !printable::acts(*c)).collect())
    } else {
        Cow::Borrowed(grapheme)
    };
    if cleaned.is_empty() {
        return (cleaned, 0);
    }
    if cleaned.len() > MAX_GRAPHEME_BYTES {
        let first: String = cleaned.chars().take(1).collect();
        let width = first.cell_width().into();
        return (first.into(), width);
    }
    let width = cleaned.cell_width().into();
    (cleaned, width)
}

/// The width of a line in cells.
pub(crate) fn width(line: &str) -> usize {
    line.graphemes(true).map(|grapheme| shown(grapheme).1).sum()
}

/// A line as it is shown.
pub(crate) fn show(line: &str) -> String {
    line.graphemes(true).map(|grapheme| shown(grapheme).0).collect()
}

/// The beginning of a line within `cells`; a cut is marked.
pub(crate) fn fit(line: &str, cells: usize) -> String {
    if width(line) <= cells {
        return show(line);
    }
    let mut fitted = String::new();
    let mut taken = 0;
    for grapheme in line.graphemes(true) {
        let (text, width) = shown(grapheme);
        if taken + width >= cells {
            break;
        }
        fitted.push_str(&text);
        taken += width;
    }
    if cells > 0 {
        fitted.push('…');
    }
    fitted
}

/// The rows of a text, as byte ranges of it: at least one, in order, without the line ends between them.
/// Spaces at a break stay at the row's end, beyond the width.
pub(crate) fn wrap(text: &str, cells: usize) -> Vec<Range<usize>> {
    let mut rows = Vec::new();
    let mut start = 0;
    for line in text.split('\n') {
        wrap_line(line, start, cells.max(1), &mut rows);
        start += line.len() + 1;
    }
    rows
}

/// The rows of a text as they are shown.
pub(crate) fn rows(text: &str, cells: usize) -> Vec<String> {
    let ranges = wrap(text, cells).into_iter();
    ranges.map(|row| show(text.get(row).unwrap_or_default().trim_end())).collect()
}

/// The same, but all rows of a line keep its leading spaces as an indent, as for a remark's details.
pub(crate) fn hanging_rows(text: &str, cells: usize) -> Vec<String> {
    let mut set_in = Vec::new();
    for line in text.split('\n') {
        let rest = line.trim_start_matches(' ');
        let indent = (line.len() - rest.len()).min(cells / 2);
        let gap = " ".repeat(indent);
        set_in.extend(rows(rest, cells - indent).into_iter().map(|row| format!("{gap}{row}")));
    }
    set_in
}

fn wrap_line(line: &str, offset: usize, cells: usize, rows: &mut Vec<Range<usize>>) {
    // The current row: its start, and its width in cells.
    let (mut start, mut taken) = (0, 0);
    // The last possible break, and the cells up to there.
    let mut gap: Option<(usize, usize)> = None;
    for (at, grapheme) in line.grapheme_indices(true) {
        let width = shown(grapheme).1;
        let is_space = grapheme.chars().all(char::is_whitespace);
        let is_wide = width == 2;
        // Between characters of scripts that are written without spaces.
        if is_wide && at > start {
            gap = Some((at, taken));
        }
        while taken + width > cells && taken > 0 && !is_space {
            let (end, before) = gap.take().filter(|(end, _)| *end > start).unwrap_or((at, taken));
            rows.push(offset + start..offset + end);
            (start, taken) = (end, taken - before);
        }
        taken += width;
        if is_space || is_wide {
            gap = Some((at + grapheme.len(), taken));
        }
    }
    rows.push(offset + start..offset + line.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_kept_whole_where_they_fit() {
        let cases: [(&str, usize, &[&str]); 10] = [
            ("", 5, &[""]),
            ("one two three", 7, &["one two", "three"]),
            ("one two three", 8, &["one two", "three"]),
            ("one\n\ntwo\n", 7, &["one", "", "two", ""]),
            ("abcdefghij", 4, &["abcd", "efgh", "ij"]),
            ("ab cdefghij", 4, &["ab", "cdef", "ghij"]),
            ("  indented text", 11, &["  indented", "text"]),
            ("日本語の文", 4, &["日本", "語の", "文"]),
            ("a日b本", 3, &["a日", "b本"]),
            ("日本", 1, &["日", "本"]),
        ];
        for (text, cells, expected) in cases {
            assert_eq!(rows(text, cells), expected, "{text:?} on {cells}");
        }
    }

    #[test]
    fn details_stay_set_in() {
        assert_eq!(
            hanging_rows("error: no\n  try: again later", 12),
            ["error: no", "  try: again", "  later"]
        );
        assert_eq!(hanging_rows("      a", 1), ["a"]);
    }

    #[test]
    fn characters_are_measured_as_a_reader_sees_them() {
        assert_eq!(width("e\u{301}"), 1, "an accent of its own");
        assert_eq!(width("日本"), 4);
        assert_eq!(width("👩\u{200d}👧"), 2, "one picture of several");
        assert_eq!(width("a\u{200b}\u{202e}b"), 2, "what has no width");
        assert_eq!(width("\ta"), 5);
        let piled = format!("e{}", "\u{301}".repeat(1000));
        assert_eq!(shown(&piled), ("e".into(), 1));
    }

    #[test]
    fn what_does_not_fit_is_cut_and_marked() {
        assert_eq!(fit("hello", 5), "hello");
        assert_eq!(fit("hello there", 8), "hello t…");
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("hello", 1), "…");
        assert_eq!(fit("hello", 0), "");
    }

    proptest! {
        #[test]
        fn rows_hold_all_of_a_text_and_fit(text in "(\\PC|[ \n\t日👩\u{200d}\u{301}\u{202e}]){0,60}", cells in 2usize..20) {
            let ranges = wrap(&text, cells);
            let mut end = 0;
            for row in &ranges {
                prop_assert!(text.get(end..row.start).is_some_and(|between| between.is_empty() || between == "\n"));
                let widest = if text[row.clone()].contains('\t') { cells + TAB.len() } else { cells };
                prop_assert!(width(text[row.clone()].trim_end()) <= widest.max(4));
                end = row.end;
            }
            prop_assert_eq!(end, text.len());
            prop_assert!(ranges.len() <= text.chars().count() + 1, "every row has something, or a line end");
        }
    }
}
