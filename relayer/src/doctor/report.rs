//! The findings of `doctor`, for people and for programs, in the form of `baton-node doctor`.

use std::io;

use baton_command::terminal::wants_colour;
use serde::Serialize;

use super::codes::{Code, Severity};

/// One problem.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// Its stable code.
    pub(super) code: &'static str,
    /// `problem` or `warning`.
    severity: &'static str,
    /// Its title.
    title: &'static str,
    /// Place and details.
    detail: String,
    /// The fix.
    fix: String,
}

impl Finding {
    pub(super) fn is_problem(&self) -> bool {
        self.severity == "problem"
    }
}

/// The check of one subject.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    /// `ok`, `warning`, `problem` or `skipped`.
    state: &'static str,
    /// Observations.
    seen: Vec<String>,
    findings: Vec<Finding>,
}

impl Check {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, state: "ok", seen: Vec::new(), findings: Vec::new() }
    }

    /// A check that was skipped, for this reason.
    pub(super) fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self { state: "skipped", seen: vec![why.into()], ..Self::new(name) }
    }

    /// Adds an observation without a problem.
    pub(super) fn saw(&mut self, text: impl Into<String>) {
        self.seen.push(text.into());
    }

    /// Adds a problem with its usual fix.
    pub(super) fn found(&mut self, code: Code, detail: impl Into<String>) {
        self.found_with(code, detail, code.fix);
    }

    /// Adds a problem with a specific fix.
    pub(super) fn found_with(&mut self, code: Code, detail: impl Into<String>, fix: impl Into<String>) {
        let severity = code.severity.name();
        if self.state != Severity::Problem.name() {
            self.state = severity;
        }
        let (code, title) = (code.id, code.title);
        self.findings.push(Finding { code, severity, title, detail: detail.into(), fix: fix.into() });
    }

    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The lines for people.
    pub(super) fn describe(&self, style: Style) -> Vec<String> {
        let state = style.paint(self.state, &format!("{:8}", self.state));
        let mut seen = self.seen.iter();
        let mut lines = vec![format!("{:9} {state} {}", self.name, seen.next().map_or("", String::as_str))];
        lines.extend(seen.map(|text| format!("{:18} {text}", "")));
        for finding in &self.findings {
            let code = style.paint(finding.severity, finding.code);
            lines.push(format!("{:9} {code}     {}: {}", "", finding.title, finding.detail));
            lines.push(format!("{:18} fix: {}", "", finding.fix));
        }
        lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// Colours for people, none for programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style(bool);

impl Style {
    pub(super) fn stdout() -> Self {
        Self(wants_colour(&io::stdout()))
    }

    /// Colours a text by a state.
    pub(super) fn paint(self, state: &str, text: &str) -> String {
        let colour = match state {
            "ok" => "32",
            "warning" => "33",
            "problem" => "1;31",
            _ => return text.to_owned(),
        };
        if self.0 { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The codes of a check's findings, for tests.
#[cfg(test)]
pub(super) fn codes_of(check: &Check) -> Vec<&'static str> {
    check.findings().iter().map(|finding| finding.code).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::codes, *};

    #[test]
    fn a_check_is_as_bad_as_its_worst_finding() {
        let mut check = Check::new("keys");
        check.saw("one");
        check.found(codes::KEYS_OTHER, "keys/");
        check.found(codes::DATA_DIR_OPEN, "data/");
        assert_eq!(check.state, "problem");
        let lines = check.describe(Style(false));
        assert_eq!(lines[0], "keys      problem  one");
        assert!(lines[1].contains(codes::KEYS_OTHER.id) && lines[2].contains("fix: "), "{lines:?}");
        assert_eq!(lines.len(), 5);
        assert!(check.describe(Style(true))[0].contains("\x1b[1;31m"));
    }
}
