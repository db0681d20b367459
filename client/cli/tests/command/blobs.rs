//! `baton blob` and the reports on lifetimes, as processes against a store over HTTP.

use std::fs;

use baton_walrus_client::{QuiltPatch, ShardCount, blob_id, quilt};

use crate::command::{Fixture, code, err, last, out};

const NOBODY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[seed; 32]).finalize_xof().fill(&mut bytes);
    bytes
}

fn id(bytes: &[u8]) -> String {
    blob_id(bytes, ShardCount::TESTBED).unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_stored_found_fetched_and_verified() {
    let (fixture, content) = (Fixture::new().await, bytes(1, 300_000));
    let home = fixture.home();
    fs::write(fixture.folder.path().join("a"), &content).unwrap();
    fs::write(fixture.folder.path().join("b"), b"other").unwrap();
    let baton = async |arguments: &[&str], stdin: &str| fixture.baton(&home, arguments, stdin).await;
    let expected = id(&content);

    let offline = baton(&["blob", "id", "a"], "").await;
    assert_eq!((code(&offline), out(&offline)), (0, format!("{expected}\n")), "the ID alone");
    assert_eq!(out(&baton(&["blob", "id", "-"], "other").await), format!("{}\n", id(b"other")));
    let two = baton(&["blob", "id", "a", "b"], "").await;
    assert_eq!(out(&two), format!("{expected}  a\n{}  b\n", id(b"other")));

    assert_eq!(code(&baton(&["blob", "get", &expected], "").await), 6, "not stored yet");
    let put = last(&baton(&["blob", "put", "a", "--epochs", "3", "--json"], "").await);
    assert_eq!((put["blob_id"].as_str(), put["how"].as_str()), (Some(expected.as_str()), Some("created")));
    assert_eq!((put["size"].as_u64(), put["end_epoch"].as_u64()), (Some(300_000), Some(4)));

    let got = baton(&["blob", "get", &expected, "--out", "c"], "").await;
    assert_eq!(code(&got), 0, "{}", err(&got));
    assert_eq!(fs::read(fixture.folder.path().join("c")).unwrap(), content);
    assert_eq!(baton(&["blob", "get", &expected], "").await.stdout, content, "to a pipe");
    let part = baton(&["blob", "get", &expected, "--range", "10-19"], "").await;
    assert_eq!(part.stdout, &content[10..20]);
    let object = put["object"].as_str().unwrap();
    assert_eq!(baton(&["blob", "get", object, "--object"], "").await.stdout, content);
    let hash = blake3::hash(&content).to_hex().to_string();
    assert_eq!(baton(&["blob", "get", &expected, "--blake3", &hash], "").await.stdout, content);
    let wrong = baton(&["blob", "get", &expected, "--blake3", &"00".repeat(32), "--out", "d"], "").await;
    assert_eq!(code(&wrong), 5, "{}", err(&wrong));
    assert!(!fixture.folder.path().join("d").exists(), "what does not verify leaves nothing behind");

    assert_eq!(code(&baton(&["blob", "verify", &expected], "").await), 0);
    assert_eq!(code(&baton(&["blob", "verify", &expected, "a"], "").await), 0);
    assert_eq!(code(&baton(&["blob", "verify", &expected, "b"], "").await), 5);
    assert_eq!(code(&baton(&["blob", "verify", NOBODY], "").await), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_is_told_with_its_end_and_renewed() {
    let fixture = Fixture::new().await;
    let home = fixture.home();
    fs::write(fixture.folder.path().join("a"), b"kept").unwrap();
    let baton = async |arguments: &[&str]| fixture.baton(&home, arguments, "").await;
    let id = id(b"kept");
    assert!(err(&baton(&["blob", "stat"]).await).contains("nothing was stored"));
    assert_eq!(code(&baton(&["blob", "show", &id]).await), 6);
    assert_eq!(code(&baton(&["blob", "renew", &id]).await), 2, "not in the book");
    assert_eq!(code(&baton(&["blob", "put", "a", "--epochs", "1"]).await), 0);

    let stat = last(&baton(&["blob", "show", &id, "--json"]).await);
    assert_eq!((stat["stored"].as_bool(), stat["size"].as_u64()), (Some(true), Some(4)));
    assert_eq!(stat["kept"]["end_epoch"], 2);
    let renewed = last(&baton(&["blob", "renew", "--epochs", "9", "--json"]).await);
    assert_eq!(
        (renewed["blob_id"].as_str(), &renewed["ended"]["end_epoch"]),
        (Some(id.as_str()), &10.into())
    );
    let all = last(&baton(&["blob", "show", "--json"]).await);
    assert_eq!((&all["blobs"][0]["end_epoch"], all["bytes"].as_u64()), (&10.into(), Some(4)));
    let nothing = baton(&["blob", "renew"]).await;
    assert!(code(&nothing) == 0 && err(&nothing).contains("nothing is due"), "{}", err(&nothing));
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::metadata(home.join("blobs.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quilt_is_stored_listed_and_read_in_parts() {
    let fixture = Fixture::new().await;
    let home = fixture.home();
    for name in ["one.txt", "two.txt"] {
        fs::write(fixture.folder.path().join(name), name).unwrap();
    }
    let baton = async |arguments: &[&str]| fixture.baton(&home, arguments, "").await;
    let patch = |name: &'static str, tags: &[(&str, &str)]| QuiltPatch {
        identifier: name,
        tags: tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        data: name.as_bytes(),
    };
    let patches = [patch("one.txt", &[("kind", "note")]), patch("two.txt", &[])];
    let expected = quilt::encode(&patches, ShardCount::TESTBED).unwrap();
    let quilt_id = blob_id(&expected.bytes, ShardCount::TESTBED).unwrap();
    let ids: Vec<_> = expected.index.entries.iter().map(|entry| entry.id(quilt_id).to_string()).collect();

    let files = ["one.txt", "two.txt", "--tag", "one.txt:kind=note"];
    let offline = baton(&[&["blob", "quilt", "id"], &files[..]].concat()).await;
    let lines = format!("{quilt_id}\n{}  one.txt\n{}  two.txt\n", ids[0], ids[1]);
    assert_eq!(out(&offline), lines);
    assert_eq!(out(&baton(&[&["blob", "quilt", "put"], &files[..]].concat()).await), lines);
    let quilt = quilt_id.to_string();
    for trust in [&[][..], &["--unverified"]] {
        let list = baton(&[&["blob", "quilt", "list", &quilt], trust].concat()).await;
        assert_eq!(out(&list), format!("{}  one.txt  kind=note\n{}  two.txt\n", ids[0], ids[1]));
        let named = baton(&[&["blob", "quilt", "get", &quilt, "two.txt"], trust].concat()).await;
        assert_eq!(out(&named), "two.txt", "{}", err(&named));
        assert_eq!(out(&baton(&[&["blob", "quilt", "get", &ids[0]], trust].concat()).await), "one.txt");
    }
    assert_eq!(code(&baton(&["blob", "quilt", "get", &quilt, "three.txt"]).await), 6);
    assert_eq!(code(&baton(&["blob", "quilt", "get", &quilt]).await), 2, "a patch or a name is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_told_before_anything_is_sent() {
    let fixture = Fixture::new().await;
    let home = fixture.home();
    for arguments in [
        &["blob", "get", "short"][..],
        &["blob", "get", NOBODY, "--range", "9-5"],
        &["blob", "get", NOBODY, "--sha256", "zz"],
        &["blob", "get", NOBODY, "--object"],
        &["blob", "put", ".", "--epochs", "1"],
        &["blob", "put", "none", "--epochs", "54"],
        &["blob", "put", "none", "--send-to", "0x1"],
        &["blob", "quilt", "id", "none", "--tag", "x"],
    ] {
        let refused = fixture.baton(&home, arguments, "").await;
        let expected = if arguments.contains(&"x") { 8 } else { 2 };
        assert_eq!(code(&refused), expected, "{arguments:?}: {}", err(&refused));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_until_when_it_is_kept_and_is_renewed_on_request() {
    let fixture = Fixture::new().await;
    let home = fixture.home();
    let said = fixture.baton(&home, &["chat", "--message", "hello"], "").await;
    assert_eq!(code(&said), 0, "{}", err(&said));
    let list = last(&fixture.baton(&home, &["session", "list", "--json"], "").await);
    let until = list["sessions"][0]["kept_until_ms"].as_u64().unwrap();
    let shown = fixture.baton(&home, &["session", "storage", "last"], "").await;
    assert!(out(&shown).contains("kept for 55 more days"), "{}", out(&shown));
    let not_due = last(&fixture.baton(&home, &["session", "renew", "--json"], "").await);
    assert_eq!(
        (&not_due["renewed"], not_due["kept_until_ms"].as_u64()),
        (&serde_json::json!([]), Some(until))
    );
    let far = ["session", "renew", "last", "--within-days", "365", "--json"];
    let renewed = last(&fixture.baton(&home, &far, "").await);
    assert_eq!(renewed["renewed"], serde_json::json!([0]));
    assert!(renewed["kept_until_ms"].as_u64().unwrap() > until);
}
