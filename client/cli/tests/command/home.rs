//! The `baton` command on a home folder: its passphrase, its damaged journals, and a session that was left
//! midway.

use std::fs;

use baton_proto::ErrorCode;

use baton_client::testkit::fake::Act;

use crate::command::{Fixture, code, err, last, out, says, shows};

#[tokio::test(flavor = "multi_thread")]
async fn a_passphrase_is_set_changed_and_removed_and_never_ignored() {
    let (fixture, home) = Fixture::with_home().await;
    let write = |name: &str, text: &str| {
        let path = fixture.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (one, two) = (write("one", "correct horse\n"), write("two", "battery staple\n"));
    fixture.ok(&home, &["chat", "--message", "hello"]).await;

    fixture.ends(&home, &["session", "list", "--passphrase-file", &one], 8, &["baton passphrase"]).await;
    fixture.ends(&home, &["passphrase"], 2, &[]).await;

    // Also with the flag given: a user's environment may always give it.
    let set = ["passphrase", "--new-file", &one, "--passphrase-file", &one];
    fixture.ok(&home, &set).await;
    fixture.ends(&home, &["session", "list"], 8, &[]).await;
    let show = ["session", "show", "last", "--passphrase-file", &one];
    assert_eq!(out(&fixture.baton(&home, &show, "").await), "you: hello\nmodel: hello (0)\n");

    let wrong = ["passphrase", "--new-file", &two, "--passphrase-file", &two];
    fixture.ends(&home, &wrong, 8, &[]).await;
    let change = ["passphrase", "--new-file", &two, "--passphrase-file", &one];
    fixture.ok(&home, &change).await;
    assert_eq!(code(&fixture.baton(&home, &show, "").await), 8, "the old one opens nothing");

    let remove = ["passphrase", "--remove", "--passphrase-file", &two];
    fixture.ok(&home, &remove).await;
    let shown = fixture.baton(&home, &["session", "show", "last"], "").await;
    assert_eq!(out(&shown), "you: hello\nmodel: hello (0)\n");
    let names: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        names.len(),
        3,
        "the key, the sessions, what is known of nodes, and nothing left over: {names:?}"
    );

    // Before the first conversation: the command creates the key, protected by the passphrase from the start.
    let fresh = fixture.folder.path().join("fresh");
    fixture.ok(&fresh, &["passphrase", "--new-file", &one]).await;
    fixture.ends(&fresh, &["session", "list"], 8, &[]).await;
    let list = ["session", "list", "--passphrase-file", &one];
    fixture.ok(&fresh, &list).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_is_said_backed_up_and_restored_by_its_id() {
    let (fixture, home) = Fixture::with_home().await;
    let told = fixture.baton(&home, &["chat", "--message", "hello", "--json"], "").await;
    let id = last(&told)["session"].as_str().unwrap().to_owned();
    let journal = fs::read_dir(home.join("sessions")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&journal).unwrap();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    fs::write(&journal, bytes).unwrap();

    let listed = fixture.ok(&home, &["session", "list"]).await;
    shows(&listed, &[&id[..8], "cannot be read"]);
    says(&listed, &["damaged", "restore SESSION"]);
    let json = fixture.json(&home, &["session", "list"]).await;
    assert_eq!(json["unreadable"][0]["session"], *id);
    let show = fixture.baton(&home, &["session", "show", &id[..8]], "").await;
    assert_eq!(code(&show), 8, "named, and not unknown: {}", err(&show));
    fixture.ok(&home, &["session", "backup", &id, "--out", "words.txt"]).await;
    fixture.ok(&home, &["session", "restore", &id[..8]]).await;
    let shown = fixture.baton(&home, &["session", "show", "last"], "").await;
    assert_eq!(out(&shown), "you: hello\nmodel: hello (0)\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn system_text_does_not_lock_out_of_a_session_with_an_unanswered_message() {
    let (fixture, home) = Fixture::with_home().await;
    let leave_pending = || async {
        fixture.node.script([Act::Refuse(ErrorCode::Internal); 6]);
        fixture.ends(&home, &["chat", "last", "--message", "lost"], 4, &[]).await;
        fixture.node.clear_script();
    };
    fixture.ok(&home, &["chat", "--message", "hello"]).await;
    leave_pending().await;
    let with_system = ["chat", "last", "--system", "s: ", "--message"];
    let resumed = fixture.ok(&home, &[&with_system[..], &["on"]].concat()).await;
    assert_eq!(out(&resumed), "s: lost (1)\ns: on (2)\n", "{}", err(&resumed));
    leave_pending().await;
    let dropped = fixture.baton(&home, &[&with_system[..], &["t", "--drop-pending"]].concat(), "").await;
    assert_eq!((code(&dropped), out(&dropped).as_str()), (0, "s: t (3)\n"), "{}", err(&dropped));
    leave_pending().await;
    let prompt = fixture.baton(&home, &["chat", "last", "--system", "u: "], "next\n").await;
    assert_eq!((code(&prompt), out(&prompt).as_str()), (0, "u: lost (4)\nu: next (5)\n"), "{}", err(&prompt));
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_says_what_the_store_lacks_and_fixes_it() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "--message", "hello"]).await;
    fixture.ok(&home, &["session", "verify", "last"]).await;

    // Another store, which has none of its blobs.
    let empty = Fixture::new().await;
    let lacking = empty.baton(&home, &["session", "verify", "last"], "").await;
    let text = err(&lacking);
    assert_ne!(code(&lacking), 0);
    assert!(!text.contains("✓") && text.contains("1 of 1 stored copies cannot be read"), "{text}");
    let json = empty.baton(&home, &["session", "verify", "last", "--json"], "").await;
    let report: serde_json::Value = serde_json::from_str(out(&json).lines().next().unwrap()).unwrap();
    assert_eq!((report["stored"].as_bool(), report["from_own"].as_u64()), (Some(false), Some(1)));
    let fixed = empty.baton(&home, &["session", "verify", "last", "--fix"], "").await;
    says(&fixed, &["Restored to the store: 1 of 1", "✓ 1 turn verified"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_without_the_index_is_reported() {
    let (fixture, home) = Fixture::with_home().await;
    fixture.ok(&home, &["chat", "--message", "hello"]).await;
    // The command may not publish to the nodes' DHT either.
    let deaf = ["session", "delete", "last", "--yes", "--dht=false", "--heads", "http://127.0.0.1:9"];
    fixture.ends(&home, &deaf, 6, &["The head index was not informed"]).await;
    let listed = fixture.json(&home, &["session", "list"]).await;
    assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(0));
}
