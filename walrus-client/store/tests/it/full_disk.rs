//! A store whose disk is full: it serves its content, reports that it stores nothing, and recovers by itself.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use reqwest::{Client, StatusCode};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::{
    common::{head, validate},
    process::StoreProcess,
};

/// Generous for a loaded machine: the store checks again once a second.
const SOON: Duration = Duration::from_secs(60);

fn start(folder: &Path, first: &str) -> StoreProcess {
    StoreProcess::start(folder, 10, first)
}

/// Limits the size of a process's files from now on.
fn limit_files(process: &StoreProcess, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(process.child.id()).unwrap());
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

struct Bench {
    client: Client,
    url: String,
}

impl Bench {
    async fn put(&self, bytes: Vec<u8>) -> Result<String, StatusCode> {
        let answer =
            self.client.put(format!("{}/v1/blobs?epochs=3", self.url)).body(bytes).send().await.unwrap();
        if answer.status() != 200 {
            return Err(answer.status());
        }
        let answer: serde_json::Value = answer.json().await.unwrap();
        Ok(answer["newlyCreated"]["blobObject"]["blobId"].as_str().unwrap().to_owned())
    }

    async fn put_head(&self, sequence: u64) -> StatusCode {
        let record = head(1, sequence, u64::MAX, "");
        self.client.put(format!("{}/v1/baton/heads", self.url)).body(record).send().await.unwrap().status()
    }

    async fn get(&self, id: &str) -> Vec<u8> {
        let answer = self.client.get(format!("{}/v1/blobs/{id}", self.url)).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap().into()
    }

    async fn status(&self) -> (u16, String) {
        let answer = self.client.get(format!("{}/status", self.url)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn wait_until_it_stores(&self) {
        let begin = Instant::now();
        while self.status().await != (200, "OK".to_owned()) {
            assert!(begin.elapsed() < SOON, "{:?}", self.status().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Goes twice from full to free, by two functions for these states.
async fn assert_recovers(folder: &Path, bench: &Bench, fill: impl Fn(), free: impl Fn()) {
    let before = bench.put(b"before".to_vec()).await.unwrap();
    assert_eq!(bench.put_head(1).await, 200);
    assert_eq!(bench.status().await, (200, "OK".to_owned()));
    for round in 2..4 {
        fill();
        for attempt in 0..3 {
            assert_eq!(bench.put(vec![attempt; 300_000]).await, Err(StatusCode::INTERNAL_SERVER_ERROR));
        }
        let (status, text) = bench.status().await;
        assert_eq!(status, 503, "{text}");
        assert!(text.contains("stores nothing") && text.contains("the disk has no room"), "{text}");
        assert_eq!(bench.get(&before).await, b"before");
        free();
        bench.wait_until_it_stores().await;
        let after = bench.put(vec![round; 300_000]).await.unwrap();
        assert_eq!(bench.get(&after).await, vec![round; 300_000]);
        assert_eq!(bench.put_head(u64::from(round)).await, 200);
    }
    let parts = std::fs::read_dir(folder.join("files")).unwrap().count();
    assert_eq!(parts, 3, "nothing is left of what failed");
}

#[tokio::test]
async fn a_store_without_room_serves_reads_says_so_and_goes_on_by_itself() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let process = start(&path, "");
    let bench = Bench { client: Client::new(), url: process.url.clone().unwrap() };
    let (fill, free) = (|| limit_files(&process, Some(0)), || limit_files(&process, None));
    assert_recovers(&path, &bench, fill, free).await;
    // The index too: it takes no head now, and the next one once there is room.
    fill();
    assert_eq!(bench.put_head(9).await, 500);
    assert_eq!(bench.status().await.0, 503);
    free();
    bench.wait_until_it_stores().await;
    assert_eq!(bench.put_head(8).await, 200, "the refused one was not stored");
    drop(process);
    let config = EmbeddedConfig { shards: ShardCount::TESTBED, ..EmbeddedConfig::new(&path) };
    let store = EmbeddedStore::open(config, validate).unwrap();
    assert_eq!(store.damages(), []);
    assert_eq!(store.usage().blobs, 3);
}

#[tokio::test]
async fn a_first_start_on_a_full_disk_says_what_to_do() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let process = start(&path, "ulimit -f 0; ");
    let error = process.url.clone().unwrap_err();
    assert!(error.contains("has no room for the store"), "{error}");
    assert!(error.contains("free some space there, then start the store again"), "{error}");
    drop(process);
    let process = start(&path, "");
    let bench = Bench { client: Client::new(), url: process.url.clone().unwrap() };
    bench.put(b"after".to_vec()).await.unwrap();
    drop(process);
    // With content, it starts, serves and reports the failure.
    let process = start(&path, "ulimit -f 0; ");
    let bench = Bench { client: Client::new(), url: process.url.clone().unwrap() };
    assert_eq!(bench.status().await.0, 503);
    let id = baton_walrus_client::blob_id(b"after", ShardCount::TESTBED).unwrap().to_string();
    assert_eq!(bench.get(&id).await, b"after");
}

/// A small file system of its own, if this user may mount one.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"]).arg(folder.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_file_system_is_survived_and_reported() {
    let Some(disk) = SmallDisk::mount() else {
        println!("this user may not mount a small file system: only the limit of file sizes is tried");
        return;
    };
    let path = disk.0.path().join("store");
    let process = start(&path, "");
    let bench = Bench { client: Client::new(), url: process.url.clone().unwrap() };
    let filler = disk.0.path().join("filler");
    let fill = || {
        use std::io::Write as _;
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    };
    let free = || std::fs::remove_file(&filler).unwrap();
    assert_recovers(&path, &bench, fill, free).await;
    drop(process);
    fill();
    let again = start(&path, "");
    let bench = Bench { client: Client::new(), url: again.url.clone().unwrap() };
    assert_eq!(bench.status().await.0, 503);
    drop(again);
    std::fs::remove_dir_all(&path).unwrap();
    fill();
    let error = start(&path, "").url.clone().unwrap_err();
    assert!(error.contains("free some space there"), "{error}");
}
