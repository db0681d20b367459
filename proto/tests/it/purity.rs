//! `keys` and `proto` stay pure: no async runtime, network or database anywhere in their dependency trees.

use std::process::Command;

/// Crates forbidden to a pure crate; a name that ends in `-` stands for every crate with that prefix.
const FORBIDDEN: &[&str] = &[
    "tokio",
    "tokio-",
    "reqwest",
    "libp2p",
    "libp2p-",
    "sled",
    "hyper",
    "hyper-",
    "mio",
    "async-std",
    "async-io",
    "smol",
    "socket2",
    "rustls",
    "quinn",
    "quinn-",
    "axum",
    "futures-timer",
];

fn dependencies(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args("tree --locked --offline -e normal --prefix none -f {lib} -p".split(' '))
        .arg(package)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("crate names are UTF-8");
    text.lines().map(|line| line.trim().trim_end_matches(" (*)").replace('_', "-")).collect()
}

fn forbidden(name: &str) -> bool {
    FORBIDDEN.iter().any(
        |refused| {
            if refused.ends_with('-') { name.starts_with(refused) } else { name == *refused }
        },
    )
}

#[test]
fn keys_and_proto_depend_on_no_runtime_network_or_database() {
    for package in ["baton-keys", "baton-proto"] {
        let tree = dependencies(package);
        assert!(tree.iter().any(|name| name == "blake3"), "{package}: {tree:?}");
        let found: Vec<_> = tree.iter().filter(|name| forbidden(name)).collect();
        assert!(found.is_empty(), "{package} depends on {found:?}");
    }
}
