//! A store in a process of its own: this test program, run again with this module's serving test.

use std::{
    io::{BufRead as _, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};

use crate::common::validate;

/// The variable for the serving test's folder.
const FOLDER: &str = "BATON_TEST_STORE_FOLDER";
/// The variable for its shard count.
const SHARDS: &str = "BATON_TEST_STORE_SHARDS";
/// The word before its URL on its output.
const READY: &str = "ready ";
const FAILED: &str = "failed ";

#[tokio::test]
#[ignore = "the process that other tests start"]
async fn serve() {
    let folder = std::env::var(FOLDER).expect("another test starts this one");
    let shards = std::env::var(SHARDS).unwrap().parse::<u16>().unwrap();
    let config = EmbeddedConfig {
        shards: ShardCount::new(shards).unwrap(),
        max_put_bytes: 256 * 1024 * 1024,
        ..EmbeddedConfig::new(folder)
    };
    let store = match EmbeddedStore::open(config, validate) {
        Ok(store) => store,
        Err(error) => return println!("\n{FAILED}{error}"),
    };
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    println!("\n{READY}http://{}", listener.local_addr().unwrap());
    store.serve(listener, std::future::pending()).await.unwrap();
}

/// A store in its own process, which gets an error and not a signal at the limit on file size. It is killed
/// on drop.
pub(crate) struct StoreProcess {
    pub child: Child,
    /// Its URL, or the error of its start.
    pub url: Result<String, String>,
    /// Kept open: the test's harness writes a line after a minute, and ends if nobody could read it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl StoreProcess {
    /// Starts it from a shell that first runs a command.
    pub(crate) fn start(folder: &Path, shards: u16, first: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("trap '' XFSZ; {first}exec \"$0\" --exact process::serve --ignored --nocapture"))
            .arg(program)
            .env(FOLDER, folder)
            .env(SHARDS, shards.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            let line = line.unwrap();
            let failed = line.strip_prefix(FAILED).map(|error| Err(error.to_owned()));
            failed.or_else(|| line.strip_prefix(READY).map(|url| Ok(url.to_owned())))
        });
        Self { child, url: url.expect("the store says how it starts"), _output: lines }
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
