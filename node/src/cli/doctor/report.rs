//! The findings of `doctor`, for people and for programs.

use serde::Serialize;

use super::codes::{Code, Severity};
use crate::cli::style::Style;

/// One problem.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// Its stable code.
    code: &'static str,
    /// `problem` or `warning`.
    severity: &'static str,
    /// Its title.
    title: &'static str,
    /// Place and details.
    detail: String,
    /// The fix.
    fix: String,
    /// Whether it was fixed just now.
    fixed: bool,
}

impl Finding {
    pub(super) fn is_problem(&self) -> bool {
        self.severity == "problem" && !self.fixed
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
        self.found_with(code, detail, code.fix.to_owned(), false);
    }

    /// Adds a problem with a specific fix, and whether it is fixed already.
    pub(super) fn found_with(&mut self, code: Code, detail: impl Into<String>, fix: String, fixed: bool) {
        let severity = match code.severity {
            Severity::Problem => "problem",
            Severity::Warning => "warning",
        };
        if !fixed && self.state != "problem" {
            self.state = severity;
        }
        let (code, title) = (code.id, code.title);
        self.findings.push(Finding { code, severity, title, detail: detail.into(), fix, fixed });
    }

    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The lines for people.
    pub(super) fn describe(&self, style: Style) -> Vec<String> {
        let state = format!("{:8}", self.state);
        let state = match self.state {
            "ok" => style.good(&state),
            "problem" => style.error(&state),
            "warning" => style.bad(&state),
            _ => state,
        };
        let mut seen = self.seen.iter();
        let mut lines = vec![format!("{:9} {state} {}", self.name, seen.next().map_or("", String::as_str))];
        lines.extend(seen.map(|text| format!("{:18} {text}", "")));
        for finding in &self.findings {
            let code = match finding.severity {
                _ if finding.fixed => style.good(finding.code),
                "problem" => style.error(finding.code),
                _ => style.bad(finding.code),
            };
            lines.push(format!("{:9} {code}     {}: {}", "", finding.title, finding.detail));
            let fix = if finding.fixed { "mended" } else { "fix" };
            lines.push(format!("{:18} {fix}: {}", "", finding.fix));
        }
        lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
    }
}
