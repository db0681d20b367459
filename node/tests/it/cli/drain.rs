//! `baton-node drain` against a node that serves turns.

use std::{fs, path::Path};

use baton_proto::ErrorCode;
use serde_json::Value;

use crate::{
    cli::harness::turn::Client,
    process::{Node, baton_node, failure, output, text},
};

fn json(home: &Path, words: &[&str]) -> Value {
    let output = output(home, words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_finishes_its_turns_sends_new_ones_away_and_takes_them_again() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &["--echo-delay-ms", "200", "--drain-seconds", "1"]);
    let admin = node.admin().to_owned();
    let client = Client::of(&node.ready).await;
    let mut turn = client.ask("one two three four five six").await;
    let begun = turn.read_until(|reply| !reply.text().is_empty()).await;

    let status = json(home.path(), &["drain", "--admin", &admin, "--json"]);
    assert_eq!(status["drain"]["turns"], 1, "{status}");
    let away = client.ask("too late").await.finish().await;
    assert_eq!((away.code(), away.nonce), (Some(ErrorCode::Busy), None));
    assert!(away.refused.is_some_and(|(_, retry_after_ms)| retry_after_ms >= 60_000), "{away:?}");
    let shown = output(home.path(), &["status", "--admin", &admin]);
    let said = text(&shown.stdout);
    assert!(
        !shown.status.success() && said.contains("draining") && said.contains("1 turns are still"),
        "{said}"
    );
    let (code, said) =
        failure(&mut baton_node(home.path(), &["drain", "--admin", &admin, "--wait", "--timeout", "0"]));
    assert!(code == 1 && said.contains("still being finished"), "{said}");

    // Reads during the wait: a stalled reader would hold the turn.
    let (rest, waited) = tokio::join!(turn.finish(), {
        let mut command = baton_node(home.path(), &["drain", "--admin", &admin, "--wait"]);
        async { tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap() }
    });
    assert_eq!(begun.text() + &rest.text(), "echo: one two three four five six");
    assert!(rest.committed().is_some());
    assert!(waited.status.success() && text(&waited.stdout).starts_with("drained: no turn is left"));
    // Status requests are still answered.
    assert!(client.status(&turn).await.is_ok());

    let status = json(home.path(), &["drain", "--admin", &admin, "--cancel", "--json"]);
    assert_eq!((&status["drain"], &status["turns"]["committed"]), (&Value::Null, &1.into()));
    assert!(client.ask("welcome").await.finish().await.committed().is_some());
    let (_, log) = node.stop();
    assert!(log.contains("draining: new turns are refused") && log.contains("no longer draining"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_nodes_own_user_changes_something_and_no_page_does() {
    let home = tempfile::tempdir().unwrap();
    let node = Node::start(home.path(), &[]);
    let token_file = home.path().join(".local/share/baton-node/admin.token");
    let token = fs::read_to_string(&token_file).unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/control/drain", node.admin());
    for (token, origin, expected) in [
        ("", "", 401),
        ("0".repeat(64).as_str(), "", 401),
        (token.trim(), "https://evil.example", 403),
        (token.trim(), "", 200),
    ] {
        let mut request = client.post(&url).bearer_auth(token);
        if !origin.is_empty() {
            request = request.header("origin", origin);
        }
        assert_eq!(request.send().await.unwrap().status(), expected, "{origin}");
    }
    let other = tempfile::tempdir().unwrap();
    let (code, said) = failure(&mut baton_node(other.path(), &["drain", "--admin", node.admin()]));
    assert!(code == 4 && said.contains("admin.token") && said.contains("--data-dir"), "{said}");
    fs::write(&token_file, format!("{}\n", "1".repeat(64))).unwrap();
    let (code, said) = failure(&mut baton_node(home.path(), &["drain", "--admin", node.admin()]));
    assert!(code == 1 && said.contains("the token does not fit"), "{said}");
}
