//! Markdown of an answer as rows of a terminal: headings, lists, quotes, fenced code, bold text and inline code.
//! Other marks stay as they are. Pure.

use std::ops::Range;

use super::{
    block::{Ink, Row},
    wrap,
};

/// Text of one line with the look of its parts.
struct StyledLine {
    text: String,
    /// Byte ranges of the text with a look of their own, in order.
    spans: Vec<(Range<usize>, Ink)>,
    /// The look of the rest.
    ink: Ink,
    /// Shown before the first row, and the gap before the others.
    lead: (String, String),
}

/// The rows of a text, for a width of `cells`.
pub(super) fn rows(text: &str, cells: usize) -> Vec<Row> {
    let mut fence: Option<&str> = None;
    let mut rows = Vec::new();
    for line in text.split('\n') {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => {
                fence = Some(mark);
                rows.push(vec![(Ink::Fence, fence_line(trimmed.trim_start_matches(['`', '~']).trim()))]);
            }
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                rows.push(vec![(Ink::Fence, fence_line(""))]);
            }
            (Some(_), _) => {
                let code = wrap::rows(line, cells.saturating_sub(2).max(1)).into_iter();
                rows.extend(code.map(|row| vec![(Ink::Fence, "│ ".to_owned()), (Ink::Code, row)]));
            }
            (None, None) => rows.extend(styled(line).rows(cells)),
        }
    }
    rows
}

fn fence_line(language: &str) -> String {
    let name = wrap::fit(&wrap::clean_line(language), 20);
    if name.is_empty() { "──".to_owned() } else { format!("── {name}") }
}

/// A line outside of code.
fn styled(line: &str) -> StyledLine {
    let rest = line.trim_start_matches(' ');
    let indent = " ".repeat((line.len() - rest.len()).min(8));
    let marks = rest.len() - rest.trim_start_matches('#').len();
    if (1..=6).contains(&marks)
        && let Some(heading) = rest.get(marks..).and_then(|rest| rest.strip_prefix(' '))
    {
        return inline(heading, Ink::Strong, (String::new(), String::new()));
    }
    if let Some(quoted) = rest.strip_prefix("> ") {
        return inline(quoted, Ink::Quote, ("│ ".to_owned(), "│ ".to_owned()));
    }
    if let Some(item) = ["- ", "* ", "+ "].into_iter().find_map(|mark| rest.strip_prefix(mark)) {
        return inline(item, Ink::Answer, (format!("{indent}• "), format!("{indent}  ")));
    }
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if (1..=3).contains(&digits)
        && let Some(item) = rest.get(digits..).and_then(|rest| rest.strip_prefix(". "))
    {
        let number = rest.get(..digits).unwrap_or_default();
        let gap = " ".repeat(digits + 2);
        return inline(item, Ink::Answer, (format!("{indent}{number}. "), format!("{indent}{gap}")));
    }
    inline(line, Ink::Answer, (String::new(), String::new()))
}

/// The parts of a line between pairs of marks.
fn inline(line: &str, ink: Ink, lead: (String, String)) -> StyledLine {
    let mut styled = StyledLine { text: String::new(), spans: Vec::new(), ink, lead };
    let mut rest = line;
    while let Some(at) = rest.find(['`', '*']) {
        let (before, from) = rest.split_at(at);
        styled.text.push_str(before);
        let (mark, inner) = if from.starts_with("**") { ("**", Ink::Strong) } else { ("`", Ink::Code) };
        let body = from.strip_prefix(mark).and_then(|body| Some((body, body.find(mark)?)));
        match body {
            Some((body, end)) if end > 0 => {
                let start = styled.text.len();
                styled.text.push_str(body.get(..end).unwrap_or_default());
                styled.spans.push((start..styled.text.len(), inner));
                rest = body.get(end + mark.len()..).unwrap_or_default();
            }
            _ => {
                // No pair: the mark stands for itself.
                let length = from.chars().next().map_or(1, char::len_utf8);
                styled.text.push_str(from.get(..length).unwrap_or_default());
                rest = from.get(length..).unwrap_or_default();
            }
        }
    }
    styled.text.push_str(rest);
    styled
}

impl StyledLine {
    fn rows(&self, cells: usize) -> Vec<Row> {
        let room = cells.saturating_sub(wrap::width(&self.lead.0)).max(1);
        let ranges = wrap::wrap(&self.text, room).into_iter().enumerate();
        ranges
            .map(|(index, range)| {
                let lead = if index == 0 { &self.lead.0 } else { &self.lead.1 };
                let mut row = vec![(self.ink, lead.clone())];
                row.retain(|(_, text)| !text.is_empty());
                row.extend(self.pieces(range));
                row
            })
            .collect()
    }

    /// The pieces of a row, without spaces at its end.
    fn pieces(&self, range: Range<usize>) -> Row {
        let shown = self.text.get(range.clone()).unwrap_or_default().trim_end().len();
        let range = range.start..range.start + shown;
        let (mut at, mut pieces) = (range.start, Vec::new());
        let mut push = |ink, part: Range<usize>| {
            let text = self.text.get(part).unwrap_or_default();
            if !text.is_empty() {
                pieces.push((ink, wrap::show(text)));
            }
        };
        for (span, ink) in &self.spans {
            let (start, end) = (span.start.clamp(at, range.end), span.end.clamp(at, range.end));
            push(self.ink, at..start);
            push(*ink, start..end);
            at = end;
        }
        push(self.ink, at..range.end);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|row| row.iter().map(|(_, text)| text.as_str()).collect()).collect()
    }

    #[test]
    fn marks_become_looks() {
        let found = rows("a **bold** and `code` end", 80);
        assert_eq!(
            found,
            [vec![
                (Ink::Answer, "a ".to_owned()),
                (Ink::Strong, "bold".to_owned()),
                (Ink::Answer, " and ".to_owned()),
                (Ink::Code, "code".to_owned()),
                (Ink::Answer, " end".to_owned()),
            ]]
        );
        assert_eq!(rows("## Title", 80), [vec![(Ink::Strong, "Title".to_owned())]]);
    }

    #[test]
    fn marks_without_a_pair_stay() {
        for text in ["2 * 3 * 4", "**open", "a ` b", "#hash", "****", "-dash"] {
            assert_eq!(plain(&rows(text, 80)), [text], "{text}");
        }
    }

    #[test]
    fn lists_quotes_and_code_are_set_in() {
        let text = "- one two\n2. three four\n> said\n```rust\nlet x = 1;\n```\nafter";
        assert_eq!(
            plain(&rows(text, 8)),
            [
                "• one",
                "  two",
                "2. three",
                "   four",
                "│ said",
                "── rust",
                "│ let x",
                "│ = 1;",
                "──",
                "after"
            ]
        );
    }

    proptest! {
        #[test]
        fn rows_of_any_text_fit(text in "(\\PC|[ \n`*#>-]){0,80}", cells in 8usize..40) {
            for row in rows(&text, cells) {
                let shown: String = row.iter().map(|(_, text)| text.as_str()).collect();
                prop_assert!(wrap::width(shown.trim_end()) <= cells.max(24), "{shown:?}");
            }
        }
    }
}
