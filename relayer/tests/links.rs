//! What the relayer links, and what it must not.

use std::process::Command;

#[test]
fn the_relayer_links_no_code_of_language_models() {
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
    assert!(names.contains(&"baton-embed") && names.contains(&"baton-memory"), "{names:?}");
    for forbidden in ["baton-node", "candle-transformers", "minijinja"] {
        assert!(!names.contains(&forbidden), "the relayer links {forbidden}");
    }
}
