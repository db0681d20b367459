//! The operator files in `scripts/deploy`: everything they name must exist.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command, time::Duration};

use baton_node::{Metrics, RunFlags, Snapshot};
use clap::{Args as _, Command as Line};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/deploy")
}

fn file(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

/// Every sample name in `/metrics`.
fn samples() -> BTreeSet<String> {
    let text = Metrics::new(1, 1).render(&Snapshot::default(), Duration::ZERO);
    let mut names = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let endings: &[&str] = match kind {
            "counter" | "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => panic!("a new kind of metric: {other}"),
        };
        names.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    names
}

/// The metrics named in a text.
fn named(text: &str) -> BTreeSet<String> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !letters(letter));
    words.filter(|word| word.starts_with("baton_")).map(str::to_owned).collect()
}

/// Every `expr` and `query` of a dashboard.
fn expressions(value: &Value, found: &mut String) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" || name == "query" => {
                        found.push_str(text);
                        found.push('\n');
                    }
                    _ => expressions(value, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_and_the_alerts_name_only_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&file("grafana-dashboard.json")).unwrap();
    let mut text = String::new();
    expressions(&dashboard, &mut text);
    let samples = samples();
    let shown = named(&text);
    assert!(shown.len() > 20, "{shown:?}");
    assert_eq!(shown.difference(&samples).collect::<Vec<_>>(), [""; 0], "of {samples:?}");
    let alerts = file("alerts.yml");
    let rules: String = alerts.lines().filter(|line| line.trim_start().starts_with("expr:")).collect();
    let watched = named(&rules);
    assert!(watched.len() >= 5, "{watched:?}");
    assert_eq!(watched.difference(&samples).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_dashboard_shows_every_metric() {
    let dashboard = file("grafana-dashboard.json");
    let text = Metrics::new(1, 1).render(&Snapshot::default(), Duration::ZERO);
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(dashboard.contains(name), "{name} has no panel");
    }
}

#[test]
fn services_and_containers_set_only_options_that_there_are() {
    let command = RunFlags::augment_args(Line::new("run"));
    let known: BTreeSet<_> =
        command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).map(str::to_owned).collect();
    for name in ["baton-node.service", "Dockerfile", "compose.yml"] {
        let text = file(name);
        let set = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
        let set: BTreeSet<_> =
            set.filter(|word| word.starts_with("BATON_NODE_")).map(str::to_owned).collect();
        assert!(set.len() >= 3, "{name}: {set:?}");
        assert_eq!(set.difference(&known).collect::<Vec<_>>(), [""; 0], "{name}");
    }
}

/// Runs systemd's own check, if systemd is there. The unit's program need not be installed.
#[test]
fn systemd_has_nothing_to_say_against_the_unit() {
    let home = tempfile::tempdir().unwrap();
    let unit = home.path().join("baton-node.service");
    let here = env!("CARGO_BIN_EXE_baton-node");
    fs::write(&unit, file("baton-node.service").replace("/usr/local/bin/baton-node", here)).unwrap();
    let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("baton-node"), "{said}");
}
