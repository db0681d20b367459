//! The relayer as a separate process: a session's key in its memory, and a disk that fills up and has space
//! again.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::SessionRoot;
use baton_keys::account::AccountKey;
use baton_proto::{SignedObject, head::HeadRecord, receipt::EngineKind};
use baton_walrus_client::{HttpStore, ShardCount};
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore, HeadIdentity};
use reqwest::StatusCode;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use baton_client::testkit::{fake::FakeNode, store::Stores};

use crate::program::Program;

/// Generous for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

impl Program {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// The names of the process's threads, with the stack position of each as it waits.
    fn threads(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let read = |task: &Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        tasks
            .map(|task| task.unwrap().path())
            .map(|task| format!("{} {}", read(&task, "comm").trim(), read(&task, "syscall")))
            .collect()
    }

    /// Counts occurrences of some bytes in the process's writable memory; also their locations, for a failed
    /// test.
    fn copies(&self, needles: &[Vec<u8>]) -> (Vec<usize>, String) {
        let process = format!("/proc/{}", self.child.id());
        let memory = File::open(format!("{process}/mem")).unwrap();
        let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
        let (mut found, mut places) = (vec![0; needles.len()], String::new());
        for line in maps.lines().filter(|line| line.split(' ').nth(1).unwrap().starts_with("rw")) {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let (from, to) = (address(from), address(to));
            let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
            let mut read = 0;
            // Unmapped memory, or memory without pages, holds nothing.
            while let Ok(length) = memory.read_at(&mut bytes[read..], from + read as u64)
                && length > 0
            {
                read += length;
            }
            for (needle, count) in needles.iter().zip(&mut found) {
                for at in occurrences(&bytes[..read], needle) {
                    *count += 1;
                    // The relayer's own key belongs there.
                    if hex::encode(needle) != self.key {
                        let place = format!("{} bytes at {:x} of {line}\n", needle.len(), from + at as u64);
                        places.push_str(&place);
                    }
                }
            }
        }
        (found, places)
    }
}

fn occurrences(bytes: &[u8], needle: &[u8]) -> Vec<usize> {
    let first = needle[0];
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
    starts.filter(|(at, _)| bytes[*at..].starts_with(needle)).map(|(at, _)| at).collect()
}

fn validate(record: &[u8]) -> Result<HeadIdentity, String> {
    let head = SignedObject::<HeadRecord>::verify_encoded(record).map_err(|error| error.to_string())?;
    Ok(HeadIdentity { key: head.index_key(), sequence: head.sequence, expires_ms: head.expires_ms })
}

/// A store over HTTP, in a folder.
async fn store_at(folder: &Path) -> String {
    let config = EmbeddedConfig { shards: ShardCount::TESTBED, ..EmbeddedConfig::new(folder.join("store")) };
    let store = EmbeddedStore::open(config, validate).unwrap();
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { store.serve(listener, std::future::pending()).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_a_sessions_key_is_nowhere_in_the_process_a_second_after_its_last_use() {
    const ROUNDS: usize = 4;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the relayer closes its memory to everybody but root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = store_at(folder.path()).await;
    let client =
        Arc::new(HttpStore::builder(&store, &store, ShardCount::TESTBED).heads(&store).build().unwrap());
    let node = FakeNode::start(Stores { blobs: client.clone(), heads: client }, EngineKind::Native).await;
    let bootstrap = node.addrs()[0].to_string();
    let stores = format!("--publisher={store} --aggregator={store} --heads={store} --bootstrap={bootstrap}");
    let arguments: Vec<&str> = stores.split(' ').chain(["--shards=10", "--epochs=2"]).collect();
    let relayer = Program::start(&folder.path().join("relayer"), &arguments);
    let account = AccountKey::generate();
    for round in 0..ROUNDS {
        let root = SessionRoot::generate();
        let (raw, hex, words) =
            (root.expose().to_vec(), hex::encode(root.expose()), root.to_words().to_string());
        for (turn, key) in [&hex, &words, &hex].into_iter().enumerate() {
            let body = json!({
                "messages": [{ "role": "user", "content": format!("My boat number {turn} is red.") }],
                "session_key": key, "stream": turn == 2,
            });
            let (status, text) = relayer.post(&account, "/v1/chat", &body).await.unwrap();
            assert!(status.is_success() && text.contains(&format!("({turn})")), "{turn}: {status} {text}");
        }
        // A refused request has its key wiped too.
        let foreign = json!({
            "messages": [{ "role": "user", "content": "Hello!" }], "session_key": hex,
            "session_id": "00".repeat(32),
        });
        assert_eq!(relayer.post(&account, "/v1/chat", &foreign).await.unwrap().0, StatusCode::BAD_REQUEST);
        // The promised second.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let needles = [raw, hex.into_bytes(), words.into_bytes(), hex::decode(&relayer.key).unwrap()];
        let (found, places) = relayer.copies(&needles);
        assert!(found[3] > 0, "the search finds what is there");
        let threads = relayer.threads();
        assert_eq!(found[..3], [0, 0, 0], "round {round}: raw, hex, words\n{places}{threads}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_whose_disk_was_full_says_so_and_works_again_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let relayer = Program::start(folder.path(), &[]);
    let account = AccountKey::generate();
    assert_eq!(relayer.get("/readyz").await.0, StatusCode::OK);
    let fact = |number: usize| {
        let text = format!("Locker {number} holds the sail {}.", "very ".repeat(500));
        json!({ "text": text })
    };
    let mut acknowledged = 0;
    for _ in 0..3 {
        let (status, text) = relayer.post(&account, "/api/remember", &fact(acknowledged)).await.unwrap();
        assert!(status.is_success(), "{text}");
        acknowledged += 1;
    }
    // From here on, no file of the relayer can grow beyond the database's log.
    let database = std::fs::metadata(folder.path().join("memory.sqlite-wal")).unwrap().len();
    let limit = |bytes| {
        let limits = Rlimit { current: bytes, maximum: None };
        prlimit(Some(relayer.pid()), Resource::Fsize, limits).unwrap();
    };
    limit(Some(database));
    let refused = loop {
        let (status, text) = relayer.post(&account, "/api/remember", &fact(acknowledged)).await.unwrap();
        if !status.is_success() {
            break (status, text);
        }
        acknowledged += 1;
    };
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.1);
    // The answer from before the refusal is given for a moment more.
    let begun = Instant::now();
    let ready = loop {
        let ready = relayer.get("/readyz").await;
        if ready.0 != StatusCode::OK || begun.elapsed() > PATIENCE {
            break ready;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ready.0, StatusCode::SERVICE_UNAVAILABLE);
    let why = ready.1["message"].as_str().unwrap();
    assert!(why.contains("full") && why.contains("Make space"), "{why}");
    assert!(!why.contains(folder.path().to_str().unwrap()), "no path of this machine: {why}");
    let health = relayer.get("/health").await;
    assert_eq!(
        (health.0, &health.1["status"], &health.1["write_ready"]),
        (StatusCode::OK, &json!("degraded"), &json!(false))
    );
    assert!(health.1["memory"].as_str().unwrap().contains("full"));

    // There is space again; nothing is restarted.
    limit(None);
    let begun = Instant::now();
    while relayer.get("/readyz").await.0 != StatusCode::OK {
        assert!(begun.elapsed() < PATIENCE, "it does not recover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(relayer.get("/health").await.1["status"], "ok");
    let (status, text) = relayer.post(&account, "/api/remember", &fact(acknowledged)).await.unwrap();
    assert!(status.is_success(), "{text}");
    let list = json!({ "everything": true, "limit": 200, "filters": { "kinds": ["fact"] } });
    let (_, listed) = relayer.post(&account, "/api/list", &list).await.unwrap();
    for number in 0..=acknowledged {
        assert_eq!(
            listed.matches(&format!("Locker {number} holds")).count(),
            1,
            "{number} of {acknowledged}"
        );
    }
}
