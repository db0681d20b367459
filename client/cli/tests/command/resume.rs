//! A sealed turn that a client left behind: `baton chat --memory` resumes it at its next start.

use std::{
    path::Path,
    process::{Child, Stdio},
};

use baton_client::testkit::{
    fake::Act,
    relayer::{FakeRelayer, Trick},
};

use crate::command::{Fixture, code, err, out, program};

/// Begins a turn through the relayer, and kills the client while the node makes the answer.
async fn leave_pending_turn(fixture: &Fixture, home: &Path, relayer: &FakeRelayer, hung: u32) {
    let node = fixture.node.addrs().first().unwrap().to_string();
    let relayer = relayer.mesh.bootstrap_addrs().first().unwrap().to_string();
    fixture.node.script([Act::Hang]);
    let mut child: Child = program()
        .args(["chat", "--message", "where is my harbour", "--memory", "--relayer", &relayer])
        .args(["--node", &node, "--publisher", &fixture.url, "--shards", "10", "--home"])
        .arg(home)
        .env("HOME", fixture.folder.path())
        .current_dir(fixture.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    fixture.node.hung(hung).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_sealed_turn_is_finished_with_memory_that_is_recalled_anew() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["account", "new"]).await;
    let relayer = FakeRelayer::start(&fixture.node, Trick::None).await;
    leave_pending_turn(&fixture, &home, &relayer, 1).await;
    let address = relayer.mesh.bootstrap_addrs().first().unwrap().to_string();
    let next = ["chat", "last", "--memory", "--relayer", &address, "--message", "and the boat"];
    let answered = fixture.ok(&home, &next).await;
    let told = err(&answered);
    assert!(told.contains("Finishing an earlier message first"), "{told}");
    assert!(told.contains("The relayer searches memory for: harbour"), "{told}");
    assert_eq!(told.matches("2 memories added").count(), 2, "for both messages: {told}");
    assert!(!told.contains("without"), "{told}");
    assert_eq!(out(&answered), "where is my harbour (0)\nand the boat (1)\n");
    let words: Vec<String> = relayer.hints.lock().iter().map(|hint| hint.hint.clone()).collect();
    assert_eq!(words, ["harbour", "harbour", "boat"]);
    let turns = fixture.node.seen(|seen| seen.turns.clone());
    assert_eq!(turns[0].turn_id, turns[1].turn_id, "one turn, two attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_sealed_turn_is_finished_without_memory_where_there_is_none_and_says_so() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["account", "new"]).await;
    let relayer = FakeRelayer::start(&fixture.node, Trick::None).await;
    let address = relayer.mesh.bootstrap_addrs().first().unwrap().to_string();
    leave_pending_turn(&fixture, &home, &relayer, 1).await;
    relayer.mesh.shutdown().await;
    // At the prompt, which ends with its input.
    let prompt = ["chat", "last", "--memory", "--relayer", &address];
    let resumed = fixture.baton(&home, &prompt, "").await;
    let told = err(&resumed);
    assert!(told.contains("without memory"), "{told}");
    assert_eq!((code(&resumed), out(&resumed).as_str()), (0, "where is my harbour (0)\n"), "{told}");
    let auth = fixture.node.seen(|seen| seen.turns.last().unwrap().clone());
    assert_eq!(auth.memory_from, None);
    let shown = fixture.json(&home, &["session", "show", "last"]).await;
    assert!(shown.to_string().contains("where is my harbour (0)"), "{shown}");
}
