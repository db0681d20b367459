//! `baton-testnet store` and `store fsck` on damaged folders and full disks: exit codes, lines, JSON.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use baton_proto::store::{BlobStore as _, PutOptions};
use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_baton-testnet");

fn open(folder: &Path) -> EmbeddedStore {
    let config = EmbeddedConfig { shards: ShardCount::TESTBED, ..EmbeddedConfig::new(folder) };
    EmbeddedStore::open(config, |_| Err("none".to_owned())).unwrap()
}

async fn filled() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let store = open(&path);
    for number in 0..10_u8 {
        store.put(vec![number; 500], PutOptions::default()).await.unwrap();
    }
    (folder, path)
}

fn fsck(folder: &Path, more: &[&str]) -> Output {
    Command::new(PROGRAM).args(["store", "fsck", "--data-dir"]).arg(folder).args(more).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn fsck_names_what_is_damaged_and_fixes_it() {
    let (_folder, path) = filled().await;
    let sound = fsck(&path, &[]);
    assert!(sound.status.success(), "{sound:?}");
    assert!(text(&sound.stdout).contains("10 blobs of 5000 bytes, 0 heads, 0 damages"), "{sound:?}");
    let index = path.join("index/a.sqlite");
    let mut bytes = std::fs::read(&index).unwrap();
    // The number of pages in the header.
    bytes[31] ^= 1;
    std::fs::write(&index, &bytes).unwrap();

    let found = fsck(&path, &[]);
    assert_eq!(found.status.code(), Some(1));
    assert!(text(&found.stdout).contains("index/a.sqlite ("), "{found:?}");
    assert!(text(&found.stderr).contains("run it again with --fix"), "{found:?}");
    let fixed = fsck(&path, &["--fix", "--json"]);
    assert!(fixed.status.success(), "{fixed:?}");
    let report: Value = serde_json::from_slice(&fixed.stdout).unwrap();
    assert_eq!((&report["fixed"], &report["lost"], &report["blobs"]), (&true.into(), &0.into(), &10.into()));
    assert_eq!(report["damages"][0]["kind"], "index-header");
    assert!(fsck(&path, &[]).status.success());

    let missing = fsck(&path.join("elsewhere"), &[]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("there is no store in"), "{missing:?}");
}

/// Starts the store, stops it once it is ready, and returns its log.
async fn start(path: &Path) -> String {
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(["store", "--json", "--listen", "localhost:0", "--shards", "10", "--data-dir"]).arg(path);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.next_line().await.unwrap();
    assert!(ready.is_some_and(|line| line.contains("ready")), "{path:?}");
    child.kill().await.unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    log
}

#[tokio::test]
async fn a_store_whose_index_is_garbage_starts_with_a_word_and_loses_no_blob() {
    let (_folder, path) = filled().await;
    for name in ["index/a.sqlite", "index/b.sqlite"] {
        std::fs::write(path.join(name), b"garbage").unwrap();
    }
    let log = start(&path).await;
    assert!(
        log.contains("no copy of the index can be read; it is made again from the blobs' files"),
        "{log}"
    );
    assert!(!log.contains("backtrace"), "{log}");
    assert_eq!(open(&path).usage().blobs, 10);
}

#[tokio::test]
async fn a_first_start_on_a_full_disk_ends_with_cause_and_next_step() {
    let folder = TempDir::new().unwrap();
    let full = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 0; exec \"$0\" store --listen 127.0.0.1:0 --data-dir \"$1\"",
            PROGRAM,
        ])
        .arg(folder.path().join("store"))
        .output()
        .unwrap();
    assert_eq!(full.status.code(), Some(1));
    let errors = text(&full.stderr);
    let last = errors.lines().last().unwrap();
    assert!(last.contains("has no room") && last.contains("then start the store again"), "{errors}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_standard_output_is_an_error_and_a_closed_one_ends_quietly() {
    let (_folder, path) = filled().await;
    let path = path.display().to_string();
    let fsck = ["store", "fsck", "--data-dir", &path];
    for words in [&["--help"][..], &["man"], &["completions", "bash"], &fsck] {
        let call = |output: Stdio| Command::new(PROGRAM).args(words).stdout(output).output().unwrap();
        let full = call(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
        let said = text(&full.stderr);
        assert!(
            full.status.code() == Some(1) && said.contains("No space left on device"),
            "{words:?}: {said}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = call(writer.into());
        assert!(closed.status.success() && closed.stderr.is_empty(), "{words:?}: {closed:?}");
    }
}
