//! The text format of the metrics: Prometheus's 0.0.4, which every scraper, `promtool` and people read. Pure.

use std::fmt::Write as _;

/// Its media type.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes OpenMetrics text, which the library makes, in this format. OpenMetrics names a family without the suffix of
/// its samples; 0.0.4 names it as its samples. 0.0.4 has no units, no end mark and no type `info`.
pub(super) fn prometheus_text(open_metrics: &str) -> String {
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
    fn all_samples_are_under_types_that_the_format_knows() {
        let text = Metrics::new(2, 16).render(&Snapshot::default(), Duration::from_secs(5));
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
        for sample in text.lines().filter(|line| !line.starts_with('#')) {
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
    }
}
