//! `baton-node keys`: its output, its secrecy, and its effect on a node.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{
    cli::harness::turn::Client,
    process::{Node, baton_node, failure, json, output, text},
};
use baton_proto::ErrorCode;

fn folder(home: &Path) -> PathBuf {
    home.join(".local/share/baton-node")
}

#[test]
fn a_backup_under_a_passphrase_brings_the_node_back_elsewhere() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = json(home.path(), &["init", "--json"])["node"].clone();
    let (copy, pass) = (home.path().join("copy.key"), home.path().join("pass"));
    let (copy, pass) = (copy.to_str().unwrap(), pass.to_str().unwrap());
    fs::write(pass, "correct horse\n").unwrap();

    let backup = ["keys", "backup", "--out", copy, "--passphrase-file", pass];
    let said = output(home.path(), &backup);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(fs::metadata(copy).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = fs::read_to_string(folder(home.path()).join("node.key")).unwrap();
    let secret = secret.split_whitespace().last().unwrap().to_owned();
    assert!(!fs::read_to_string(copy).unwrap().contains(&secret), "it is sealed");
    assert_eq!(json(home.path(), &["keys", "show", "--json"])["node"], node);
    let (code, said) = failure(&mut baton_node(home.path(), &backup));
    assert!(code == 4 && said.contains("exists"), "{said}");

    let restore = ["keys", "restore", copy, "--passphrase-file", pass, "--json"];
    let (code, said) = failure(&mut baton_node(home.path(), &restore));
    assert!(code == 4 && said.contains("there is a node key already"), "{said}");
    fs::write(pass, "wrong\n").unwrap();
    let (code, said) = failure(&mut baton_node(other.path(), &restore));
    assert!(code == 4 && said.contains("wrong passphrase"), "{said}");
    assert!(!folder(other.path()).join("node.key").exists());
    fs::write(pass, "correct horse\n").unwrap();
    assert_eq!(json(other.path(), &restore)["node"], node);
    let mut back = Node::start(other.path(), &[]);
    assert_eq!(back.ready["node"], node);
    back.stop();
    for words in [&["keys", "show"][..], &["keys", "show", "--json"]] {
        let said = output(home.path(), words);
        assert!(!text(&said.stdout).contains(&secret) && !text(&said.stdout).is_empty());
    }
}

#[test]
fn words_bring_the_node_back_elsewhere_and_go_into_no_pipe() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = json(home.path(), &["init", "--json"])["node"].clone();
    for words in [&["keys", "backup", "--words"][..], &["keys", "backup", "--words", "--json"]] {
        let (code, said) = failure(&mut baton_node(home.path(), words));
        assert!(code == 2 && said.contains("--out"), "{said}");
    }
    let paper = home.path().join("words");
    let paper = paper.to_str().unwrap();
    let backup = ["keys", "backup", "--words", "--out", paper];
    let said = output(home.path(), &backup);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(fs::metadata(paper).unwrap().permissions().mode() & 0o777, 0o600);
    let words = fs::read_to_string(paper).unwrap();
    assert_eq!(words.split_whitespace().count(), 24);
    assert!(!text(&said.stdout).contains(words.trim()));
    let (code, said) = failure(&mut baton_node(home.path(), &backup));
    assert!(code == 4, "never over a file: {said}");

    let restore = ["keys", "restore", "--words-file", paper, "--json"];
    let (code, said) = failure(&mut baton_node(home.path(), &restore));
    assert!(code == 4 && said.contains("there is a node key already"), "{said}");
    let first = words.split_whitespace().next().unwrap();
    fs::write(paper, words.replacen(first, "batonic", 1)).unwrap();
    let (code, said) = failure(&mut baton_node(other.path(), &restore));
    assert!(code == 4 && said.contains("word 1 is not on the list"), "{said}");
    assert!(!folder(other.path()).join("node.key").exists());
    fs::write(paper, &words).unwrap();
    assert_eq!(json(other.path(), &restore)["node"], node);
}

#[test]
fn nobody_is_asked_where_nobody_can_answer() {
    let home = tempfile::tempdir().unwrap();
    json(home.path(), &["init", "--json"]);
    let key = fs::read(folder(home.path()).join("node.key")).unwrap();
    let out = home.path().join("copy");
    for (words, part) in [
        (&["keys", "backup", "--out", out.to_str().unwrap()][..], "--passphrase-file"),
        (&["keys", "rotate", "--identity"], "repeat it with --yes"),
        (&["keys", "backup"], "--out"),
        (&["keys", "rotate", "--yes"], "--identity"),
    ] {
        let (code, said) = failure(&mut baton_node(home.path(), words));
        assert!(code == 2 && said.contains(part), "{words:?}: {said}");
    }
    assert!(!out.exists());
    assert_eq!(fs::read(folder(home.path()).join("node.key")).unwrap(), key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_exchange_keys_replace_the_old_ones_of_a_stopped_node() {
    let home = tempfile::tempdir().unwrap();
    // No store answers, so the shutdown need not wait.
    let mut node = Node::start(home.path(), &["--drain-seconds", "1"]);
    let client = Client::of(&node.ready).await;
    let before = client.record().await;
    for words in [&["keys", "rotate"][..], &["keys", "rotate", "--identity", "--yes"]] {
        let (code, said) = failure(&mut baton_node(home.path(), words));
        assert!(code == 4 && said.contains("uses") && said.contains("stop it"), "{said}");
    }
    node.stop();
    let rotated = json(home.path(), &["keys", "rotate", "--json"]);
    let mut node = Node::start(home.path(), &["--drain-seconds", "1"]);
    let client = Client::of(&node.ready).await;
    let after = client.record().await;
    assert!(after.sequence > before.sequence);
    assert_eq!(after.keys[0].key.id().to_string(), rotated["exchange_key"].as_str().unwrap());
    for old in &before.keys {
        assert!(!after.keys.iter().any(|new| new.key == old.key));
    }
    // A client that still seals to the old key must fetch the new record.
    let late = client.ask_with(&before, "sealed to a key that is gone").await.finish().await;
    assert_eq!(late.code(), Some(ErrorCode::KxExpired));
    assert!(client.ask("sealed to the new one").await.finish().await.committed().is_some());
    node.stop();
    let shown = json(home.path(), &["keys", "show", "--json"]);
    assert_eq!(shown["exchange_keys"][0]["key"], rotated["exchange_key"]);
    let states: Vec<_> = shown["exchange_keys"].as_array().unwrap().iter().map(|key| &key["state"]).collect();
    assert_eq!(states, ["current", "next"]);
}

#[test]
fn a_new_identity_retires_the_old_key() {
    let home = tempfile::tempdir().unwrap();
    let old = json(home.path(), &["init", "--json"])["node"].clone();
    let rotated = json(home.path(), &["keys", "rotate", "--identity", "--yes", "--json"]);
    assert_eq!(rotated["old"], old);
    assert_ne!(rotated["node"], old);
    let shown = json(home.path(), &["keys", "show", "--json"]);
    assert_eq!(shown["node"], rotated["node"]);
    assert_eq!(shown["retired"][0], rotated["set_aside"]);
    let mut node = Node::start(home.path(), &[]);
    assert_eq!(node.ready["node"], rotated["node"]);
    node.stop();
    // The old key is an ordinary key file: another directory can become that node.
    let other = tempfile::tempdir().unwrap();
    let back = json(other.path(), &["keys", "restore", rotated["set_aside"].as_str().unwrap(), "--json"]);
    assert_eq!(back["node"], old);
}
