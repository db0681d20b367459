//! The relayer's permitted and forbidden dependencies.

use std::process::Command;

#[test]
fn the_relayer_links_neither_language_models_nor_a_view_or_questions_at_a_terminal() {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--package",
            "baton-relayer",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"baton-models") && names.contains(&"baton-memory"), "{names:?}");
    let models = ["baton-node", "candle-transformers", "minijinja"];
    let terminal = ["crossterm", "ratatui", "rpassword", "rustyline"];
    for forbidden in models.into_iter().chain(terminal) {
        assert!(!names.contains(&forbidden), "the relayer links {forbidden}");
    }
}

/// The modules below the memory service. Only the setup code may name them, the doctor, which looks at each layer on
/// its own, and the upkeep, which counts owners and bytes.
const BELOW: [&str; 4] = ["vault::", "storage::", "keyring::", "search::Index"];

#[test]
fn c12_handlers_use_the_memory_service_and_nothing_below_it() {
    let mut looked_at = 0;
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let below = BELOW.iter().find(|name| text.contains(**name));
            let is_doctor =
                path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("doctor"));
            let may = ["setup.rs", "upkeep.rs"].iter().any(|end| path.ends_with(end));
            assert!(below.is_none() || may || is_doctor, "{} names {below:?}", path.display());
            looked_at += 1;
        }
    }
    assert!(looked_at > 20);
}
