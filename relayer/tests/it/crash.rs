//! kill -9 while a relayer writes: no acknowledged write is lost, and none exists twice.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use baton_keys::account::AccountKey;
use reqwest::Client;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};

/// A running relayer, and a person who writes to it.
struct RelayerProcess {
    child: Child,
    url: String,
    client: Client,
}

impl RelayerProcess {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_baton-relayer"))
            .arg("--data-dir")
            .arg(folder)
            .args(["run", "--json", "--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"])
            .args(["--mdns", "false", "--embedder", "hashing", "--requests-per-minute", "200000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready: {line:?}"));
        let url = ready["http"].as_str().unwrap().trim_end_matches('/').to_owned();
        Self { child, url, client: Client::builder().no_proxy().build().unwrap() }
    }

    /// `None` if the relayer died before its answer.
    async fn post(&self, key: &AccountKey, path: &str, body: &Value) -> Option<Value> {
        let body = body.to_string().into_bytes();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut request = self.client.post(format!("{}{path}", self.url));
        for (name, value) in key.request_headers(&key.account_id(), "POST", path, &body, seconds) {
            request = request.header(name, value);
        }
        let answer = request.body(body).send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).ok()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RelayerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All items of the person by text, with their counts.
async fn kept(relayer: &RelayerProcess, key: &AccountKey) -> BTreeMap<String, usize> {
    let mut texts: BTreeMap<String, usize> = BTreeMap::new();
    let mut after = Value::Null;
    loop {
        let list = json!({ "everything": true, "limit": 200, "after": after });
        let page = relayer.post(key, "/api/list", &list).await.unwrap();
        for item in page["items"].as_array().unwrap() {
            if item["kind"] != "entity" {
                *texts.entry(item["text"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        after = page["next"].clone();
        if after.is_null() {
            return texts;
        }
    }
}

fn turn(number: u64) -> Value {
    json!({
        "session": "storm", "turn": number, "user": format!("Remember that locker {number} holds sail {number}."),
        "assistant": format!("Noted, locker {number}."),
    })
}

/// Writes turns in sequence until the relayer dies; returns the first unacknowledged one.
async fn write_until_death(relayer: &RelayerProcess, key: &AccountKey, mut next: u64) -> u64 {
    while relayer.post(key, "/api/turns", &turn(next)).await.is_some() {
        next += 1;
    }
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_relayer_that_is_killed_loses_and_doubles_nothing() {
    let rounds = if std::env::var("BATON_FULL").is_ok() { 20 } else { 4 };
    let folder = tempfile::tempdir().unwrap();
    let key = AccountKey::generate();
    let mut next = 0;
    for round in 0..rounds {
        let relayer = RelayerProcess::start(folder.path());
        // The unacknowledged turn is sent again, as a client does: it exists once.
        assert!(relayer.post(&key, "/api/turns", &turn(next)).await.is_some());
        next += 1;
        // Times during the write, the flush, and the later jobs.
        let fuse = tokio::time::sleep(Duration::from_millis(40 + round * 37));
        let victim = relayer.child.id();
        let killer = async {
            fuse.await;
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(i32::try_from(victim).unwrap()).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        };
        let (acknowledged, ()) = tokio::join!(write_until_death(&relayer, &key, next), killer);
        next = acknowledged;
        relayer.kill();
    }
    let relayer = RelayerProcess::start(folder.path());
    assert!(relayer.post(&key, "/api/turns", &turn(next)).await.is_some());
    // Jobs resume at once, even those that a kill interrupted, and not only when their lease of two minutes
    // expires. Each turn gives one fact.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(100);
    let texts = loop {
        let stats = relayer.post(&key, "/api/stats", &json!({ "namespace": "default" })).await.unwrap();
        let texts = kept(&relayer, &key).await;
        let facts = texts.keys().filter(|text| text.starts_with("locker ")).count();
        if facts as u64 > next || tokio::time::Instant::now() > deadline {
            break texts;
        }
        assert!(!stats.is_null());
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for number in 0..=next {
        for text in [turn(number)["user"].as_str().unwrap(), turn(number)["assistant"].as_str().unwrap()] {
            assert_eq!(texts.get(text), Some(&1), "{text} of {next}");
        }
    }
    assert!(texts.values().all(|count| *count == 1), "something is there twice");
    let facts = texts.keys().filter(|text| text.starts_with("locker ")).count();
    assert_eq!(facts as u64, next + 1, "{texts:?}");
}
