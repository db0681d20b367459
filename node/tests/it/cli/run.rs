//! `baton-node run` as a process: its events, its answers, its log, its shutdown.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

use baton_proto::ErrorCode;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cli::harness::{store::Store, turn::Client},
    process::{ECHO, Node, baton_node, failure, json, output, text},
    service::network::store::SHARDS,
};

fn status(home: &Path, node: &Node) -> (bool, Value) {
    let output = output(home, &["status", "--json", "--admin", node.admin()]);
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn embeddings_are_offered_where_the_operator_says_so() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &["--embedding-model", "hashing-384-v1"]);
    let offer = &node.ready["models"][1];
    assert_eq!(
        (&offer["name"], &offer["engine"]),
        (&"hashing-384-v1".into(), &"embedding".into()),
        "{}",
        node.ready
    );
    let people = output(home.path(), &["status", "--admin", node.admin()]);
    assert!(text(&people.stdout).contains("hashing-384-v1 (embedding"), "{}", text(&people.stdout));
    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("it is for tests"), "{log}");
    let words = ["config", "--json"];
    let shown =
        baton_node(home.path(), &words).env("BATON_NODE_EMBEDDING_MODEL", "all-minilm-l6-v2").output();
    assert!(text(&shown.unwrap().stdout).contains("all-minilm-l6-v2"));
    let listed = text(&output(home.path(), &["models", "list"]).stdout);
    assert!(listed.contains("all-minilm-l6-v2") && listed.contains("embeddings: "), "{listed}");
}

/// The arguments of a node whose store the test provides.
fn without_publisher<'a>() -> impl Iterator<Item = &'a str> {
    let place = ECHO.iter().position(|word| *word == "--publisher").unwrap();
    ECHO.into_iter().take(place).chain(ECHO.into_iter().skip(place + 2))
}

/// The port of an address such as `/ip4/127.0.0.1/tcp/4001/p2p/...`.
fn port(address: &str) -> u16 {
    address.split('/').nth(4).unwrap().parse().unwrap()
}

#[test]
fn tells_programs_when_it_is_ready_and_ends_with_code_0_at_sigterm() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &[]);
    let ready = node.ready.clone();
    let listen = ready["listen"][0].as_str().unwrap();
    assert!(listen.ends_with(&format!("/p2p/{}", ready["peer_id"].as_str().unwrap())), "{listen}");
    TcpStream::connect(("127.0.0.1", port(listen))).unwrap();
    assert_eq!(ready["node"].as_str().unwrap().len(), 64);
    assert_eq!(ready["models"][0]["name"], "echo");
    assert_eq!(ready["models"][0]["engine"], "echo");
    assert_eq!(ready["models"][0]["context_tokens"], 4096);
    assert_eq!(ready["models"][0]["model"].as_str().unwrap().len(), 64);

    let (success, status) = status(home.path(), &node);
    assert!(!success, "the store does not answer, so the node is not ready");
    assert_eq!((&status["healthy"], &status["ready"]), (&true.into(), &false.into()));
    // The first request to the store may be unfinished.
    let reason = status["not_ready"][0].as_str().unwrap();
    assert!(
        ["the store does not answer", "waiting for the store's first answer"].contains(&reason),
        "{status}"
    );
    assert_eq!((&status["node"], &status["listen"]), (&ready["node"], &ready["listen"]));
    let people = output(home.path(), &["status", "--admin", node.admin()]);
    let said = text(&people.stdout);
    assert!(
        said.contains("not ready") && said.contains("0 of 8 slots busy") && !said.contains('\x1b'),
        "{said}"
    );

    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("first start") && log.contains("ready") && log.contains("stopped"), "{log}");
    assert!(!log.contains('\x1b'));
}

#[test]
fn a_restart_is_the_same_node_and_two_never_share_a_directory() {
    let home = tempfile::tempdir().unwrap();
    let mut first = Node::start(home.path(), &[]);
    let (code, said) = failure(&mut baton_node(home.path(), &ECHO));
    assert!(code == 4 && said.contains("another baton-node (process "), "{code}: {said}");
    first.stop();
    let mut second = Node::start(home.path(), &[]);
    assert_eq!(second.ready["node"], first.ready["node"]);
    let (_, log) = second.stop();
    assert!(!log.contains("first start"), "{log}");
}

#[test]
fn the_log_has_the_time_unless_it_is_compact() {
    for (format, dated) in [("pretty", true), ("text", true), ("compact", false)] {
        let home = tempfile::tempdir().unwrap();
        let mut node = Node::start(home.path(), &["--log-format", format]);
        let (_, log) = node.stop();
        let line = log.lines().find(|line| line.contains("stopped")).unwrap();
        assert_eq!(line.starts_with("20"), dated, "{format}: {line}");
        assert!(line.contains("INFO"), "{line}");
    }
}

#[test]
fn the_settings_for_a_client_name_the_running_node_its_store_and_the_shards() {
    let home = tempfile::tempdir().unwrap();
    let node = Node::start(home.path(), &["--shards", "10"]);
    let shared = output(home.path(), &["share", "--admin", node.admin()]);
    let file = text(&shared.stdout);
    assert!(shared.status.success(), "{}", text(&shared.stderr));
    assert!(file.starts_with("# Only this machine reaches the node"), "{file}");
    for part in
        ["\nnode = [\"/ip4/127.0.0.1/", "\npublisher = [\"http", "\naggregator = [\"http", "\nshards = 10\n"]
    {
        assert!(file.contains(part), "{part}: {file}");
    }
    let shared = json(home.path(), &["share", "--json", "--admin", node.admin()]);
    assert_eq!(shared["shards"], 10);
    assert!(file.contains(&format!("node = {}", shared["node"])), "{shared} is not {file}");
}

#[test]
fn without_an_admin_port_it_says_so() {
    let home = tempfile::tempdir().unwrap();
    let words: Vec<_> = ECHO.iter().map(|word| if *word == "127.0.0.1:0" { "none" } else { word }).collect();
    let mut node = Node::spawn(&mut baton_node(home.path(), &words));
    assert_eq!(node.ready["admin"], Value::Null);
    assert_eq!(node.stop().0, Some(0));
}

#[test]
fn a_json_log_is_json_to_the_last_line_also_of_a_failure() {
    let home = tempfile::tempdir().unwrap();
    let words = [
        "run",
        "--log-format",
        "json",
        "--admin",
        "none",
        "--model",
        "mine",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
    ];
    let (code, said) = failure(&mut baton_node(home.path(), &words));
    assert_eq!(code, 5);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = lines.last().unwrap();
    assert_eq!((&last["level"], &last["exit_code"]), (&"ERROR".into(), &5.into()));
    assert!(last["error"].as_str().unwrap().contains("models list"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_a_turn_counts_it_and_logs_neither_its_text_nor_any_secret() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::start(home.path(), SHARDS).await;
    let shards = SHARDS.to_string();
    let words = ["--log", "trace", "--shards", &shards, "--publisher", &store.url];
    let words: Vec<_> = without_publisher().chain(words).collect();
    let mut node = Node::spawn(&mut baton_node(home.path(), &words));
    let client = Client::of(&node.ready).await;
    let record = client.record().await;
    assert_eq!(record.node.to_string(), node.ready["node"].as_str().unwrap());
    assert_eq!(record.limits.slots, 8);
    assert!(record.addresses[0].starts_with("/ip4/127.0.0.1/tcp/"), "{:?}", record.addresses);

    let reply = client.ask("zanzibar quokka").await.finish().await;
    assert_eq!(reply.text(), "echo: zanzibar quokka");
    assert!(reply.committed().is_some() && reply.complete, "{reply:?}");
    let (success, status) = status(home.path(), &node);
    assert!(success, "{status}");
    assert_eq!((&status["ready"], &status["turns"]["committed"]), (&true.into(), &1.into()));
    let metrics = reqwest::Client::builder().no_proxy().build().unwrap();
    let metrics =
        metrics.get(format!("http://{}/metrics", node.admin())).send().await.unwrap().text().await.unwrap();
    for line in [
        "baton_turns_total{outcome=\"committed\"} 1",
        "baton_requests_total{kind=\"turn\"} 1",
        "baton_store_calls_total{call=\"put\",result=\"ok\"} 1",
        "baton_ready 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }

    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");
    let folder = home.path().join(".local/share/baton-node");
    let mut secrets = vec!["zanzibar".to_owned(), "quokka".to_owned()];
    for file in ["node.key", "exchange.keys"] {
        let content = fs::read_to_string(folder.join(file)).unwrap();
        secrets.extend(content.lines().skip(1).map(|line| line.split(' ').next_back().unwrap().to_owned()));
    }
    assert_eq!(secrets.len(), 5, "two words, a node key and two exchange keys");
    for secret in secrets {
        assert!(!log.contains(&secret) && !metrics.contains(&secret), "{secret} is in the log:\n{log}");
    }
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "the log was to be a detailed one:\n{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_turn_is_finished_before_the_node_ends() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &["--echo-delay-ms", "100", "--drain-seconds", "10"]);
    let client = Client::of(&node.ready).await;
    let mut turn = client.ask("one two three four five").await;
    let begun = turn.read_until(|reply| !reply.text().is_empty()).await;
    assert!(begun.committed().is_none());
    node.signal(Signal::TERM);
    let rest = turn.finish().await;
    assert_eq!(begun.text() + &rest.text(), "echo: one two three four five");
    assert!(rest.committed().is_some(), "{rest:?}");
    assert_eq!(node.event()["event"], "stopped");
    let (code, log) = node.wait();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("turns=1"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_it_at_once() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &["--echo-delay-ms", "60000", "--drain-seconds", "3600"]);
    let client = Client::of(&node.ready).await;
    let mut turn = client.ask("slow").await;
    assert!(turn.read_until(|reply| reply.nonce.is_some()).await.nonce.is_some());
    node.signal(Signal::TERM);
    // Two simultaneous signals may arrive as one.
    wait_until_draining(&node).await;
    node.signal(Signal::INT);
    let (code, log) = node.wait();
    assert!(code == Some(1) && log.contains("at once"), "{code:?}: {log}");
    assert!(!turn.finish().await.complete);
}

async fn wait_until_draining(node: &Node) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    loop {
        let url = format!("http://{}/readyz", node.admin());
        let said = client.get(url).send().await.unwrap().text().await.unwrap();
        if said.contains("stopping") {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_at_the_requested_step() {
    let home = tempfile::tempdir().unwrap();
    let node = Node::start(home.path(), &["--pause-at", "mid-token", "--echo-delay-ms", "1"]);
    let client = Client::of(&node.ready).await;
    let _turn = client.ask("to be stopped").await;
    assert_eq!(node.event(), serde_json::json!({ "event": "paused", "step": "mid-token" }));
}

/// Limits the node's files to 640 KiB. Then every write fails, as on a full disk.
const FULL_DISK: &str = "trap '' XFSZ; ulimit -f 640; exec \"$0\" \"$@\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_it_refuses_turns_says_why_and_loses_none() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", FULL_DISK, env!("CARGO_BIN_EXE_baton-node")]).args(ECHO);
    command.env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    let mut node = Node::spawn(&mut command);
    let client = Client::of(&node.ready).await;
    // One word for the echo engine, tens of kilobytes for the journal.
    let text = "x".repeat(40_000);
    let mut committed = 0;
    let mut turn = client.ask(&text).await;
    let lost = loop {
        let reply = turn.finish().await;
        if reply.committed().is_none() {
            break reply;
        }
        committed += 1;
        assert!(committed < 100, "the disk was to be full by now");
        turn = client.ask(&text).await;
    };
    assert!(committed > 0 && lost.nonce.is_some() && lost.code() == Some(ErrorCode::Internal), "{lost:?}");
    // The signatures of that turn are in the node's memory but not on its disk, so they stay hidden.
    assert_eq!(client.status(&turn).await.unwrap_err(), ErrorCode::Internal);
    let again = client.ask_again(&mut turn).await;
    assert!(again.committed().is_none() && again.code() == Some(ErrorCode::Internal), "{again:?}");
    assert_eq!(client.ask("one more").await.finish().await.code(), Some(ErrorCode::Internal));
    let (_, status) = status(home.path(), &node);
    let missing = status["not_ready"].to_string();
    assert!(missing.contains("make space on the disk"), "{missing}");
    node.signal(Signal::TERM);
    let (code, log) = node.wait();
    assert_eq!(code, Some(4), "{log}");
    assert!(log.contains("the journal failed") && log.contains("check the disk"), "{log}");
    assert!(!log.contains("panicked"), "{log}");

    // With space again the node continues, and the signed turns are still there to be stored.
    let mut node = Node::start(home.path(), &[]);
    let client = Client::of(&node.ready).await;
    assert!(client.ask("and on").await.finish().await.committed().is_some());
    let again = client.ask_again(&mut turn).await;
    assert!(again.committed().is_some(), "the turn that was lost runs again: {again:?}");
    let (_, log) = node.stop();
    assert!(log.contains(&format!("storing blobs of an earlier run blobs={committed}")), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_named_in_the_log_of_the_next_start() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Node::start(home.path(), &[]);
    let client = Client::of(&node.ready).await;
    assert!(client.ask("hello").await.finish().await.committed().is_some());
    let (_, log) = node.stop();
    assert!(!log.contains("damaged"), "{log}");
    let db = home.path().join(".local/share/baton-node/journal/db");
    type Harm = fn(&mut Vec<u8>);
    let harms: [(&str, Harm); 3] =
        [("cut", |bytes| bytes.truncate(200)), ("zeroed", |bytes| bytes.fill(0)), ("emptied", Vec::clear)];
    for (name, harm) in harms {
        let mut bytes = std::fs::read(&db).unwrap();
        harm(&mut bytes);
        std::fs::write(&db, bytes).unwrap();
        let (_, log) = Node::start(home.path(), &[]).stop();
        let told = log.lines().find(|line| line.contains(&*db.to_string_lossy()));
        let told = told.unwrap_or_else(|| panic!("{name}: {log}"));
        assert!(told.contains("damaged") && told.contains("The damaged files are in"), "{name}: {told}");
        let (_, log) = Node::start(home.path(), &[]).stop();
        assert!(!log.contains("damaged"), "{name}: told twice: {log}");
    }
}
