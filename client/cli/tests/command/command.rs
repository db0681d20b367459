//! The `baton` command as a process: against a node over the mesh and a store over HTTP.

use std::{
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use baton_proto::{ErrorCode, SignedObject, head::HeadRecord, receipt::EngineKind};
use baton_walrus_client::{HttpStore, ShardCount};
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore, HeadIdentity};
use serde_json::Value;
use tempfile::TempDir;

use baton_client::testkit::{
    fake::{Act, FakeNode},
    store::Stores,
};

fn validate(record: &[u8]) -> Result<HeadIdentity, String> {
    let head = SignedObject::<HeadRecord>::verify_encoded(record).map_err(|code| code.to_string())?;
    Ok(HeadIdentity { key: head.index_key(), sequence: head.sequence, expires_ms: head.expires_ms })
}

/// A node, a store over HTTP and a folder.
pub(crate) struct Fixture {
    pub folder: TempDir,
    pub url: String,
    pub node: FakeNode,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig {
            shards: ShardCount::TESTBED,
            ..EmbeddedConfig::new(folder.path().join("store"))
        };
        let store = EmbeddedStore::open(config, validate).unwrap();
        let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { store.serve(listener, std::future::pending()).await });
        let http = Arc::new(HttpStore::builder(&url, &url, ShardCount::TESTBED).build().unwrap());
        let node = FakeNode::start(Stores { blobs: http.clone(), heads: http }, EngineKind::Native).await;
        Self { folder, url, node }
    }

    /// The same, and the home folder of its commands.
    pub(crate) async fn with_home() -> (Self, PathBuf) {
        let fixture = Self::new().await;
        let home = fixture.home();
        (fixture, home)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Runs the command, which succeeds.
    pub(crate) async fn ok(&self, home: &Path, arguments: &[&str]) -> Output {
        self.ends(home, arguments, 0, &[]).await
    }

    /// Runs the command, which ends with this code and says these parts.
    pub(crate) async fn ends(
        &self,
        home: &Path,
        arguments: &[&str],
        expected: i32,
        parts: &[&str],
    ) -> Output {
        let output = self.baton(home, arguments, "").await;
        ends(&output, expected, parts);
        output
    }

    /// The last line of the command's output, as JSON.
    pub(crate) async fn json(&self, home: &Path, arguments: &[&str]) -> Value {
        last(&self.baton(home, &[arguments, &["--json"]].concat(), "").await)
    }

    /// Runs the command on a blocking thread, since node and store live on this runtime.
    pub(crate) async fn baton(&self, home: &Path, arguments: &[&str], stdin: &str) -> Output {
        let node = self.node.addrs().first().unwrap().to_string();
        let home = home.display().to_string();
        let shared = ["--home", &home, "--node", &node, "--publisher", &self.url, "--shards", "10"];
        let all: Vec<String> = arguments.iter().chain(&shared).map(ToString::to_string).collect();
        let (folder, stdin) = (self.folder.path().to_owned(), stdin.to_owned());
        tokio::task::spawn_blocking(move || run(&folder, &all, &stdin)).await.unwrap()
    }
}

/// The command, apart from the nodes and stores of other networks on this machine: without multicast, and with a
/// store that is not there in place of the default one.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.env_clear().env("BATON_MDNS", "false").env("BATON_PUBLISHER", "http://127.0.0.1:9");
    command
}

pub(crate) fn run(folder: &Path, arguments: &[impl AsRef<OsStr>], stdin: &str) -> Output {
    run_in(folder, arguments, stdin, &[])
}

/// Runs the command with these variables of the environment.
pub(crate) fn run_in(
    folder: &Path,
    arguments: &[impl AsRef<OsStr>],
    stdin: &str,
    environment: &[(&str, &str)],
) -> Output {
    let mut child = program()
        .args(arguments)
        .env("HOME", folder)
        .envs(environment.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input is free to end first.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks parts of the error output.
#[track_caller]
pub(crate) fn says(output: &Output, parts: &[&str]) {
    let said = err(output);
    parts.iter().for_each(|part| assert!(said.contains(part), "{part} is not in {said}"));
}

/// Checks parts of the output.
#[track_caller]
pub(crate) fn shows(output: &Output, parts: &[&str]) {
    let shown = out(output);
    parts.iter().for_each(|part| assert!(shown.contains(part), "{part} is not in {shown}"));
}

/// Checks the exit code, and parts of the error output.
#[track_caller]
pub(crate) fn ends(output: &Output, expected: i32, parts: &[&str]) {
    assert_eq!(code(output), expected, "{}{}", out(output), err(output));
    says(output, parts);
}

/// The last line of the output, as JSON.
pub(crate) fn last(output: &Output) -> Value {
    let text = out(output);
    serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {text} {}", err(output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_prints_the_answer_or_json_and_the_session_goes_on() {
    let (fixture, home) = Fixture::with_home().await;
    let plain = fixture.baton(&home, &["chat", "--message", "hello"], "").await;
    assert_eq!((code(&plain), out(&plain).as_str()), (0, "hello (0)\n"), "{}", err(&plain));
    says(&plain, &["✓ verified · turn 1"]);
    let json = fixture.baton(&home, &["chat", "last", "--message", "-", "--json"], "again").await;
    let value = last(&json);
    assert_eq!(value["text"], "again (1)");
    assert_eq!((value["seq"].as_u64(), value["verified"].as_bool()), (Some(1), Some(true)));
    assert_eq!(value["node"], fixture.node.id().to_string());
    assert_eq!(value["receipt"]["output_tokens"], 2);
    assert_eq!(value["receipt"]["model_name"], "parrot");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_works_over_a_pipe() {
    let fixture = Fixture::new().await;
    let lines = "one\n/help\n\ntwo\n/edit two again\n/regenerate\n/verify full\n/nonsense\n/new\nfresh\n/quit\nnever\n";
    let output = fixture.baton(&fixture.home(), &["chat", "--system", "s: "], lines).await;
    assert_eq!(code(&output), 0, "{}", err(&output));
    let text = out(&output);
    for answer in ["s: one (0)\n", "s: two (1)\n", "s: two again (1)\n", "s: fresh (0)\n"] {
        assert!(text.contains(answer), "{answer} in {text}");
    }
    assert_eq!(text.matches("s: two again (1)").count(), 2, "edited, then regenerated");
    assert!(text.contains("/regenerate") && !text.contains("never"));
    says(&output, &["✓ 4 turns verified"]);
    assert!(err(&output).contains("There is no /nonsense"));
    assert!(!text.contains('\u{1b}') && !err(&output).contains('\u{1b}'), "no colour in a pipe");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_shown_verified_backed_up_restored_and_deleted() {
    let (fixture, home) = Fixture::with_home().await;
    let id =
        fixture.json(&home, &["chat", "--message", "hello"]).await["session"].as_str().unwrap().to_owned();
    let listed = fixture.json(&home, &["session", "list"]).await;
    assert_eq!(
        (listed["sessions"][0]["session"].as_str(), listed["sessions"][0]["turns"].as_u64()),
        (Some(&*id), Some(1))
    );
    let shown = fixture.baton(&home, &["session", "show", &id[..6]], "").await;
    assert_eq!(out(&shown), "you: hello\nmodel: hello (0)\n");
    let verified = fixture.json(&home, &["session", "verify", "last", "--full"]).await;
    assert_eq!((verified["verified"].as_bool(), verified["ids_checked"].as_u64()), (Some(true), Some(1)));

    let refused = fixture.baton(&home, &["session", "backup", "last"], "").await;
    assert_eq!(code(&refused), 2, "words do not go into a pipe");
    fixture.ok(&home, &["session", "backup", "last", "--out", "words.txt"]).await;
    let words = std::fs::read_to_string(fixture.folder.path().join("words.txt")).unwrap();
    assert_eq!(words.split_whitespace().count(), 24);
    fixture.ok(&home, &["session", "export", "last", "--out", "export.json"]).await;
    fixture.ok(&home, &["session", "verify", "--file", "export.json", "--full"]).await;
    let import = fixture.baton(&home, &["session", "import", "export.json"], "").await;
    assert_eq!(code(&import), 5, "an export without its root cannot be continued");
    let export = std::fs::read_to_string(fixture.folder.path().join("export.json")).unwrap();
    for (from, to, hint) in [
        ("\"baton-export-v2\"", "\"baton-export-v9\"", "the file's format is another one"),
        ("\"blob\": \"", "\"blob\": \"AAAA", "the file was changed or damaged after the export"),
    ] {
        std::fs::write(fixture.folder.path().join("changed.json"), export.replacen(from, to, 1)).unwrap();
        let verify = ["session", "verify", "--file", "changed.json"];
        fixture.ends(&home, &verify, 5, &[hint]).await;
    }

    let other = fixture.folder.path().join("other");
    let restored = fixture.baton(&other, &["session", "restore", "--json"], &words).await;
    assert_eq!(last(&restored)["session"], *id, "{}", err(&restored));
    let wrong = words.replacen(words.split_whitespace().next().unwrap(), "xyzzy", 1);
    assert_eq!(code(&fixture.baton(&other, &["session", "restore"], &wrong).await), 2);
    assert_eq!(code(&fixture.baton(&other, &["session", "restore"], &words).await), 7, "it is here already");

    assert_eq!(code(&fixture.baton(&home, &["session", "delete", "last"], "").await), 2, "nobody to ask");
    fixture.ok(&home, &["session", "delete", "last", "--yes"]).await;
    fixture.ends(&home, &["session", "show", &id], 7, &["baton session list"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_exit_codes_and_name_the_next_step() {
    let (fixture, home) = Fixture::with_home().await;
    let empty = fixture.baton(&home, &["chat", " ", "--json"], "").await;
    assert_eq!((code(&empty), last(&empty)["error"]["name"].as_str()), (2, Some("EmptyMessage")));
    let long = fixture.baton(&home, &["chat", "--message", "-"], &"x".repeat(1_000_000)).await;
    ends(&long, 2, &["1000000 bytes", "in parts"]);
    let began = Instant::now();
    let unserved = ["chat", "x", "--model", "parot"];
    fixture.ends(&home, &unserved, 3, &["served are: parrot", "did you mean parrot?"]).await;
    assert!(began.elapsed() < Duration::from_millis(3500), "{:?}", began.elapsed());

    let grant =
        ["after 1 attempt,", "only holders of a grant", "your key (baton grants)", "baton grants use FILE"];
    let context = ["after 1 attempt,", "it needs 5000 tokens", "shorten the message", "--model"];
    for (act, exit, is_kept, parts) in [
        (Act::Explain(ErrorCode::ContextOverflow, 0, "it needs 5000 tokens"), 4, false, &context[..]),
        (Act::Refuse(ErrorCode::GrantRequired), 4, true, &grant),
        (Act::WrongReceipt, 5, true, &["the message is kept"]),
    ] {
        fixture.node.script([act; 6]);
        let refused = fixture.ends(&home, &["chat", "x"], exit, parts).await;
        assert_eq!(err(&refused).contains("is saved"), is_kept, "{}", err(&refused));
        fixture.node.clear_script();
        // A message that no node takes as it is leaves no session.
        let listed = fixture.json(&home, &["session", "list"]).await;
        assert_eq!(listed["sessions"][0].is_null(), !is_kept, "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_message_is_asked_with_the_newest_settings_and_once_if_it_is_repeated() {
    let (fixture, home) = Fixture::with_home().await;
    let chat = async |options: &[&str]| {
        let output = fixture.baton(&home, &[&["chat", "-m"], options].concat(), "").await;
        let asked = fixture.node.seen(|seen| seen.turns.last().unwrap().clone());
        let asked = (asked.turn_id, asked.max_output_tokens);
        (code(&output), out(&output), asked)
    };
    let refused = async |options: &[&str]| {
        fixture.node.script([Act::Refuse(ErrorCode::BackendDenied)]);
        let (code, _, asked) = chat(options).await;
        assert_eq!(code, 4);
        asked
    };
    let begun = refused(&["one", "--max-tokens", "7"]).await;
    assert_eq!(begun.1, 7);
    // The same request is the same turn, and answers the message that waits.
    let (_, text, asked) = chat(&["one", "-c", "--max-tokens", "7"]).await;
    assert_eq!((text.as_str(), asked), ("one (0)\n", begun));
    let begun = refused(&["two", "-c", "--max-tokens", "7"]).await;
    let (_, text, asked) = chat(&["two", "-c", "--max-tokens", "8"]).await;
    assert_eq!((text.as_str(), asked.1), ("two (1)\n", 8));
    assert_ne!(asked.0, begun.0, "another request is another turn");
    // Before another message, too, and at the prompt.
    refused(&["three", "-c", "--max-tokens", "7"]).await;
    fixture.node.script([Act::Refuse(ErrorCode::BackendDenied)]);
    let behind = ["chat", "-c", "four", "--max-tokens", "7"];
    fixture.ends(&home, &behind, 4, &["Your new message was not sent", "--drop-pending"]).await;
    let before = fixture.node.seen(|seen| seen.turns.len());
    let (_, text, asked) = chat(&["four", "-c", "--max-tokens", "9"]).await;
    assert_eq!((text.as_str(), asked.1), ("three (2)\nfour (3)\n", 9));
    assert_eq!(fixture.node.seen(|seen| seen.turns[before].max_output_tokens), 9);
    refused(&["five", "-c", "--max-tokens", "7"]).await;
    let prompt = fixture.baton(&home, &["chat", "-c", "--max-tokens", "10"], "/quit\n").await;
    assert_eq!(out(&prompt), "five (4)\n", "{}", err(&prompt));
    assert_eq!(fixture.node.seen(|seen| seen.turns.last().unwrap().max_output_tokens), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verification_publishes_the_head_that_an_index_lacks() {
    let (fixture, other) = (Fixture::new().await, Fixture::new().await);
    let home = fixture.home();
    fixture.ok(&home, &["chat", "--message", "hello", "--dht=false"]).await;
    let heads = ["--heads", &other.url, "--dht=false"];
    let with_heads = |command: &'static str| {
        let arguments = [&["session", command, "last", "--json"][..], &heads[..]].concat();
        let (fixture, home) = (&fixture, home.clone());
        async move { fixture.baton(&home, &arguments, "").await }
    };
    let verified = with_heads("verify").await;
    assert_eq!((code(&verified), last(&verified)["error"]["name"].as_str()), (5, Some("RollbackDetected")));
    let synced = with_heads("sync").await;
    assert_eq!((code(&synced), &last(&synced)["status"]), (0, &"current".into()), "{}", err(&synced));
}

#[test]
fn without_a_node_the_command_says_how_to_give_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["chat", "--message", "hello"], "");
    ends(&output, 3, &["baton doctor"]);
    let dead = ["chat", "hello", "--node", "/ip4/127.0.0.1/tcp/9"];
    let output = run(folder.path(), &dead, "");
    says(&output, &["Could not reach /ip4/127.0.0.1/tcp/9: "]);
    assert_eq!(code(&run(folder.path(), &["nodes"], "")), 3);
    assert_eq!(code(&run(folder.path(), &["chat", "--node", "localhost"], "")), 2);
    assert_eq!(code(&run(folder.path(), &["chatter"], "")), 2);
    let list = run(folder.path(), &["session", "list", "--json"], "");
    assert_eq!(
        last(&list)["sessions"].as_array().map(Vec::len),
        Some(0),
        "a message that found no node leaves nothing behind"
    );
}

#[test]
fn help_lists_commands_settings_and_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let help = out(&run(folder.path(), &["--help"], ""));
    for part in ["chat", "session", "nodes", "BATON_HOME", "Exit codes", "config.toml"] {
        assert!(help.contains(part), "{part} in {help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_a_message_and_the_last_session_or_a_named_one_continues() {
    let (fixture, home) = Fixture::with_home().await;
    let first = fixture.baton(&home, &["chat", "hello there"], "").await;
    assert_eq!((code(&first), out(&first).as_str()), (0, "hello there (0)\n"), "{}", err(&first));
    let second = fixture.baton(&home, &["chat", "-c", "more"], "").await;
    assert_eq!(out(&second), "more (1)\n", "{}", err(&second));
    let id = fixture.json(&home, &["session", "list"]).await["sessions"][0]["session"].as_str().unwrap()[..8]
        .to_owned();
    let third = fixture.baton(&home, &["chat", "-s", &id, "and more"], "").await;
    assert_eq!(out(&third), "and more (2)\n", "{}", err(&third));
    let prompt = fixture.baton(&home, &["chat", &id], "at a prompt\n").await;
    assert_eq!(out(&prompt), "at a prompt (3)\n", "an id alone names a session: {}", err(&prompt));
    fixture.ends(&home, &["chat", "-s", "ffffffff", "x"], 7, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_by_title_renamed_found_and_deleted_together() {
    let (fixture, home) = Fixture::with_home().await;
    let run = async |arguments: &[&str]| fixture.baton(&home, arguments, "").await;
    for text in ["where is my harbour", "something else"] {
        assert_eq!(code(&run(&["chat", text]).await), 0);
    }
    let listed = out(&run(&["session", "list"]).await);
    for part in ["ID", "TITLE", "LAST USED", "STORED UNTIL", "where is my harbour", "something else"] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    let renamed = run(&["session", "rename", "last", "Other things"]).await;
    assert_eq!(code(&renamed), 0, "{}", err(&renamed));
    assert!(out(&run(&["session", "list"]).await).contains("Other things"));
    let found = out(&run(&["session", "list", "HARBOUR"]).await);
    assert!(found.contains("where is my harbour") && !found.contains("Other things"), "{found}");
    let ids: Vec<String> = listed.lines().skip(1).map(|line| line[..8].to_owned()).collect();
    let without = run(&["session", "delete", &ids[0], &ids[1]]).await;
    ends(&without, 2, &["--yes"]);
    let wrong = run(&["session", "delete", &ids[0], "ffffffff", "--yes"]).await;
    assert_eq!(code(&wrong), 7, "a wrong name deletes nothing");
    assert_eq!(code(&run(&["session", "delete", &ids[0], &ids[1], "--yes"]).await), 0);
    assert!(err(&run(&["session", "list"]).await).contains("no conversations yet"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_turn_is_hidden_and_shown_on_request() {
    let (fixture, home) = Fixture::with_home().await;
    let lines = "first\n/edit better\n/quit\n";
    assert_eq!(code(&fixture.baton(&home, &["chat"], lines).await), 0);
    let shown = fixture.baton(&home, &["session", "show", "last"], "").await;
    assert!(!out(&shown).contains("first") && out(&shown).contains("better"), "{}", out(&shown));
    says(&shown, &["1 turn replaced by an edit"]);
    for option in ["--all", "--graph"] {
        let all = fixture.baton(&home, &["session", "show", "last", option], "").await;
        says(&all, &["turn 1 · ", "replaced by a later turn", "up to turn 2: stored until "]);
        assert!(out(&all).contains("first"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_open_elsewhere_can_be_read() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "hello"]).await;
    let journal = std::fs::read_dir(home.join("sessions")).unwrap();
    let journal = journal.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some()).unwrap();
    let lock = std::fs::File::options().read(true).write(true).open(&journal).unwrap();
    lock.try_lock().unwrap();
    let before = std::fs::read(&journal).unwrap();
    let run = async |arguments: &[&str]| fixture.baton(&home, arguments, "").await;
    for read in [&["session", "show", "last"][..], &["session", "verify", "last"], &["receipts"]] {
        let done = run(read).await;
        assert_eq!(code(&done), 0, "{read:?}: {}", err(&done));
    }
    let refused = run(&["chat", "-c", "more"]).await;
    ends(&refused, 7, &["open in another process"]);
    assert!(std::fs::read(&journal).unwrap() == before, "a reader changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_wrong_on_a_healthy_network_and_names_what_is() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "hello"]).await;
    let healthy = fixture.baton(&home, &["doctor", "--json"], "").await;
    assert_eq!(code(&healthy), 0, "{}", out(&healthy));
    let report = last(&healthy);
    assert_eq!((&report["ok"], &report["checks"][0]["state"]), (&true.into(), &"ok".into()), "{report}");
    let node = fixture.node.addrs().first().unwrap().to_string();
    let words = ["doctor", "--node", &node, "--publisher", &fixture.url, "--shards", "1000", "--home"];
    let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
    words.push(home.display().to_string());
    let folder = fixture.folder.path().to_owned();
    let other = tokio::task::spawn_blocking(move || run(&folder, &words, "")).await.unwrap();
    assert_eq!(code(&other), 1);
    shows(&other, &["C404", "has 10, these settings 1000"]);
    let sick = fixture.baton(&home, &["doctor", "--aggregator", "http://127.0.0.1:9"], "").await;
    assert_eq!(code(&sick), 1);
    let once = "an aggregator does not answer: aggregator: could not connect to http://127.0.0.1:9 (Connection refused)\n";
    shows(&sick, &["C402", once, "fix: "]);
    for broken in [&["--config", "nowhere.toml"][..], &["--heads", "http://a b"], &["--heads", "http://"]] {
        let broken = fixture.baton(&home, &[&["doctor"], broken].concat(), "").await;
        shows(&broken, &["C101"]);
        assert!(code(&broken) == 1 && !out(&broken).contains("C201"), "{}", out(&broken));
    }
    let quic = "/ip4/127.0.0.1/udp/9/quic-v1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    let words = ["doctor", "--dht=false", "--node", quic, "--publisher", &fixture.url].map(str::to_owned);
    let folder = fixture.folder.path().to_owned();
    let dead = tokio::task::spawn_blocking(move || run(&folder, &words, "")).await.unwrap();
    let detail = format!("C601     a named node cannot be reached: {quic}: ");
    shows(&dead, &[&detail, "C602     no node was found: none of the named nodes answers\n"]);
}

#[test]
fn the_settings_are_shown_with_their_origin_written_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml").display().to_string();
    let written = run(folder.path(), &["config", "--init", "--config", &file], "");
    assert_eq!(code(&written), 0, "{}", err(&written));
    assert_eq!(code(&run(folder.path(), &["config", "--config", &file], "")), 0);
    std::fs::write(&file, "shards = 10\npubisher = 'x'\n").unwrap();
    let wrong = run(folder.path(), &["nodes", "--config", &file], "");
    ends(&wrong, 2, &["c.toml:2"]);
    says(&wrong, &["did you mean `publisher`?"]);
    std::fs::write(&file, "shards = 1\npubisher = 'x'\n").unwrap();
    let wrong = run(folder.path(), &["config", "--config", &file], "");
    ends(&wrong, 2, &["c.toml:1", "c.toml:2"]);
    std::fs::write(&file, "shards = 10\n").unwrap();
    let shown = run(folder.path(), &["config", "--config", &file, "--max-price", "5", "--json"], "");
    let settings = last(&shown)["settings"].clone();
    assert_eq!(
        (settings["shards"]["value"].as_u64(), settings["shards"]["line"].as_u64()),
        (Some(10), Some(1))
    );
    assert_eq!(
        (settings["max_price"]["origin"].as_str(), settings["dht"]["origin"].as_str()),
        (Some("flag"), Some("default"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_takes_a_schema_from_a_file_and_gives_the_answers_json() {
    let fixture = Fixture::new().await;
    let path = fixture.folder.path().join("schema.json");
    let file = path.display().to_string();
    std::fs::write(&path, r#"{"type":"object"}"#).unwrap();
    let ask = ["chat", "--message", "hello", "--schema", &file, "--json"];
    let answered = fixture.baton(&fixture.home(), &ask, "").await;
    assert_eq!(code(&answered), 0, "{}", err(&answered));
    assert_eq!(last(&answered)["json"], serde_json::json!({ "said": "hello", "read": 0 }));
    assert_eq!(fixture.node.seen(|seen| seen.asked[0].0.clone()).as_deref(), Some(r#"{"type":"object"}"#));
    for wrong in ["[]", "{", ""] {
        std::fs::write(&path, wrong).unwrap();
        assert_eq!(code(&fixture.baton(&fixture.home(), &ask, "").await), 2, "{wrong:?}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code(&fixture.baton(&fixture.home(), &ask, "").await), 2, "no file");
    let without = fixture.baton(&fixture.home(), &["chat", "--schema", &file], "").await;
    assert_eq!(code(&without), 2, "it is for one message");
}
