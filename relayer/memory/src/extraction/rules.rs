//! The rules, compiled from the [tables](super::words): statements that are worth keeping, requests about memory
//! itself, and texts that need care. Order matters: the first match of a clause names its slot.

use std::sync::LazyLock;

use super::{EntityKind, text::Pattern, words::rows};

/// A statement that is worth keeping.
#[derive(Debug)]
pub(super) struct Rule {
    /// Its form.
    pub pattern: Pattern,
    /// Key and value of its slot, with `$1`, `$2` for the captures.
    pub slot: Option<(&'static str, &'static str)>,
    /// Its worth.
    pub salience: f32,
    /// Label of the edge from the user to the entity in its first capture.
    pub edge: Option<&'static str>,
}

impl Rule {
    /// Reads a row: worth and pattern, after `=>` the slot, after `->` the edge's label.
    ///
    /// # Panics
    /// For a row without a worth: the tables are constants of this crate, and a test reads them all.
    fn new(row: &'static str) -> Self {
        let (salience, rest) = row.split_once(' ').unwrap_or((row, ""));
        let (pattern, subject) = rest.split_once(" => ").unwrap_or((rest, ""));
        let (slot, edge) = subject.split_once(" -> ").unwrap_or((subject, ""));
        Self {
            pattern: Pattern::new(pattern),
            slot: slot.split_once('='),
            salience: salience.parse().unwrap_or_else(|_| unreachable!("{row} has no worth")),
            edge: Some(edge).filter(|edge| !edge.is_empty()),
        }
    }
}

fn rules(section: &str) -> Vec<Rule> {
    rows(section).iter().map(|row| Rule::new(row)).collect()
}

fn patterns(section: &str) -> Vec<Pattern> {
    rows(section).iter().map(|row| Pattern::new(row)).collect()
}

pub(super) static STRONG_RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| rules("strong"));
pub(super) static WEAK_RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| rules("weak"));
pub(super) static EXCLUSIONS: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("excluded"));
pub(super) static MOMENT_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("moments"));
pub(super) static NOT_TELLING_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("not_telling"));
pub(super) static OFF_RECORD_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("off_record"));
pub(super) static EXPLICIT_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("explicit"));
pub(super) static RECAP_RULES: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("recap"));
pub(super) static INTIMATE: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("intimate"));
pub(super) static SECRET: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("secret"));
pub(super) static INJECTION: LazyLock<Vec<Pattern>> = LazyLock::new(|| patterns("injection"));

/// Patterns of names, with the kind of what they name.
pub(super) static ENTITY_RULES: LazyLock<Vec<(EntityKind, Pattern)>> = LazyLock::new(|| {
    let of_kind = rows("entities").iter().filter_map(|row| row.split_once(' '));
    of_kind.filter_map(|(kind, pattern)| Some((EntityKind::named(kind)?, Pattern::new(pattern)))).collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_table_is_read() {
        assert!(STRONG_RULES.len() > 100 && WEAK_RULES.len() > 50);
        let all = [
            &EXCLUSIONS,
            &MOMENT_RULES,
            &NOT_TELLING_RULES,
            &OFF_RECORD_RULES,
            &EXPLICIT_RULES,
            &RECAP_RULES,
            &INTIMATE,
            &SECRET,
            &INJECTION,
        ];
        assert!(all.into_iter().all(|patterns| !patterns.is_empty()));
        assert_eq!(ENTITY_RULES.len(), rows("entities").len(), "each has a kind");
    }
}
