//! Writes the known-answer vectors to a folder (`proto/vectors` by default):
//! `cargo run -p baton-proto --example make_vectors`.
//! `proto/tests/it/vectors.rs` compares the committed files with a fresh run byte for byte.

use std::path::PathBuf;

#[path = "vectors/generate.rs"]
mod generate;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/support/harness.rs"]
mod harness;
#[expect(dead_code, reason = "the tests use the rest")]
#[path = "../tests/it/support/source.rs"]
mod source;

fn main() -> std::io::Result<()> {
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors"));
    let folder = std::env::args_os().nth(1).map_or_else(default, PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    for (name, text) in generate::files() {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}
