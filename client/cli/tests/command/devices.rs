//! Two homes of one session, through the command.

use std::path::Path;

use crate::command::{Fixture, code, ends, err, last, out, says};

/// The messages of a session, as the command shows them.
async fn shown(fixture: &Fixture, home: &Path) -> (Vec<String>, serde_json::Value) {
    let shown = last(&fixture.baton(home, &["session", "show", "last", "--json"], "").await);
    let turns = shown["turns"].as_array().unwrap();
    let said = turns.iter().map(|turn| turn["messages"][0]["text"].as_str().unwrap().to_owned()).collect();
    (said, shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_settles_a_fork_between_two_homes_over_two_indexes_and_says_so() {
    let (fixture, other) = (Fixture::new().await, Fixture::new().await);
    let (one, two) = (fixture.folder.path().join("one"), fixture.folder.path().join("two"));
    let both = ["--heads", &fixture.url, "--heads", &other.url];
    // Through the DHT the second device would have seen the first one's turn.
    let with = |arguments: &[&'static str], heads: &[&str]| -> Vec<String> {
        let all = arguments.iter().copied().chain(heads.iter().copied()).chain(["--dht=false"]);
        all.map(str::to_owned).collect()
    };
    let run = async |home: &Path, arguments: Vec<String>, stdin: &str| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        fixture.baton(home, &arguments, stdin).await
    };
    let begun = run(&one, with(&["chat", "--message", "common", "--json"], &both), "").await;
    assert_eq!(code(&begun), 0, "{}", err(&begun));
    fixture.ok(&one, &["session", "backup", "last", "--out", "words"]).await;
    let words = std::fs::read_to_string(fixture.folder.path().join("words")).unwrap();
    let restored = run(&two, with(&["session", "restore", "--json"], &both), &words).await;
    assert_eq!(code(&restored), 0, "{}", err(&restored));

    // Each device reaches only one of the indexes.
    let said = run(&one, with(&["chat", "last", "--message", "from one"], &both[..2]), "").await;
    assert_eq!((code(&said), out(&said).as_str()), (0, "from one (1)\n"), "{}", err(&said));
    let said = run(&two, with(&["chat", "last", "--message", "from two"], &both[2..]), "").await;
    assert_eq!((code(&said), out(&said).as_str()), (0, "from two (1)\n"), "{}", err(&said));
    let verified = run(&one, with(&["session", "verify", "last", "--json"], &both), "").await;
    assert_eq!((code(&verified), last(&verified)["error"]["name"].as_str()), (5, Some("ForkDetected")));
    says(&verified, &["baton session sync"]);

    let synced = run(&one, with(&["session", "sync", "last"], &both), "").await;
    ends(&synced, 0, &["Two devices wrote turn 2", "is up to date"]);
    // The other home's prompt reports it at its start.
    let joined = run(&two, with(&["chat", "last"], &both), "/quit\n").await;
    assert_eq!(code(&joined), 0, "{}", err(&joined));
    let told = err(&joined);
    assert!(told.contains("Another device") || told.contains("Two devices"), "{told}");
    let synced = run(&one, with(&["session", "sync", "last", "--json"], &both), "").await;
    assert_eq!(last(&synced)["status"], "current", "{}", err(&synced));

    let ((here, shown_here), (there, shown_there)) =
        (shown(&fixture, &one).await, shown(&fixture, &two).await);
    // The last of each is the turn in the branch.
    assert_eq!((here.len(), &here), (3, &there));
    let [branch, branch_there] =
        [&shown_here, &shown_there].map(|shown| shown["turns"][2]["branch"].as_str());
    let (branch, beside) = (branch.unwrap(), here[2].as_str());
    assert_eq!(Some(branch), branch_there, "{shown_there}");
    assert!(here.contains(&"from one".to_owned()) && here.contains(&"from two".to_owned()), "{shown_here}");
    assert!(shown_here["turns"][1]["branch"].is_null(), "{shown_here}");
    assert_eq!(shown_here["devices"].as_array().unwrap().len(), 2, "{shown_here}");
    let synced = run(&two, with(&["session", "sync", "last"], &both), "").await;
    assert_eq!(out(&synced).matches("has the newest record").count(), 2, "{}", out(&synced));

    // The branch goes on as a conversation of its own.
    let mut on = with(&["chat", "-s", "last", "and on"], &both);
    on.push(format!("--branch={branch}"));
    let answered = run(&one, on, "").await;
    assert_eq!((code(&answered), out(&answered).as_str()), (0, "and on (0)\n"), "{}", err(&answered));
    let (_, gone_on) = shown(&fixture, &one).await;
    let texts = gone_on["turns"][0]["messages"].as_array().unwrap();
    let texts: Vec<&str> = texts.iter().filter_map(|message| message["text"].as_str()).collect();
    assert_eq!((texts[0], texts[2], texts[4]), ("common", beside, "and on"), "{gone_on}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rekeyed_session_goes_on_and_a_stolen_device_neither_reads_nor_continues_it() {
    let fixture = Fixture::new().await;
    let (one, stolen) = (fixture.folder.path().join("one"), fixture.folder.path().join("stolen"));
    let begun = fixture.json(&one, &["chat", "hello", "--dht=false"]).await;
    let old = begun["session"].as_str().unwrap().to_owned();
    fixture.ok(&one, &["session", "rename", "last", "Ours"]).await;
    fixture.ok(&one, &["session", "backup", "last", "--out", "words"]).await;
    let words = std::fs::read_to_string(fixture.folder.path().join("words")).unwrap();
    assert_eq!(code(&fixture.baton(&stolen, &["session", "restore", "--dht=false"], &words).await), 0);

    // Without a person's word, without a message and for a session without turns, nothing happens.
    fixture.ends(&one, &["session", "rekey", "last", "on", "--dht=false"], 2, &["--yes"]).await;
    fixture.ends(&one, &["session", "rekey", "last", "--yes", "--dht=false"], 2, &[]).await;
    let listed = fixture.json(&one, &["session", "list"]).await;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);

    let rekeyed = fixture.ok(&one, &["session", "rekey", "last", "on", "--yes", "--dht=false"]).await;
    says(&rekeyed, &["session backup"]);
    let listed = fixture.json(&one, &["session", "list"]).await;
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!((sessions.len(), sessions[0]["title"].as_str()), (1, Some("Ours")), "{listed}");
    let new = sessions[0]["session"].as_str().unwrap();
    assert_ne!(new, old);
    let (said, turns) = shown(&fixture, &one).await;
    assert_eq!(said, ["hello"], "{turns}");
    assert_eq!(turns["turns"][0]["messages"][2]["text"], "on", "{turns}");

    // The stolen device knows the old session alone, which is deleted.
    let refused = fixture.baton(&stolen, &["chat", "-s", &old, "mine", "--dht=false"], "").await;
    ends(&refused, 7, &["deleted on another device"]);
    fixture.ends(&stolen, &["chat", "-s", new, "mine", "--dht=false"], 7, &[]).await;
    let thief = fixture.folder.path().join("thief");
    let again = fixture.baton(&thief, &["session", "restore", "--dht=false"], &words).await;
    assert_ne!(code(&again), 0, "its words restore nothing");
    // The owner's other devices restore the new words and go on.
    fixture.ok(&one, &["session", "backup", "last", "--out", "new"]).await;
    let words = std::fs::read_to_string(fixture.folder.path().join("new")).unwrap();
    let two = fixture.folder.path().join("two");
    assert_eq!(code(&fixture.baton(&two, &["session", "restore", "--dht=false"], &words).await), 0);
    fixture.ok(&two, &["chat", "-s", "last", "and on", "--dht=false"]).await;
}
