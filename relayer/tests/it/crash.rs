//! kill -9 while a relayer writes: no acknowledged write is lost, and none exists twice.

use std::{collections::BTreeMap, path::Path, time::Duration};

use baton_keys::account::AccountKey;
use serde_json::{Value, json};

use crate::program::Program;

fn start(folder: &Path) -> Program {
    Program::start(folder, &[])
}

/// The answer to a request that succeeds; `None` if the relayer died before it.
async fn post(relayer: &Program, key: &AccountKey, path: &str, body: &Value) -> Option<Value> {
    let (status, text) = relayer.post(key, path, body).await?;
    assert!(status.is_success(), "{path}: {status} {text}");
    serde_json::from_str(&text).ok()
}

/// All items of the person by text, with their counts.
async fn kept(relayer: &Program, key: &AccountKey) -> BTreeMap<String, usize> {
    let mut texts: BTreeMap<String, usize> = BTreeMap::new();
    let mut after = Value::Null;
    loop {
        let list = json!({ "everything": true, "limit": 200, "after": after });
        let page = post(relayer, key, "/api/list", &list).await.unwrap();
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
async fn write_until_death(relayer: &Program, key: &AccountKey, mut next: u64) -> u64 {
    while post(relayer, key, "/api/turns", &turn(next)).await.is_some() {
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
        let relayer = start(folder.path());
        // The unacknowledged turn is sent again, as a client does: it exists once.
        assert!(post(&relayer, &key, "/api/turns", &turn(next)).await.is_some());
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
        drop(relayer);
    }
    let relayer = start(folder.path());
    assert!(post(&relayer, &key, "/api/turns", &turn(next)).await.is_some());
    // Jobs resume at once, even those that a kill interrupted, and not only when their lease of two minutes
    // expires. Each turn gives one fact.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(100);
    let texts = loop {
        let stats = post(&relayer, &key, "/api/stats", &json!({ "namespace": "default" })).await.unwrap();
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
