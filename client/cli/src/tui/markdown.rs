//! Markdown of an answer as rows of a terminal: headings, lists, tasks, quotes, tables, fenced code, links, and
//! bold, emphasised, struck and code text. Other marks, and wide tables, stay as they are. Pure.

use std::ops::Range;

use ratatui::{
    style::Style,
    text::{Line, Span},
};

use super::{
    palette::{CODE, DIM, EMPHASIS, LINK, STRONG, STRUCK},
    wrap,
};

/// Marks around a part of a line, with the look of the part; longer marks first.
const MARKS: [(&str, Style); 7] = [
    ("***", STRONG),
    ("**", STRONG),
    ("__", STRONG),
    ("~~", STRUCK),
    ("`", CODE),
    ("*", EMPHASIS),
    ("_", EMPHASIS),
];
/// Longest part between two marks, so that many marks without a pair cost little.
const MAX_PART_BYTES: usize = 1000;
/// Most columns of a table; a line of more stays as it is.
const MAX_COLUMNS: usize = 32;
/// Between two columns of a table.
const GAP: &str = " │ ";

/// Text of one line with the look of its parts.
struct StyledLine {
    text: String,
    /// Byte ranges that are all of the text, in order, each with its look.
    spans: Vec<(Range<usize>, Style)>,
    /// Shown before the first row.
    lead: Span<'static>,
    /// The gap before the other rows.
    gap: Span<'static>,
}

/// The rows of a text, for a width of `cells`.
pub(super) fn rows(text: &str, cells: usize) -> Vec<Line<'static>> {
    let mut fence: Option<&str> = None;
    let mut rows = Vec::new();
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => {
                fence = Some(mark);
                rows.push(fence_line(trimmed.trim_start_matches(['`', '~']).trim()));
            }
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                rows.push(fence_line(""));
            }
            (Some(_), _) => {
                let code = wrap::rows(line, cells.saturating_sub(2).max(1)).into_iter();
                rows.extend(code.map(|row| vec![Span::styled("│ ", DIM), Span::styled(row, CODE)].into()));
            }
            (None, None) if lines.peek().is_some_and(|rule| is_table(line, rule)) => {
                let mut table = vec![line];
                table.extend(std::iter::from_fn(|| lines.next_if(|line| line.contains('|'))));
                let raw = || table.iter().flat_map(|line| styled(line).rows(cells)).collect();
                rows.extend(table_rows(&table, cells).unwrap_or_else(raw));
            }
            (None, None) => rows.extend(styled(line).rows(cells)),
        }
    }
    rows
}

/// Whether these two lines begin a table.
fn is_table(heading: &str, rule: &str) -> bool {
    let columns = table_cells(rule).len();
    heading.contains('|')
        && ['|', '-'].iter().all(|mark| rule.contains(*mark))
        && rule.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '))
        && columns <= MAX_COLUMNS
        && columns == table_cells(heading).len()
}

fn table_cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    line.strip_suffix('|').unwrap_or(line).split('|').map(str::trim).collect()
}

/// The rows of a table: a heading, a rule with the sides of the columns, and the rest. None if it is too wide.
fn table_rows(lines: &[&str], cells: usize) -> Option<Vec<Line<'static>>> {
    let (heading, rest) = lines.split_first()?;
    let (rule, body) = rest.split_first()?;
    let is_right: Vec<bool> =
        table_cells(rule).iter().map(|cell| cell.ends_with(':') && !cell.starts_with(':')).collect();
    let mut widths = vec![0; is_right.len()];
    let mut drawn: Vec<Vec<StyledLine>> = Vec::new();
    for line in std::iter::once(heading).chain(body) {
        let look = if drawn.is_empty() { STRONG } else { Style::new() };
        let texts = table_cells(line).into_iter().chain(std::iter::repeat(""));
        let row = texts.zip(&mut widths).map(|(text, width)| {
            let cell = inline(text, look, "", "");
            *width = wrap::width(&cell.text).max(*width);
            cell
        });
        drawn.push(row.collect());
    }
    if widths.iter().sum::<usize>() + wrap::width(GAP) * (widths.len() - 1) > cells {
        return None;
    }
    let mut rows: Vec<Line<'static>> = Vec::new();
    for line in drawn {
        let mut row = Line::default();
        for ((cell, width), is_right) in line.into_iter().zip(&widths).zip(&is_right) {
            let room = Span::raw(" ".repeat(width - wrap::width(&cell.text)));
            if !row.spans.is_empty() {
                row.spans.push(Span::styled(GAP, DIM));
            }
            row.extend(is_right.then(|| room.clone()));
            row.extend(cell.pieces(0..cell.text.len()));
            row.extend((!is_right).then_some(room));
        }
        rows.push(row);
    }
    let rule = widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("─┼─");
    rows.insert(1, Span::styled(rule, DIM).into());
    Some(rows)
}

fn fence_line(language: &str) -> Line<'static> {
    let name = wrap::fit(&wrap::clean_line(language), 20);
    Span::styled(format!("── {name}").trim_end().to_owned(), DIM).into()
}

/// A line outside of code.
fn styled(line: &str) -> StyledLine {
    let rest = line.trim_start_matches(' ');
    let indent = " ".repeat((line.len() - rest.len()).min(8));
    let marks = rest.len() - rest.trim_start_matches('#').len();
    if (1..=6).contains(&marks)
        && let Some(heading) = rest.get(marks..).and_then(|rest| rest.strip_prefix(' '))
    {
        return inline(heading, STRONG, "", "");
    }
    if let Some(quoted) = rest.strip_prefix("> ") {
        return inline(quoted, DIM, "│ ", "│ ");
    }
    if let Some(item) = ["- ", "* ", "+ "].into_iter().find_map(|mark| rest.strip_prefix(mark)) {
        let tasks = [("[ ] ", "☐"), ("[x] ", "☑"), ("[X] ", "☑")];
        let mut task = tasks.into_iter().filter_map(|(mark, sign)| Some((item.strip_prefix(mark)?, sign)));
        let (item, sign) = task.next().unwrap_or((item, "•"));
        return inline(item, Style::new(), &format!("{indent}{sign} "), &format!("{indent}  "));
    }
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if (1..=3).contains(&digits)
        && let Some(item) = rest.get(digits..).and_then(|rest| rest.strip_prefix(". "))
    {
        let number = rest.get(..digits).unwrap_or_default();
        let gap = " ".repeat(digits + 2);
        return inline(item, Style::new(), &format!("{indent}{number}. "), &format!("{indent}{gap}"));
    }
    inline(line, Style::new(), "", "")
}

/// The parts of a line between pairs of marks.
fn inline(line: &str, look: Style, lead: &str, gap: &str) -> StyledLine {
    let [lead, gap] = [lead, gap].map(|text| Span::styled(text.to_owned(), look));
    let mut styled = StyledLine { text: String::new(), spans: Vec::new(), lead, gap };
    let mut rest = line;
    while let Some(at) = rest.find(['`', '*', '_', '~', '[', '\\']) {
        let (before, from) = rest.split_at(at);
        styled.push(before, look);
        let last = styled.text.chars().next_back();
        rest = if let Some((text, look, after)) = marked(from, last) {
            styled.push(text, look);
            after
        } else if let Some((text, address, after)) = link(from) {
            styled.push(text, LINK);
            if text != address {
                styled.push(&format!(" ({address})"), DIM);
            }
            after
        } else {
            // A backslash takes the meaning of the next mark; a mark without a pair stands for itself.
            let escaped = from.strip_prefix('\\').filter(|next| next.starts_with(['`', '*', '_', '~', '[']));
            let from = escaped.unwrap_or(from);
            let length = from.chars().next().map_or(1, char::len_utf8);
            let (mark, after) = from.split_at(length.min(from.len()));
            styled.push(mark, look);
            after
        };
    }
    styled.push(rest, look);
    styled
}

/// The part between a mark at the beginning of a text and its pair, with its look and the text after it. `last` is the
/// character before.
fn marked(from: &str, last: Option<char>) -> Option<(&str, Style, &str)> {
    let (mark, look) = MARKS.into_iter().find(|(mark, _)| from.starts_with(mark))?;
    let body = from.strip_prefix(mark)?;
    let near = body.get(..body.floor_char_boundary(MAX_PART_BYTES))?;
    let (is_code, is_line) = (look == CODE, mark.starts_with('_'));
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    if !is_code && (near.starts_with(char::is_whitespace) || (is_line && is_word(last))) {
        return None;
    }
    let (end, _) = near.match_indices(mark).find(|(at, _)| {
        let inside = near.get(..*at).unwrap_or_default();
        let next = body.get(at + mark.len()..).and_then(|after| after.chars().next());
        let ends = !(inside.ends_with(char::is_whitespace) || is_line && is_word(next));
        !inside.is_empty() && (is_code || ends)
    })?;
    Some((body.get(..end)?, look, body.get(end + mark.len()..)?))
}

/// The text and the address of a link at the beginning of a text, with the text after it.
fn link(from: &str) -> Option<(&str, &str, &str)> {
    let body = from.strip_prefix('[')?;
    let near = body.get(..body.floor_char_boundary(MAX_PART_BYTES))?;
    let (text, address) = near.split_once("](")?;
    let end = address.find(')')?;
    let address = address.get(..end)?;
    let is_link = !text.is_empty() && !text.contains('[') && !address.is_empty();
    let after = body.get(text.len() + "](".len() + end + 1..)?;
    (is_link && !address.contains(char::is_whitespace)).then_some((text, address, after))
}

impl StyledLine {
    /// Adds a part with a look.
    fn push(&mut self, text: &str, look: Style) {
        let start = self.text.len();
        self.text.push_str(text);
        match self.spans.last_mut() {
            Some((span, last)) if *last == look => span.end = self.text.len(),
            _ => self.spans.push((start..self.text.len(), look)),
        }
    }

    fn rows(&self, cells: usize) -> Vec<Line<'static>> {
        let room = cells.saturating_sub(wrap::width(&self.lead.content)).max(1);
        let row = |(index, range)| {
            let lead = if index == 0 { &self.lead } else { &self.gap };
            let lead = Some(lead.clone()).filter(|lead| !lead.content.is_empty());
            lead.into_iter().chain(self.pieces(range)).collect()
        };
        wrap::wrap(&self.text, room).into_iter().enumerate().map(row).collect()
    }

    /// The pieces of a row, without spaces at its end.
    fn pieces(&self, row: Range<usize>) -> impl Iterator<Item = Span<'static>> {
        let shown = self.text.get(row.clone()).unwrap_or_default().trim_end().len();
        let (start, end) = (row.start, row.start + shown);
        self.spans.iter().filter_map(move |(span, look)| {
            let text = self.text.get(span.start.max(start)..span.end.min(end))?;
            (!text.is_empty()).then(|| Span::styled(wrap::show(text), *look))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(rows: &[Line<'_>]) -> Vec<String> {
        rows.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn marks_become_looks() {
        let cases: [(&str, &[(Style, &str)]); 8] = [
            (
                "a **bold** and `code` end",
                &[
                    (Style::new(), "a "),
                    (STRONG, "bold"),
                    (Style::new(), " and "),
                    (CODE, "code"),
                    (Style::new(), " end"),
                ],
            ),
            ("## Title", &[(STRONG, "Title")]),
            ("*italic*", &[(EMPHASIS, "italic")]),
            ("_italic_", &[(EMPHASIS, "italic")]),
            ("~~gone~~ here", &[(STRUCK, "gone"), (Style::new(), " here")]),
            ("***both***", &[(STRONG, "both")]),
            ("[the page](https://a.example/b)", &[(LINK, "the page"), (DIM, " (https://a.example/b)")]),
            ("[https://a.example](https://a.example)", &[(LINK, "https://a.example")]),
        ];
        for (text, expected) in cases {
            let expected: Line<'_> = expected.iter().map(|(look, text)| Span::styled(*text, *look)).collect();
            assert_eq!(rows(text, 80), [expected], "{text}");
        }
        assert_eq!(
            plain(&rows("- [ ] open\n- [x] done\n- [link](a)", 80)),
            ["☐ open", "☑ done", "• link (a)"]
        );
        assert_eq!(plain(&rows("\\*not this\\*", 80)), ["*not this*"]);
    }

    #[test]
    fn tables_that_fit_are_drawn_in_columns() {
        let text = "| Name | Age |\n|:--|--:|\n| Anna Maria | 7 |\n| Ben | **40** |\nafter";
        assert_eq!(
            plain(&rows(text, 40)),
            ["Name       │ Age", "───────────┼────", "Anna Maria │   7", "Ben        │  40", "after"]
        );
        assert_eq!(plain(&rows(text, 12)).concat().replace(' ', ""), text.replace(['\n', ' ', '*'], ""));
        assert_eq!(plain(&rows("a | b\nno rule | here", 40)), ["a | b", "no rule | here"]);
    }

    #[test]
    fn many_marks_without_a_pair_cost_little() {
        let began = std::time::Instant::now();
        for mark in ["*a ", "_a ", "[a", "**a ", "~~a ", "|a", "a|-|\n"] {
            rows(&mark.repeat(20_000), 80);
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn marks_without_a_pair_stay() {
        for text in
            ["2 * 3 * 4", "**open", "a ` b", "#hash", "****", "-dash", "snake_case_name", "a[1](", "~1"]
        {
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
        fn rows_of_any_text_fit(text in "(\\PC|[ \n`*#>|_~-]){0,80}", cells in 8usize..40) {
            for row in rows(&text, cells) {
                let shown = row.to_string();
                prop_assert!(wrap::width(shown.trim_end()) <= cells.max(24), "{shown:?}");
            }
        }
    }
}
