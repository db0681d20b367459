//! The parts that the `doctor` of every program shares: the table of problems, the report of findings, and the
//! checks of stores, sockets, disks and clocks.
//!
//! A program's `doctor` lists its problems by [`problem_codes!`](crate::problem_codes), makes a [`Check`] for each
//! subject, and prints a [`Report`]. It changes nothing.

mod clock;
mod disk;
mod sockets;
mod stores;

use serde::Serialize;

pub use clock::{ClockCodes, ClockReading, check_clock};
pub use disk::{Disk, check_space, try_to_write};
pub use sockets::{Socket, SocketCodes, check_socket, is_open, socket_of};
pub use stores::{StoreCodes, check_stores};

use crate::terminal::Style;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The program works, but not as well or as safely as it could.
    Warning,
    /// A part does not work, or will not after the next start.
    Problem,
}

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One problem that a doctor can find. Its code never gets a new meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The code, such as `D101`.
    pub id: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// Its title, in one line.
    pub title: &'static str,
    /// The fix.
    pub fix: &'static str,
}

impl Code {
    /// A [`Severity::Warning`].
    #[must_use]
    pub const fn warning(id: &'static str, title: &'static str, fix: &'static str) -> Self {
        Self { id, severity: Severity::Warning, title, fix }
    }

    /// A [`Severity::Problem`].
    #[must_use]
    pub const fn problem(id: &'static str, title: &'static str, fix: &'static str) -> Self {
        Self { id, severity: Severity::Problem, title, fix }
    }
}

/// Defines a constant for each problem of a program, and for tests `ALL` of them.
#[macro_export]
macro_rules! problem_codes {
    ($($name:ident = $make:ident($id:literal, $title:literal, $fix:literal);)*) => {
        $(pub(super) const $name: $crate::doctor::Code = $crate::doctor::Code::$make($id, $title, $fix);)*
        /// All codes.
        #[cfg(test)]
        pub(super) const ALL: &[$crate::doctor::Code] = &[$($name),*];
    };
}

/// For tests: the differences between the codes and titles of a program and the tables of a page, and the codes that
/// do not name a cause and the next step, one a line. Severity and fix are in the doctor's own output alone.
#[must_use]
pub fn undocumented(codes: &[Code], page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, code) in codes.iter().enumerate() {
        if codes.iter().take(index).any(|other| other.id == code.id) {
            wrong.push(format!("{} twice", code.id));
        }
        let same = codes.iter().take(index).find(|other| other.title == code.title);
        wrong.extend(same.map(|other| format!("{} and {} have one title", other.id, code.id)));
        for text in [code.title, code.fix] {
            // One word for it in all programs: fix.
            let other_word = ["repair", "mend ", "remed"].into_iter().any(|word| text.contains(word));
            if text.is_empty() || text.ends_with('.') || other_word || code.fix == code.title {
                wrong.push(format!("{} needs a cause and a fix, each a plain clause: {text}", code.id));
            }
        }
        let row = format!("| {} | {} |", code.id, code.title);
        if !page.contains(&row) {
            wrong.push(format!("the page lacks this row:\n{row}"));
        }
    }
    let letter = codes.first().and_then(|code| code.id.chars().next());
    for row in page.lines() {
        let id = row.strip_prefix("| ").and_then(|row| row.split_once(' ')).map_or("", |(id, _)| id);
        let is_code = id.len() == 4 && id.chars().skip(1).all(|c| c.is_ascii_digit());
        if is_code && id.chars().next() == letter && codes.iter().all(|code| code.id != id) {
            wrong.push(format!("no code of the program: {id}"));
        }
    }
    wrong
}

/// One problem that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its stable code.
    pub code: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// Its title.
    pub title: &'static str,
    /// Place and details.
    pub detail: String,
    /// The fix.
    pub fix: String,
    /// Whether it was fixed just now.
    pub fixed: bool,
}

impl Finding {
    /// Whether it is a problem that is not fixed yet.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        self.severity == Severity::Problem && !self.fixed
    }
}

/// The check of one subject.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The subject.
    pub name: &'static str,
    /// `ok`, `warning`, `problem` or `skipped`.
    state: &'static str,
    /// Observations.
    pub seen: Vec<String>,
    /// The problems.
    pub findings: Vec<Finding>,
}

impl Check {
    /// A check that has found nothing yet.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, state: "ok", seen: Vec::new(), findings: Vec::new() }
    }

    /// A check that was skipped, for this reason.
    #[must_use]
    pub fn skipped(name: &'static str, why: impl Into<String>) -> Self {
        Self { state: "skipped", seen: vec![why.into()], ..Self::new(name) }
    }

    /// Adds an observation without a problem.
    pub fn saw(&mut self, text: impl Into<String>) {
        self.seen.push(text.into());
    }

    /// Adds a problem with its usual fix.
    pub fn found(&mut self, code: Code, detail: impl Into<String>) {
        self.found_with(code, detail, code.fix, false);
    }

    /// Adds a problem with a specific fix, and whether it is fixed already.
    pub fn found_with(&mut self, code: Code, detail: impl Into<String>, fix: impl Into<String>, fixed: bool) {
        let Code { id: code, severity, title, .. } = code;
        if !fixed && self.state != Severity::Problem.name() {
            self.state = severity.name();
        }
        self.findings.push(Finding { code, severity, title, detail: detail.into(), fix: fix.into(), fixed });
    }

    /// Takes over the observations and findings of another check.
    pub fn extend(&mut self, other: Self) {
        if self.state == "ok" || other.state == Severity::Problem.name() {
            self.state = other.state;
        }
        self.seen.extend(other.seen);
        self.findings.extend(other.findings);
    }

    /// The codes of the findings.
    #[must_use]
    pub fn codes(&self) -> Vec<&'static str> {
        self.findings.iter().map(|finding| finding.code).collect()
    }

    /// The lines for people.
    fn describe(&self, style: Style) -> Vec<String> {
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
                Severity::Problem => style.error(finding.code),
                Severity::Warning => style.bad(finding.code),
            };
            lines.push(format!("{:9} {code}     {}: {}", "", finding.title, finding.detail));
            let fix = if finding.fixed { "fixed" } else { "fix" };
            lines.push(format!("{:18} {fix}: {}", "", finding.fix));
        }
        lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// All checks of a program. As JSON, it is the output of `doctor --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    ok: bool,
    /// The number of problems that are not fixed; warnings are none.
    pub problems: usize,
    /// The checks, in the order in which they are shown.
    pub checks: Vec<Check>,
}

impl Report {
    /// A report of these checks.
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        let findings = checks.iter().flat_map(|check| &check.findings);
        let problems = findings.filter(|finding| finding.is_problem()).count();
        Self { ok: problems == 0, problems, checks }
    }

    /// The text for people.
    #[must_use]
    pub fn describe(&self, style: Style) -> String {
        let mut lines: Vec<_> = self.checks.iter().flat_map(|check| check.describe(style)).collect();
        lines.push(String::new());
        if self.checks.iter().all(|check| check.findings.is_empty()) {
            lines.push(style.good("Nothing is wrong."));
        } else if self.ok {
            lines.push("No problem.".to_owned());
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Code = Code::problem("K101", "the string is torn", "tie it again");
    const TWO: Code = Code::warning("K102", "there is no wind", "wait for it");

    #[test]
    fn a_check_is_as_bad_as_its_worst_finding() {
        let mut check = Check::new("kite");
        check.saw("red");
        check.found(ONE, "near the tail");
        check.found(TWO, "at noon");
        let report = Report::new(vec![check.clone()]);
        assert_eq!((report.ok, report.problems), (false, 1));
        let text = report.describe(Style::new(false));
        let expected = [
            "kite      problem  red",
            "          K101     the string is torn: near the tail",
            "                   fix: tie it again",
            "          K102     there is no wind: at noon",
            "                   fix: wait for it",
            "",
        ];
        assert_eq!(text.split('\n').collect::<Vec<_>>(), expected);
        assert!(report.describe(Style::new(true)).contains("\x1b[1;31mproblem"));
        let mut other = Check::new("kite");
        other.extend(check);
        assert_eq!((other.state, other.codes()), ("problem", vec!["K101", "K102"]));
    }

    #[test]
    fn a_fixed_problem_counts_no_more() {
        let mut check = Check::new("kite");
        check.found_with(ONE, "near the tail", "tied", true);
        assert_eq!(check.state, "ok");
        let report = Report::new(vec![check]);
        assert!(report.ok && report.describe(Style::new(false)).ends_with("fixed: tied\n\nNo problem."));
    }

    #[test]
    fn a_page_without_a_code_or_with_another_is_noticed() {
        let page = "| K101 | the string is torn |\n| K102 | there is no wind |\n";
        assert!(undocumented(&[ONE, TWO], page).is_empty());
        assert_eq!(undocumented(&[ONE], page), ["no code of the program: K102"]);
        let row = "the page lacks this row:\n| K101 | the string is torn |";
        assert_eq!(undocumented(&[ONE], "| M101 | the string is torn |"), [row]);
        let twice = ["K102 twice", "K102 and K102 have one title"];
        assert_eq!(undocumented(&[TWO, ONE, TWO], page), twice);
    }

    #[test]
    fn a_code_without_a_cause_or_a_next_step_is_noticed() {
        for (title, fix) in [
            ("", "tie it again"),
            ("the string is torn", ""),
            ("the string is torn.", "tie it again"),
            ("the string is torn", "the string is torn"),
            ("the string is torn", "repair the string"),
        ] {
            let page = format!("| K101 | {title} |");
            let wrong = undocumented(&[Code::problem("K101", title, fix)], &page);
            assert!(
                wrong.iter().any(|line| line.starts_with("K101 needs a cause")),
                "{title} {fix}: {wrong:?}"
            );
        }
    }
}
