//! `baton serve keys`: keys with names, as their owner manages them.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

use serde_json::Value;

use crate::command::{code, err, out, program};

/// Standard output, standard error and exit code of `baton serve` with this home.
fn serve(home: &Path, arguments: &[&str]) -> (String, String, i32) {
    let mut command = program();
    let output = command.env("HOME", home).arg("serve").args(arguments).arg("--home").arg(home).output();
    let output = output.unwrap();
    (out(&output), err(&output), code(&output))
}

fn baton(home: &Path, arguments: &[&str]) -> (String, String, i32) {
    serve(home, &[&["keys"], arguments].concat())
}

fn json(home: &Path, arguments: &[&str]) -> Value {
    let (out, err, code) = baton(home, &[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn keys_are_added_listed_changed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let (out, err, code) = baton(&home, &[]);
    assert_eq!((out.as_str(), code), ("", 0), "{err}");
    assert!(err.contains("baton serve keys add anna"), "{err}");

    let add = ["add", "anna", "--tokens-per-day", "50_000", "--requests-per-hour", "60", "--expires", "90d"];
    let (out, err, code) = baton(&home, &add);
    assert_eq!(code, 0, "{err}");
    let key = out.trim();
    assert!(key.starts_with("sk-baton-") && key.len() == 73, "the key alone is the output");
    assert!(err.contains("makes 60 requests an hour, uses 50000 tokens a day and ends on 20"), "{err}");
    let (out, _, _) = baton(&home, &["change", "anna", "--requests-per-hour", "1"]);
    assert!(out.contains("makes 1 request an hour"), "{out}");
    baton(&home, &["change", "anna", "--requests-per-hour", "60"]);
    let added = json(&home, &["add", "tablet", "--project", "anna", "--memory", "on"]);
    assert!(added["key"].as_str().unwrap().starts_with("sk-baton-"));
    assert_eq!((&added["project"], &added["memory"]), (&"anna".into(), &true.into()));

    let (out, _, _) = baton(&home, &[]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("NAME") && lines[1].starts_with("anna") && lines[2].starts_with("tablet"),
        "{out}"
    );
    assert!(lines[1].contains("0 of 60") && lines[1].contains("0 of 50000"), "{out}");
    assert!(!out.contains("sk-baton-"));

    let (out, err, code) =
        baton(&home, &["change", "anna", "--tokens-per-day", "none", "--expires", "2031-01-31"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("ends on 2031-01-31") && !out.contains("tokens a day"), "{out}");
    let shown = json(&home, &["anna"]);
    assert_eq!((&shown["tokens_per_day"], &shown["requests_per_hour"]), (&Value::Null, &60.into()));
    assert_eq!(shown["expires"], "2031-01-31T00:00:00Z");

    assert_eq!(baton(&home, &["remove", "anna"]).2, 0);
    let names: Vec<Value> =
        json(&home, &[])["keys"].as_array().unwrap().iter().map(|key| key["name"].clone()).collect();
    assert_eq!(names, ["tablet"]);
}

#[test]
fn mistakes_name_their_cause_and_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    assert_eq!(baton(home, &["add", "anna"]).2, 0);
    for (arguments, said) in [
        (&["add", "anna"][..], "a key is named \"anna\" already"),
        (&["add", "a b"], "is no name"),
        (&["add", "ben", "--project", "a/b"], "is no name"),
        (&["remove", "ben"], "no key is named \"ben\"; known: anna"),
        (&["ben"], "baton serve keys lists them"),
        (&["change", "anna"], "no option says what to change"),
        (&["add", "ben", "--tokens-per-day", "0"], "or none for no limit"),
        (&["add", "ben", "--expires", "soon"], "a date such as 2027-01-31"),
        (&["add", "ben", "--expires", "2026-01-31"], "--expires 2026-01-31 is in the past"),
        (&["change", "anna", "--expires", "2026-01-31"], "baton serve keys remove"),
    ] {
        let (_, err, code) = baton(home, arguments);
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(said), "{arguments:?}: {err}");
    }
    std::fs::write(home.join("serve.keys.json"), "{").unwrap();
    let (_, err, code) = baton(home, &[]);
    assert!(code == 2 && err.contains("is not a list of keys"), "{err}");
}

#[test]
fn the_link_of_the_page_is_printed_again_and_with_each_new_key() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let (_, err, code) = serve(home, &["--link"]);
    assert!(code == 2 && err.contains("start it: baton serve"), "{err}");
    let (out, err, code) = baton(home, &["add", "early"]);
    assert!(code == 0 && out.trim().len() == 73 && err.contains("Once baton serve has run"), "{err}");
    assert_eq!(json(home, &["add", "early2"])["link"], Value::Null);

    // An endpoint without a terminal, as under systemd.
    let mut server = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--allow-host", "chat.example", "--json"])
        .args(["--node", "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"])
        .arg("--home")
        .arg(home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(ready.contains("\"event\":\"ready\""), "{ready}");

    let key = std::fs::read_to_string(home.join("serve.key")).unwrap();
    let expected = format!("https://chat.example/#key={}", key.trim());
    let (out, err, code) = serve(home, &["--link"]);
    assert_eq!((out.trim(), code), (expected.as_str(), 0), "{err}");
    assert!(!err.contains('█'), "a code is for a terminal: {err}");
    let (out, _, _) = serve(home, &["--link", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["link"], expected.as_str());
    let (out, err, code) = baton(home, &["add", "anna"]);
    assert_eq!(code, 0, "{err}");
    assert!(!err.contains(out.trim()), "a key is shown to a terminal alone, or on standard output: {err}");
    let added = json(home, &["add", "ben"]);
    assert_eq!(added["link"], format!("https://chat.example/#key={}", added["key"].as_str().unwrap()));
}

#[test]
fn a_certificate_that_cannot_be_used_or_plain_http_for_other_machines_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.pem");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, parts) in [
        (&["--listen", "0.0.0.0:0"][..], ["--tls-cert", "--insecure"]),
        (&["--tls-cert", file, "--tls-key", file], ["no certificate", "in PEM form"]),
        (&["--tls-cert", file], ["--tls-key", "required"]),
    ] {
        let (_, err, code) = serve(folder.path(), arguments);
        assert!(code == 2 && parts.iter().all(|part| err.contains(part)), "{arguments:?}: {err}");
    }
}
