//! The relayer as a process of its own: a disk that fills up and has room again.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use baton_keys::account::AccountKey;
use reqwest::StatusCode;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use crate::fake::now_ms;

/// A write beyond a limit of files is an error to the process, and no signal that ends it.
const NO_SIGNAL_AT_THE_LIMIT: &str = "trap '' XFSZ; exec \"$0\" \"$@\"";
/// Generous for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Process {
    child: Child,
    url: String,
    client: reqwest::Client,
}

impl Process {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new("bash")
            .args(["-c", NO_SIGNAL_AT_THE_LIMIT, env!("CARGO_BIN_EXE_baton-relayer"), "--data-dir"])
            .arg(folder)
            .args(["run", "--json", "--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"])
            .args(["--embedder", "hashing", "--requests-per-minute", "100000"])
            .args(["--key-requests-per-minute", "100000"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        let url = ready["http"].as_str().unwrap().to_owned();
        Self { child, url, client: reqwest::Client::builder().no_proxy().build().unwrap() }
    }

    async fn post(&self, key: &AccountKey, path: &str, body: &Value) -> (StatusCode, String) {
        let body = body.to_string();
        let mut request = self.client.post(format!("{}{path}", self.url));
        let seconds = now_ms() / 1000;
        for (name, value) in key.request_headers(&key.account_id(), "POST", path, body.as_bytes(), seconds) {
            request = request.header(name, value);
        }
        let answer = request.body(body).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_whose_disk_was_full_says_so_and_works_again_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let relayer = Process::start(folder.path(), &["--mdns", "true"]);
    let account = AccountKey::generate();
    assert_eq!(relayer.get("/readyz").await.0, StatusCode::OK);
    let fact = |number: usize| {
        let text = format!("Locker {number} holds the sail {}.", "very ".repeat(500));
        json!({ "facts": [{ "text": text }] })
    };
    let mut acknowledged = 0;
    for _ in 0..3 {
        let (status, text) = relayer.post(&account, "/v1/memory/remember", &fact(acknowledged)).await;
        assert!(status.is_success(), "{text}");
        acknowledged += 1;
    }
    // From here on no file of the relayer grows.
    let database = std::fs::metadata(folder.path().join("memory/db")).unwrap().len();
    let limit = |bytes| {
        let limits = Rlimit { current: bytes, maximum: None };
        prlimit(Some(relayer.pid()), Resource::Fsize, limits).unwrap();
    };
    limit(Some(database));
    let refused = loop {
        let (status, text) = relayer.post(&account, "/v1/memory/remember", &fact(acknowledged)).await;
        if !status.is_success() {
            break (status, text);
        }
        acknowledged += 1;
    };
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.1);
    let begun = Instant::now();
    let ready = loop {
        let ready = relayer.get("/readyz").await;
        if ready.0 != StatusCode::OK || begun.elapsed() > PATIENCE {
            break ready;
        }
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

    // There is room again; nobody restarts anything.
    limit(None);
    let begun = Instant::now();
    while relayer.get("/readyz").await.0 != StatusCode::OK {
        assert!(begun.elapsed() < PATIENCE, "it does not recover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(relayer.get("/health").await.1["status"], "ok");
    let (status, text) = relayer.post(&account, "/v1/memory/remember", &fact(acknowledged)).await;
    assert!(status.is_success(), "{text}");
    let list = json!({ "everything": true, "limit": 200, "filters": { "kinds": ["fact"] } });
    let (_, listed) = relayer.post(&account, "/v1/memory/list", &list).await;
    for number in 0..=acknowledged {
        assert_eq!(
            listed.matches(&format!("Locker {number} holds")).count(),
            1,
            "{number} of {acknowledged}"
        );
    }
}
