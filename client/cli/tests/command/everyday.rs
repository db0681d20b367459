//! What people meet every day: mistyped names, empty values, branches, backups, and sessions that another
//! device deleted.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::command::{Fixture, code, ends, err, last, out, program, run_in, says, shows};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_another_device_deleted_says_so_and_takes_no_message() {
    let fixture = Fixture::new().await;
    let (one, two) = (fixture.folder.path().join("one"), fixture.folder.path().join("two"));
    let begun = fixture.json(&one, &["chat", "hello", "--dht=false"]).await;
    let id = begun["session"].as_str().unwrap()[..8].to_owned();
    let words = ["session", "backup", "last", "--out", "words"];
    fixture.ok(&one, &words).await;
    let words = std::fs::read_to_string(fixture.folder.path().join("words")).unwrap();
    assert_eq!(code(&fixture.baton(&two, &["session", "restore", "--dht=false"], &words).await), 0);
    fixture.ok(&two, &["session", "delete", &id, "--yes", "--dht=false"]).await;

    // Both the look that finds the deletion and the memory of it refuse the message.
    for message in ["again", "once more"] {
        let refused = fixture.baton(&one, &["chat", "-s", &id, message, "--dht=false"], "").await;
        let said = err(&refused);
        assert_eq!(code(&refused), 7, "{said}");
        assert!(said.contains("deleted on another device"), "{said}");
        assert!(said.contains(&format!("baton session delete {id}")), "{said}");
        assert!(!said.contains("Your message is saved"), "{said}");
    }
    let listed = fixture.baton(&one, &["session", "list"], "").await;
    shows(&listed, &["(deleted on another device) hello"]);
    assert!(!out(&listed).contains("not answered"), "{}", out(&listed));
    let prompt = fixture.baton(&one, &["chat", "-s", &id, "--dht=false"], "/quit\n").await;
    says(&prompt, &["Another device deleted this conversation"]);
    let doctor = fixture.baton(&one, &["doctor", "--dht=false"], "").await;
    shows(&doctor, &["C804"]);
    fixture.ok(&one, &["session", "delete", &id, "--yes", "--dht=false"]).await;
    assert_eq!(fixture.json(&one, &["session", "list"]).await["sessions"][0], serde_json::Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_until_when_it_is_kept_and_is_renewed_on_request() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "--message", "hello"]).await;
    let list = fixture.json(&home, &["session", "list"]).await;
    let until = list["sessions"][0]["kept_until_ms"].as_u64().unwrap();
    let shown = fixture.baton(&home, &["session", "show", "last"], "").await;
    says(&shown, &["up to turn 1: stored until 20", ", blob "]);
    let not_due = fixture.json(&home, &["session", "renew"]).await;
    assert_eq!(
        (&not_due["renewed"], not_due["kept_until_ms"].as_u64()),
        (&serde_json::json!([]), Some(until))
    );
    let far = ["session", "renew", "last", "--within-days", "365"];
    let renewed = fixture.json(&home, &far).await;
    assert_eq!(renewed["renewed"], serde_json::json!([0]));
    assert!(renewed["kept_until_ms"].as_u64().unwrap() > until);
}

#[test]
fn an_empty_or_wrong_value_is_refused_with_the_name_of_its_option_or_variable() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, variables, name) in [
        (&["chat", "hi", "--model", " "][..], &[][..], "--model is empty"),
        (&["chat", "hi"], &[("BATON_MODEL", "")], "--model"),
        (&["chat", "hi"], &[("BATON_NODE", "nowhere")], "environment variable BATON_NODE"),
        (&["chat", "hi"], &[("BATON_PLAIN", "maybe")], "environment variable BATON_PLAIN"),
    ] {
        ends(&run_in(folder.path(), arguments, "", variables), 2, &[name]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_or_there_already_gets_a_hint_about_its_path() {
    let (fixture, home) = Fixture::with_home().await;
    let missing =
        fixture.baton(&home, &["session", "restore", "--words-file", "nowhere/words.txt"], "").await;
    says(&missing, &["try: check the path"]);
    fixture.ok(&home, &["chat", "hello"]).await;
    for expected in ["written to", "it exists already"] {
        let backup = fixture.baton(&home, &["session", "backup", "last", "--out", "words.txt"], "").await;
        says(&backup, &[expected]);
    }
    // A restore of a session of this home, and of one that was deleted.
    let restore = ["session", "restore", "--words-file", "words.txt"];
    let here = fixture.baton(&home, &restore, "").await;
    assert!(
        err(&here).contains("continue it: baton chat -s ") && !err(&here).contains("SESSION"),
        "{}",
        err(&here)
    );
    fixture.ok(&home, &["session", "delete", "last", "--yes"]).await;
    let gone = fixture.baton(&home, &restore, "").await;
    assert!(
        err(&gone).contains("its words restore nothing") && !err(&gone).contains("remove it"),
        "{}",
        err(&gone)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_begins_with_the_turns_of_its_parent_which_stays() {
    let (fixture, home) = Fixture::with_home().await;
    let first = fixture.json(&home, &["chat", "one"]).await;
    let parent = first["session"].as_str().unwrap().to_owned();
    fixture.ok(&home, &["chat", "-c", "two"]).await;
    let branch = ["chat", "-s", &parent, "--branch=1", "other", "--json"];
    let branched = fixture.ok(&home, &branch).await;
    says(&branched, &["after turn 1"]);
    let id = last(&branched)["session"].as_str().unwrap().to_owned();
    assert_ne!(id, parent);
    let shown = fixture.json(&home, &["session", "show", &id]).await;
    let texts: Vec<&str> = shown["turns"][0]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts[..3], ["one", "one (0)", "other"], "{shown}");
    assert_eq!(shown["turns"][0]["turn"], 1);
    let kept = fixture.json(&home, &["session", "show", &parent]).await;
    assert_eq!(kept["turns"].as_array().unwrap().len(), 2, "the parent stays as it is");
    // At the prompt the branch goes on as any conversation; a wrong turn is named.
    let prompt = fixture.baton(&home, &["chat", "-s", &parent, "--branch"], "three\nfour\n/quit\n").await;
    assert_eq!((code(&prompt), out(&prompt).as_str()), (0, "three (0)\nfour (1)\n"), "{}", err(&prompt));
    fixture.ends(&home, &["chat", "-s", &parent, "--branch=9", "x"], 2, &["has no turn 9"]).await;
    fixture.ends(&home, &["chat", "--branch", "x"], 2, &["-s SESSION"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_says_what_it_restores_and_what_comes_next_and_edits_are_counted_once() {
    let (fixture, home) = Fixture::with_home().await;
    let lines = "/edit\none\ntwo\n/edit\n/edit two again\n/quit\n";
    let chat = fixture.baton(&home, &["chat"], lines).await;
    ends(&chat, 0, &["There is no message yet.", "Your last message: two\n"]);
    let backup = fixture.baton(&home, &["session", "backup", "last", "--out", "w"], "").await;
    says(
        &backup,
        &[
            "✓ 24 words of session",
            "/w\n",
            "\"one\", 2 turns",
            "at least until",
            "baton session restore --words-file",
        ],
    );
    let verified = fixture.baton(&home, &["session", "verify", "last"], "").await;
    says(&verified, &["the conversation has 2 turns; the chain keeps 1 turn that an edit replaced"]);
    let again = fixture.baton(&home, &["session", "backup", "last", "--out", "v", "--json"], "").await;
    assert_eq!((last(&again)["turns"].as_u64(), last(&again)["words"].as_u64()), (Some(2), Some(24)));
    let piped = fixture.baton(&home, &["session", "backup", "last"], "").await;
    says(&piped, &["--out FILE"]);
}

#[test]
fn a_server_without_nodes_says_what_it_tried_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let node = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    let mut server = program()
        .env("HOME", folder.path())
        .args(["serve", "--listen", ":0", "--node", node])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines {
        let done = line.contains("  try: ");
        said.push(line);
        if done {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let said = said.join("\n");
    for part in ["Looking for nodes: 1 named node", "503 no_node", "Could not reach", "baton doctor"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

/// Runs the command with these arguments alone.
async fn alone(fixture: &Fixture, arguments: &[&str], environment: &'static [(&str, &str)]) -> Output {
    let home = fixture.home().display().to_string();
    let all: Vec<String> = arguments.iter().chain(&["--home", &home]).map(ToString::to_string).collect();
    let folder = fixture.folder.path().to_owned();
    tokio::task::spawn_blocking(move || run_in(&folder, &all, "", environment)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_named_by_a_dns_name_and_the_store_by_its_url_alone() {
    let fixture = Fixture::new().await;
    let node = fixture.node.addrs()[0].to_string().replace("/ip4/127.0.0.1/", "/dns4/localhost/");
    let given = ["--node", &node, "--publisher", &fixture.url, "chat"];
    let chat = async |more: &[&str]| alone(&fixture, &[&given[..], more].concat(), &[]).await;
    let first = chat(&["--json", "-m", "hello"]).await;
    assert_eq!(code(&first), 0, "{}", err(&first));
    assert_eq!((last(&first)["text"].as_str(), &last(&first)["stored"]), (Some("hello (0)"), &true.into()));
    says(&first, &["Only your named node may answer."]);
    assert!(
        !err(&chat(&["-c", "-m", "again"]).await).contains("named node"),
        "said until a node has answered"
    );

    let refused = chat(&["--shards", "1000", "-m", "hello"]).await;
    assert_eq!(code(&refused), 2);
    let text = err(&refused);
    assert!(
        text.contains("The store has 10 shards, and the settings have 1000.") && text.contains("--shards 10"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_store_delays_neither_the_answer_nor_the_end_for_long() {
    let fixture = Fixture::new().await;
    let node = fixture.node.addrs()[0].to_string();
    // The system completes its connections, and nobody reads them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    // The times until the answer and from there to the end.
    let timed = async |home: &str, store: &str, words: &[&str]| {
        let mut command = program();
        command.args(words).args(["--home", home, "--node", &node, "--shards", "10", "--publisher", store]);
        command.env("HOME", fixture.folder.path()).current_dir(fixture.folder.path()).stdin(Stdio::null());
        let begun = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let ended = tokio::task::spawn_blocking(move || {
            let mut answer = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
            let answered = begun.elapsed();
            let said = err(&child.wait_with_output().unwrap());
            (answer, said, answered, begun.elapsed().saturating_sub(answered))
        });
        ended.await.unwrap()
    };
    let (.., usual, _) = timed("usual", &fixture.url, &["chat", "hello"]).await;
    for (words, answer) in
        [(&["chat", "hello"][..], "hello (0)\n"), (&["chat", "-c", "again"], "again (1)\n")]
    {
        let (text, said, before, after) = timed("home", &silent, words).await;
        assert_eq!(text, answer, "{said}");
        assert!(before < usual + Duration::from_millis(2500), "{before:?}, usually {usual:?}: {said}");
        assert!(after < Duration::from_millis(5500), "{after:?}: {said}");
        assert!(said.contains("⚠ Not stored yet") && said.contains("baton session renew "), "{said}");
    }
    // Whatever the DHT has, the store was not read.
    let not_renewed = format!("Asking the stores …\nerror: {silent} did not answer in time");
    for (words, expected) in [
        (
            &["session", "sync", "last", "--dht=false"][..],
            "Asking the stores …\nerror: no head index answers",
        ),
        (
            &["session", "sync", "last"],
            "No head index answers, so turns of other devices may be missing here.",
        ),
        (&["session", "renew", "last"], not_renewed.as_str()),
        (&["session", "verify", "last"], "2 turns intact on this device, but 1 of 1 stored copies"),
    ] {
        let (text, said, before, after) = timed("home", &silent, words).await;
        assert!(said.contains(expected) && (text + &said).contains(&silent), "{words:?}: {said}");
        assert!(before + after < Duration::from_secs(14), "{words:?}: {before:?} {after:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_is_for_other_machines_and_is_named_when_it_fails() {
    let fixture = Fixture::new().await;
    let node = fixture.node.addrs()[0].to_string();
    let proxy: &[(&str, &str)] = &[("http_proxy", "http://user:word@127.0.0.1:9")];
    let stored = alone(
        &fixture,
        &["--node", &node, "--publisher", &fixture.url, "chat", "--json", "-m", "hello"],
        proxy,
    )
    .await;
    assert_eq!((code(&stored), &last(&stored)["stored"]), (0, &true.into()), "{}", err(&stored));

    let doctor = ["doctor", "--dht=false", "--shards", "10", "--publisher", "http://store.invalid:31415"];
    let text = out(&alone(&fixture, &doctor, proxy).await);
    assert!(text.contains("http://store.invalid:31415 through the proxy http://127.0.0.1:9 "), "{text}");
    assert!(!text.contains("word"), "{text}");
    let direct: &[(&str, &str)] = &[("http_proxy", "http://127.0.0.1:9"), ("NO_PROXY", "store.invalid")];
    let text = out(&alone(&fixture, &doctor, direct).await);
    assert!(
        text.contains("could not connect to http://store.invalid:31415") && !text.contains("proxy"),
        "{text}"
    );
}

/// A node's address at which nobody listens.
const NOBODY: &str = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

#[test]
fn a_message_at_the_prompt_is_kept_without_a_node_until_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let call = |words: &[&str], stdin: &str| {
        let home = folder.path().join("home").display().to_string();
        let shared = ["--home", &home, "--node", NOBODY, "--dht=false", "--shards", "10"];
        run_in(folder.path(), &[words, &shared].concat(), stdin, &[])
    };
    let listed = |count: usize| {
        let list = last(&call(&["session", "list", "--json"], ""));
        assert_eq!(list["sessions"].as_array().map(Vec::len), Some(count), "{list}");
        list["sessions"][0].clone()
    };
    let failed = call(&["chat"], "keep me\n");
    ends(&failed, 3, &["Your message is saved. Continue with: "]);
    let kept = listed(1);
    assert_eq!((&kept["title"], &kept["pending"]), (&"keep me".into(), &true.into()));
    // The next call finds it and sends it again.
    let back = call(&["chat", "-c"], "/edit\n");
    says(&back, &["Your last message: keep me"]);
    listed(1);
    let dropped = call(&["chat", "-c"], "/drop\n");
    assert_eq!(code(&dropped), 0, "{}", err(&dropped));
    listed(0);
}

#[test]
fn refused_words_are_answered_in_json_with_one_hint() {
    let folder = tempfile::tempdir().unwrap();
    let call = |words: &[&str]| run_in(folder.path(), words, "", &[("BATON_CONFIG", "/nowhere")]);
    for (words, message, hint) in [
        (&["sesion"][..], "unrecognized subcommand 'sesion'", "a similar subcommand exists: 'session'"),
        (&["pull"], "unrecognized subcommand 'pull'", "baton-node models pull"),
        (&["models", "pull", "m"], "unexpected argument 'pull'", "baton-node models pull"),
        (
            &["restore"],
            "unrecognized subcommand 'restore'",
            "baton session restore, or baton account restore",
        ),
        (&[], "Not running at a terminal", "baton chat TEXT"),
    ] {
        let refused = call(&[words, &["--json"]].concat());
        assert_eq!(code(&refused), 2, "{words:?}");
        let error = &last(&refused)["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert!(error["hint"].as_str().unwrap().contains(hint), "{error}");
        let refused = call(words);
        assert!(
            err(&refused).contains(hint) && !err(&refused).contains("error: Chat with"),
            "{}",
            err(&refused)
        );
    }
    let usage = err(&call(&["session", "delete"]));
    assert!(usage.contains("Usage: baton session delete [OPTIONS] <SESSION>..."), "{usage}");
    assert!(!usage.contains("--config"), "{usage}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_standard_output_is_an_error_and_a_closed_one_ends_quietly() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "hello"]).await;
    let node = fixture.node.addrs().first().unwrap().to_string();
    let calls: [&[&str]; 6] = [
        &["chat", "hello"],
        &["session", "list"],
        &["session", "show", "last"],
        &["--help"],
        &["man"],
        &["config"],
    ];
    for words in calls {
        let call = |output: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
            command.args(words).args(["--home", home.to_str().unwrap(), "--node", &node, "--shards", "10"]);
            command.args(["--publisher", &fixture.url]).env_clear().env("HOME", fixture.folder.path());
            command.current_dir(fixture.folder.path()).stdin(Stdio::null()).stdout(output);
            let child = command.stderr(Stdio::piped()).spawn().unwrap();
            tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
        };
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let full = call(full.into()).await.unwrap();
        assert_eq!(code(&full), 1, "{words:?}: {}", err(&full));
        assert!(err(&full).contains("No space left on device"), "{words:?}: {}", err(&full));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = call(writer.into()).await.unwrap();
        assert_eq!(code(&closed), 0, "{words:?}: {}", err(&closed));
        assert!(!err(&closed).contains("panicked"), "{}", err(&closed));
    }
}
