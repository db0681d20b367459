//! Finds every problem of a file. Serde stops at the first, so each found value is taken out and the rest is
//! parsed again.

use std::path::Path;

use baton_kit::config::parse;

use super::{ConfigError, Options};

/// Most problems of one file; a file with more is probably no configuration.
const MAX_PROBLEMS: usize = 32;

/// The readable options of a file, and its problems in the order of their lines.
pub(super) fn file(path: &Path, text: &str) -> (Options, Vec<ConfigError>) {
    let mut lines: Vec<&str> = text.lines().collect();
    let mut problems = Vec::new();
    let mut options = Options::default();
    while problems.len() < MAX_PROBLEMS {
        match parse(path, &lines.join("\n")) {
            Ok(read) => {
                options = read;
                break;
            }
            Err(error) => {
                let removed = error.line().is_some_and(|line| remove_value(&mut lines, line - 1));
                problems.push(error);
                if !removed {
                    break;
                }
            }
        }
    }
    problems.sort_by_key(ConfigError::line);
    (options, problems)
}

/// Empties a line, and the following ones while an array is open. Returns whether it held anything.
fn remove_value(lines: &mut [&str], at: usize) -> bool {
    let (mut open, mut removed) = (0_i64, false);
    for line in lines.iter_mut().skip(at) {
        let count = |bracket| i64::try_from(line.matches(bracket).count()).unwrap_or(0);
        open += count('[') - count(']');
        removed |= !line.is_empty();
        *line = "";
        if open <= 0 {
            break;
        }
    }
    removed
}
