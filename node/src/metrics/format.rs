//! The two text formats of the metrics, and the choice between them by a request's `Accept` header. Pure.
//!
//! The admin port calls this. Prometheus asks for OpenMetrics. `promtool check metrics`, older scrapers and
//! people read the text format 0.0.4, so it answers a request without a preference.

use std::fmt::Write as _;

/// A text format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

impl MetricsFormat {
    /// The format for a request with these values of `Accept`. A range that cannot be read counts for nothing.
    #[must_use]
    pub(crate) fn negotiate<'a>(accept: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut open_metrics, mut text) = (0.0_f32, 0.0_f32);
        for range in accept.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut version) = (1.0_f32, "");
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                let value = value.trim().trim_matches('"');
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => weight = value.parse().unwrap_or(0.0),
                    "version" => version = value,
                    _ => {}
                }
            }
            match (media.as_str(), version) {
                ("application/openmetrics-text", "" | "0.0.1" | "1.0.0") => {
                    open_metrics = open_metrics.max(weight);
                }
                ("text/plain", "" | "0.0.4") | ("text/*" | "*/*", _) => text = text.max(weight),
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// Its media type.
    #[must_use]
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Metrics in OpenMetrics text, in this format.
    #[must_use]
    pub(crate) fn write(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => prometheus_text(&open_metrics),
        }
    }
}

/// OpenMetrics names a family without the suffix of its samples; 0.0.4 names it as its samples. 0.0.4 has no
/// units, no end mark and no type `info`.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            // The type, on the next line, decides on the name.
            help = described.split_once(' ').map(|(_, about)| about);
        } else if let Some((family, kind)) =
            line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some(about) = help.take() {
                let _ = writeln!(text, "# HELP {family}{suffix} {about}");
            }
            let _ = writeln!(text, "# TYPE {family}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, time::Duration};

    use super::{
        super::{Metrics, Snapshot},
        *,
    };

    #[test]
    fn the_accept_header_chooses_and_the_text_format_is_the_default() {
        use MetricsFormat::{OpenMetrics, Text};
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases: &[(&[&str], MetricsFormat)] = &[
            (&[], Text),
            (&["*/*"], Text),
            (&[""], Text),
            (&["text/html"], Text),
            (&["text/plain; version=0.0.4"], Text),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8"], OpenMetrics),
            (&[prometheus], OpenMetrics),
            (&["text/plain;q=0.1", "application/openmetrics-text;q=0.2"], OpenMetrics),
            (&["application/openmetrics-text;q=0.2, text/plain;q=0.9"], Text),
            (&["application/openmetrics-text;q=0"], Text),
            (&["application/openmetrics-text;q=x"], Text),
            (&["application/openmetrics-text;q=NaN"], Text),
            (&["application/openmetrics-text;version=9.0.0"], Text),
            (&[";;,=,;q=,,"], Text),
        ];
        for (accept, format) in cases {
            assert_eq!(MetricsFormat::negotiate(accept.iter().copied()), *format, "{accept:?}");
        }
    }

    #[test]
    fn the_text_format_has_the_same_samples_under_types_that_it_knows() {
        let open_metrics = Metrics::new(2, 16).render(&Snapshot::default(), Duration::from_secs(5));
        let text = MetricsFormat::Text.write(open_metrics.clone());
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&open_metrics), samples(&text));
        let mut types = HashMap::new();
        let mut helps = 0;
        for line in text.lines().filter(|line| line.starts_with('#')) {
            let mut words = line.split(' ').skip(1);
            let (mark, family, kind) = (words.next(), words.next().unwrap(), words.next().unwrap());
            match mark.unwrap() {
                "HELP" => helps += 1,
                "TYPE" => {
                    assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                    assert!(types.insert(family, kind).is_none(), "{line}");
                }
                _ => panic!("not of the text format: {line}"),
            }
        }
        assert_eq!(helps, types.len());
        for sample in samples(&text) {
            let name = sample.split(['{', ' ']).next().unwrap();
            let histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .any(|family| types.get(family) == Some(&"histogram"));
            let plain = types.get(name).is_some_and(|kind| *kind != "histogram");
            assert!(histogram || plain, "{sample}");
            assert_eq!(types.get(name) == Some(&"counter"), name.ends_with("_total"), "{sample}");
        }
        assert_eq!(types.get("baton_build_info"), Some(&"gauge"));
    }

    #[test]
    fn help_follows_its_name_and_marks_of_openmetrics_go() {
        let open_metrics = "# HELP a_b A thing.\n# TYPE a_b counter\n# UNIT a_b b\na_b_total{x=\"# y\"} 1\n\
            # TYPE u unknown\nu 2\n# EOF\n";
        let text = "# HELP a_b_total A thing.\n# TYPE a_b_total counter\na_b_total{x=\"# y\"} 1\n\
            # TYPE u untyped\nu 2\n";
        assert_eq!(prometheus_text(open_metrics), text);
        assert_eq!(MetricsFormat::OpenMetrics.write(open_metrics.to_owned()), open_metrics);
    }
}
