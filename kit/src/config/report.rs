//! Checks a file against a table of options. Every error names the file, the line, the key and the allowed
//! values.

use std::{ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ConfigError, OptionEntry, OptionKind, OptionTable, file::line_of};
use crate::nearest::edits;

/// The readable part of a file, and its problems.
#[derive(Debug, Default)]
pub struct ConfigReport<O> {
    /// The valid options of the file.
    pub options: O,
    /// Key and line (from 1) of each option, in the order of the file.
    pub lines: Vec<(&'static str, usize)>,
    /// All problems, in the order of the file.
    pub problems: Vec<ConfigError>,
}

impl<O> ConfigReport<O> {
    /// The options of the file, or its first problem.
    ///
    /// # Errors
    /// The first problem.
    pub fn into_options(self) -> Result<O, ConfigError> {
        match self.problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(self.options),
        }
    }
}

/// Parses the text of a file, and continues after each problem.
#[must_use]
pub fn examine<O: OptionTable>(path: &Path, text: &str) -> ConfigReport<O> {
    let (table, broken) = DeTable::parse_recoverable(text);
    let mut report = ConfigReport { options: O::default(), lines: Vec::new(), problems: Vec::new() };
    let problem = |line, key: Option<&str>, problem| {
        let key = key.map(|key| key.escape_debug().to_string());
        ConfigError::Line { path: path.to_owned(), line, key, problem }
    };
    for error in &broken {
        let line = line_of(text, error.span());
        // After one broken piece, the parser reports errors for the rest of its line.
        if report.problems.last().and_then(ConfigError::line) != Some(line) {
            let what = error.message().replace('\n', ", ");
            report.problems.push(problem(line, None, format!("this is not valid TOML: {what}")));
        }
    }
    let broken: Vec<_> = report.problems.iter().map(ConfigError::line).collect();
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (name, line) = (key.get_ref().as_ref(), line_of(text, Some(key.span())));
        if broken.contains(&Some(line)) {
            continue;
        }
        let Some(entry) = O::entry(name) else {
            let what = format!("there is no option `{}`; {}", name.escape_debug(), hint(O::ENTRIES, name));
            report.problems.push(problem(line, Some(name), what));
            continue;
        };
        let set = texts(entry, value)
            .and_then(|values| report.options.set(entry, &values).map_err(|problem| (value.span(), problem)));
        match set {
            Ok(()) => report.lines.push((entry.key, line)),
            Err((span, refusal)) => {
                let (line, what) = (line_of(text, Some(span)), format!("`{name}` cannot be used: {refusal}"));
                report.problems.push(problem(line, Some(name), what));
            }
        }
    }
    report.problems.sort_by_key(ConfigError::line);
    report
}

/// The texts of a value, after a check of its type.
fn texts(entry: &OptionEntry, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, (Range<usize>, String)> {
    let refuse = |value: &Spanned<DeValue<'_>>| {
        let found = value.get_ref().type_str();
        Err((value.span(), format!("expected {}, found a value of type {found}", entry.allowed_words())))
    };
    match (entry.kind, value.get_ref()) {
        (OptionKind::Text | OptionKind::OneOrMore(_), DeValue::String(text)) => Ok(vec![text.to_string()]),
        (OptionKind::Switch, DeValue::Boolean(switch)) => Ok(vec![switch.to_string()]),
        (OptionKind::Number(..), DeValue::Integer(number)) if number.radix() == 10 => {
            Ok(vec![number.as_str().to_owned()])
        }
        (OptionKind::List(most) | OptionKind::OneOrMore(most), DeValue::Array(items))
            if items.len() <= most && (!items.is_empty() || matches!(entry.kind, OptionKind::List(_))) =>
        {
            items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(text) => Ok(text.to_string()),
                    _ => refuse(item).map(|()| String::new()),
                })
                .collect()
        }
        _ => refuse(value).map(|()| Vec::new()),
    }
}

/// A suggestion for an unknown key.
fn hint(entries: &[OptionEntry], key: &str) -> String {
    let wanted = key.replace('-', "_").to_lowercase();
    let near = entries.iter().map(|entry| entry.key).find(|known| {
        *known == wanted || edits(known, &wanted) <= 2 || known.contains(&wanted) || wanted.contains(known)
    });
    match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let keys: Vec<_> = entries.iter().map(|entry| entry.key).collect();
            format!("the options are: {}", keys.join(", "))
        }
    }
}
