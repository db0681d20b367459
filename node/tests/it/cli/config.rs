//! `baton-node config` on the command line.

use std::fs;

use serde_json::{Value, json};

use crate::process::{baton_node, failure, output, text};

#[test]
fn the_effective_configuration_says_where_each_value_comes_from() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("node.toml");
    fs::write(&file, "# mine\nslots = 3\ncache_mb = 4\npublisher = \"https://p/?token=abc\"\n").unwrap();
    let words = ["config", "--config", file.to_str().unwrap(), "--slots", "7", "--json"];
    let mut command = baton_node(home.path(), &words);
    command.env("BATON_NODE_CACHE_MB", "5").env("BATON_NODE_JSON", "true");
    let shown: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let options = &shown["options"];
    assert_eq!(options["slots"], json!({ "value": 7, "origin": "flag" }));
    assert_eq!(options["cache_mb"], json!({ "value": 5, "origin": "env" }));
    assert_eq!(options["max_epochs"], json!({ "value": 53, "origin": "default" }));
    assert_eq!(options["json"], json!({ "value": true, "origin": "env" }), "the flag asks for JSON here");
    let publisher = json!({ "value": ["https://p/?REDACTED"], "origin": "file", "file": file, "line": 4 });
    assert_eq!(options["publisher"], publisher);

    let words = ["config", "--config", file.to_str().unwrap()];
    let said = text(&output(home.path(), &words).stdout);
    let line = said.lines().find(|line| line.starts_with("slots")).unwrap();
    assert!(
        line.starts_with("slots = 3 ") && line.ends_with(&format!("# file {}:2", file.display())),
        "{line}"
    );
    assert!(!said.contains("abc") && said.contains("#threads ="), "{said}");
    // The output is an equivalent configuration.
    let again = home.path().join("again.toml");
    fs::write(&again, &said).unwrap();
    let words = ["config", "--config", again.to_str().unwrap()];
    let second = text(&output(home.path(), &words).stdout);
    let values = |text: &str| -> Vec<String> {
        text.lines().skip(1).map(|line| line.split("  ").next().unwrap().replace(" # default", "")).collect()
    };
    for (first, second) in values(&said).iter().zip(values(&second)) {
        assert_eq!(first.split(" # ").next(), second.split(" # ").next());
    }
}

#[test]
fn every_problem_of_a_file_is_reported_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("node.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "slotts = 1\n\ncache_mb = \"many\"\nmax_conections = 4\nengine = \"proxied\"\n")
        .unwrap();
    let words = ["config", "--config", path];
    let (code, said) = failure(&mut baton_node(home.path(), &words));
    assert!(code == 2 && said.contains("problems: 4"), "{said}");
    let said = text(&output(home.path(), &words).stdout);
    for part in [
        ":1: there is no option `slotts`; did you mean `slots`?",
        ":3: `cache_mb` cannot be used",
        ":4: there is no option `max_conections`; did you mean `max_connections`?",
        "needs both proxied_url",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let named = output(home.path(), &[&words[..], &["--json"]].concat());
    let named: Value = serde_json::from_slice(&named.stdout).unwrap();
    let lines: Vec<_> =
        named["problems"].as_array().unwrap().iter().map(|problem| &problem["line"]).collect();
    assert_eq!(lines, [&json!(1), &json!(3), &json!(4), &Value::Null]);
    let (code, said) = failure(&mut baton_node(home.path(), &["config", "--config", "/nowhere.toml"]));
    assert!(code == 2 && said.contains("/nowhere.toml"), "{said}");
    output(home.path(), &["init"]);
    assert!(output(home.path(), &["config"]).status.success());
}
