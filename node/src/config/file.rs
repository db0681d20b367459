//! Reads the TOML file. Every error names the file, the line, the key and the allowed values.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    RunFlags,
    options::{OPTIONS, OptionEntry, OptionKind, find},
};

/// Largest accepted file; the commented one has some six kilobytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Why a configuration cannot be used. Each text says how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{path}:{line}: this is not valid TOML: {problem}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// A key that is not an option.
    #[error("{path}:{line}: there is no option `{key}`; {hint}")]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The nearest option, or all options.
        hint: String,
    },
    /// A value that the option does not accept.
    #[error("{path}:{line}: `{key}` cannot be used: {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The allowed values.
        problem: String,
    },
    /// Options that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

/// The readable part of a file, and its problems.
#[derive(Debug, Default)]
pub struct ConfigReport {
    /// The valid options of the file.
    pub flags: RunFlags,
    /// Key and line (from 1) of each option, in the order of the file.
    pub lines: Vec<(&'static str, usize)>,
    /// All problems, in the order of the file.
    pub problems: Vec<ConfigError>,
}

/// Reads a file; `None` if it is missing and not required.
pub(super) fn read(path: &Path, required: bool) -> Result<Option<ConfigReport>, ConfigError> {
    Ok(read_text(path, required)?.map(|text| examine(path, &text)))
}

/// The text of a file; `None` if it is missing and not required.
///
/// # Errors
/// [`ConfigError::Read`].
pub fn read_text(path: &Path, required: bool) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        // If the data directory is no folder, its opening reports that.
        Err(error) if !required && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes"))));
    }
    Ok(Some(text))
}

/// Parses the text of a file.
#[cfg(test)]
pub(super) fn parse(path: &Path, text: &str) -> Result<RunFlags, ConfigError> {
    examine(path, text).into_flags()
}

impl ConfigError {
    /// The line of the problem, if it has one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Syntax { line, .. } | Self::UnknownKey { line, .. } | Self::Value { line, .. } => {
                Some(*line)
            }
            Self::Read { .. } | Self::Conflict(_) => None,
        }
    }

    /// The key of the problem, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { key, .. } | Self::Value { key, .. } => Some(key),
            Self::Read { .. } | Self::Syntax { .. } | Self::Conflict(_) => None,
        }
    }
}

impl ConfigReport {
    /// The options of the file, or its first problem.
    pub(super) fn into_flags(self) -> Result<RunFlags, ConfigError> {
        match self.problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(self.flags),
        }
    }
}

/// Parses the text of a file, and continues after each problem.
pub(super) fn examine(path: &Path, text: &str) -> ConfigReport {
    let line_of =
        |span: Range<usize>| 1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
    let (table, broken) = DeTable::parse_recoverable(text);
    let mut examined = ConfigReport::default();
    let mut problems: Vec<(usize, ConfigError)> = Vec::new();
    for error in &broken {
        let (path, line) = (path.to_owned(), line_of(error.span().unwrap_or(0..0)));
        // After one broken piece, the parser reports errors for the rest of its line.
        if problems.last().is_none_or(|(last, _)| *last != line) {
            let problem = error.message().replace('\n', ", ");
            problems.push((line, ConfigError::Syntax { path, line, problem }));
        }
    }
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (name, line) = (key.get_ref().as_ref(), line_of(key.span()));
        // The broken line is already reported.
        if problems
            .iter()
            .any(|(broken, error)| *broken == line && matches!(error, ConfigError::Syntax { .. }))
        {
            continue;
        }
        let Some(entry) = find(name) else {
            let (path, hint) = (path.to_owned(), hint(name));
            let key = name.escape_debug().to_string();
            problems.push((line, ConfigError::UnknownKey { path, line, key, hint }));
            continue;
        };
        let refused = |(span, problem): (Range<usize>, String)| {
            let (path, line, key) = (path.to_owned(), line_of(span), name.to_owned());
            (line, ConfigError::Value { path, line, key, problem })
        };
        let set = texts(entry, value)
            .and_then(|values| examined.flags.set(name, &values).map_err(|problem| (value.span(), problem)));
        match set {
            Ok(()) => examined.lines.push((entry.key, line)),
            Err(problem) => problems.push(refused(problem)),
        }
    }
    problems.sort_by_key(|(line, _)| *line);
    examined.problems = problems.into_iter().map(|(_, problem)| problem).collect();
    examined
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
fn hint(key: &str) -> String {
    let wanted = key.replace('-', "_").to_lowercase();
    let near = OPTIONS.iter().map(|entry| entry.key).find(|known| {
        *known == wanted || edits(known, &wanted) <= 2 || known.contains(&wanted) || wanted.contains(known)
    });
    match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let keys: Vec<_> = OPTIONS.iter().map(|entry| entry.key).collect();
            format!("the options are: {}", keys.join(", "))
        }
    }
}

/// Levenshtein distance of two short texts.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let above = row[column + 1];
            let replaced = diagonal + usize::from(letter != *other);
            row[column + 1] = replaced.min(above + 1).min(row[column] + 1);
            diagonal = above;
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, line: usize, expected: &[&str]) {
        let error = parse(Path::new("/etc/baton.toml"), text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("/etc/baton.toml:{line}: ")), "{text:?}: {error}");
        for part in expected {
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn refuses_broken_lines_with_line_key_and_what_is_allowed() {
        let number = "expected a whole number from 1 to 256";
        check("slots = \"four\"", 1, &["`slots`", number, "string"]);
        check("\n\nslots = 0", 3, &["`slots`", number]);
        check("slots = -1", 1, &["`slots`", number]);
        check("slots = 1.5", 1, &["`slots`", number, "float"]);
        check("slots = 0x10", 1, &["`slots`", number]);
        check("slots = 99999999999999999999", 1, &["`slots`", number]);
        check("queue = 1\nmdns = \"yes\"", 2, &["`mdns`", "expected true or false"]);
        check("listen = \"/ip4/0.0.0.0/tcp/1\"", 1, &["`listen`", "expected a list"]);
        let urls = "or a list of at most 8 such";
        check("publisher = []", 1, &["`publisher`", urls, "array"]);
        check("aggregator = [\"http://a\", 1]", 1, &["`aggregator`", urls, "integer"]);
        check("listen = [\n  \"/ip4/0.0.0.0/tcp/1\",\n  7,\n]", 3, &["`listen`", "integer"]);
        check("listen = [\"0.0.0.0:4001\"]", 1, &["`listen`", "0.0.0.0:4001", "/ip4/0.0.0.0/tcp/4001"]);
        check("publisher = \"localhost\"", 1, &["`publisher`", "http://host:port"]);
        check("publisher = \"http://user:secret@h\"", 1, &["`publisher`", "without user name"]);
        check("admin = \"0.0.0.0:9464\"", 1, &["`admin`", "loopback", "this machine only"]);
        check("engine = \"gpu\"", 1, &["`engine`", "\"native\"", "\"proxied\"", "\"echo\""]);
        check("log = \"loud\"", 1, &["`log`", "\"trace\""]);
        check("model = \"\"", 1, &["`model`", "models list"]);
        check("shards = 3", 1, &["`shards`", "from 4 to 2048"]);
    }

    #[test]
    fn refuses_unknown_keys_and_names_the_nearest() {
        check("slot = 2", 1, &["no option `slot`", "did you mean `slots`?"]);
        check("# a comment\ndata-dir = \"/x\"", 2, &["did you mean `data_dir`?"]);
        check("pause_at = \"sealed\"", 1, &["no option `pause_at`"]);
        check("colour = true", 1, &["the options are: data_dir, listen"]);
        check("[network]\nlisten = []", 1, &["no option `network`"]);
        check("slots.now = 2", 1, &["`slots`", "table"]);
    }

    #[test]
    fn refuses_what_is_not_toml_with_its_line() {
        check("slots = 2\nqueue = ", 2, &["not valid TOML"]);
        check("slots = 2\nslots = 3", 2, &["not valid TOML", "duplicate"]);
        check("listen = [\"a\"", 1, &["not valid TOML"]);
    }

    #[test]
    fn tells_everything_that_is_wrong_in_the_order_of_the_file() {
        let text = "slotts = 1\nqueue = \"many\"\nslots = 3\nmdns = \nshards = 3\nlog = [\"a\"]\n";
        let examined = examine(Path::new("c.toml"), text);
        let lines: Vec<_> = examined.problems.iter().map(ConfigError::line).collect();
        assert_eq!(lines, [1, 2, 4, 5, 6].map(Some), "{:?}", examined.problems);
        assert_eq!(examined.flags, RunFlags { slots: Some(3), ..RunFlags::default() });
        assert_eq!(examined.lines, [("slots", 3)]);
        let keys: Vec<_> = examined.problems.iter().map(ConfigError::key).collect();
        assert_eq!(keys, [Some("slotts"), Some("queue"), None, Some("shards"), Some("log")]);
    }

    #[test]
    fn no_secret_of_a_url_is_repeated() {
        let error = parse(Path::new("c"), "publisher = \"http://user:secret@h\"").unwrap_err();
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn a_missing_file_is_an_error_only_where_one_was_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none.toml");
        assert!(read(&path, false).unwrap().is_none());
        assert!(matches!(read(&path, true), Err(ConfigError::Read { .. })));
    }
}
