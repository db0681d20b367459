//! Tables of an answer: columns as wide as their text, or narrower, with rows of several lines. Pure.

use super::{Ink, Row, inline, wrap};

/// Most columns of a table; a line of more stays as it is.
const MAX_COLUMNS: usize = 32;
/// Least cells of a column; a screen without that room shows the lines as they are.
const MIN_CELLS: usize = 3;
/// Between two columns.
const GAP: &str = " │ ";

/// The side to which each column is aligned: right, or else left; none unless these two lines begin a table that fits.
pub(super) fn columns(heading: &str, rule: Option<&str>, cells: usize) -> Option<Vec<bool>> {
    let rule = rule.filter(|rule| heading.contains('|') && rule.contains('|') && rule.contains('-'))?;
    if !rule.chars().all(|c| matches!(c, '|' | '-' | ':' | ' ')) {
        return None;
    }
    let aligned: Vec<bool> =
        parts(rule).iter().map(|part| part.ends_with(':') && !part.starts_with(':')).collect();
    let room = aligned.len() * (MIN_CELLS + wrap::width(GAP));
    let fits = (1..=MAX_COLUMNS).contains(&aligned.len()) && room <= cells + wrap::width(GAP);
    (fits && parts(heading).len() == aligned.len()).then_some(aligned)
}

/// The rows of a table: its heading, and the lines after the rule.
pub(super) fn rows(lines: &[&str], aligned: Vec<bool>, cells: usize) -> Vec<Row> {
    let gaps = wrap::width(GAP) * aligned.len().saturating_sub(1);
    let lines: Vec<Vec<&str>> = lines.iter().map(|line| parts(line)).collect();
    let of = |line: &Vec<&str>, column: usize, ink| {
        inline(line.get(column).copied().unwrap_or_default(), ink, "", "")
    };
    let wanted = |column| {
        let widths = lines.iter().map(|line| wrap::width(&of(line, column, Ink::Answer).text));
        widths.max().unwrap_or(0).max(MIN_CELLS)
    };
    let widths = narrowed((0..aligned.len()).map(wanted).collect(), cells.saturating_sub(gaps));
    let columns: Vec<(usize, bool)> = widths.iter().copied().zip(aligned).collect();
    let mut rows = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let ink = if index == 0 { Ink::Strong } else { Ink::Answer };
        let drawn: Vec<Vec<Row>> =
            widths.iter().enumerate().map(|(column, width)| of(line, column, ink).rows(*width)).collect();
        let height = drawn.iter().map(Vec::len).max().unwrap_or(0);
        rows.extend((0..height).map(|y| joined(&drawn, y, &columns)));
        if index == 0 {
            let rule = widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("─┼─");
            rows.push(vec![(Ink::Fence, rule)]);
        }
    }
    rows
}

/// One row of the screen: this line of each cell, side by side.
fn joined(drawn: &[Vec<Row>], y: usize, columns: &[(usize, bool)]) -> Row {
    let mut row = Row::new();
    for (column, (cell, (width, is_right))) in drawn.iter().zip(columns).enumerate() {
        let pieces = cell.get(y).cloned().unwrap_or_default();
        let taken: usize = pieces.iter().map(|(_, text)| wrap::width(text)).sum();
        let gap = (Ink::Answer, " ".repeat(width.saturating_sub(taken)));
        if column > 0 {
            row.push((Ink::Fence, GAP.to_owned()));
        }
        if *is_right {
            row.push(gap);
            row.extend(pieces);
        } else {
            row.extend(pieces);
            row.push(gap);
        }
    }
    // No spaces at the end of a row.
    if let Some((_, text)) = row.last_mut() {
        text.truncate(text.trim_end().len());
    }
    if row.last().is_some_and(|(_, text)| text.is_empty()) {
        row.pop();
    }
    if let Some((Ink::Fence, text)) = row.last_mut() {
        text.truncate(text.trim_end().len());
    }
    row
}

/// The widths, with the widest columns narrowed until all fit.
fn narrowed(mut widths: Vec<usize>, cells: usize) -> Vec<usize> {
    // The widest column takes what is too much, down to the next one, until nothing is.
    loop {
        let over = widths.iter().sum::<usize>().saturating_sub(cells);
        let widest = widths.iter().copied().max().unwrap_or(0);
        if over == 0 || widest <= MIN_CELLS {
            return widths;
        }
        let next = widths.iter().copied().filter(|width| *width < widest).max().unwrap_or(MIN_CELLS);
        let by = over.min(widest - next.max(MIN_CELLS));
        if let Some(width) = widths.iter_mut().find(|width| **width == widest) {
            *width -= by.max(1);
        }
    }
}

/// The cells of a line.
fn parts(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(str::trim).collect()
}
