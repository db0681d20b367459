//! Prometheus's text format 0.0.4, which every scraper, `promtool` and people read. Pure.

use std::fmt::Display;

/// Its media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Kind of a family.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A count; its name ends with `_total`.
    Counter,
    /// A level.
    Gauge,
    /// Durations by bucket; its name ends with `_seconds`.
    Histogram,
}

/// The metrics as text. All names begin with `baton_`; labels and their values are words of this program.
#[derive(Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a family of samples.
    pub(super) fn family(&mut self, kind: Kind, name: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.0.push_str(&format!("# HELP baton_{name} {help}.\n# TYPE baton_{name} {kind}\n"));
    }

    /// A sample of the present family.
    pub(super) fn sample<'a>(
        &mut self,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: impl Display,
    ) {
        let labels: Vec<_> =
            labels.into_iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.0.push_str(&format!("baton_{name}{labels} {value}\n"));
    }

    /// A family of one sample.
    pub(super) fn single(&mut self, kind: Kind, name: &str, help: &str, value: u64) {
        self.family(kind, name, help);
        self.sample(name, [], value);
    }

    /// A family with a sample for each value of a label.
    pub(super) fn by(&mut self, kind: Kind, (name, help): (&str, &str), label: &str, counts: &[(&str, u64)]) {
        self.family(kind, name, help);
        for (value, count) in counts {
            self.sample(name, [(label, *value)], count);
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}
