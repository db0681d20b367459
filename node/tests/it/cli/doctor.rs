//! `baton-node doctor`: each test causes a problem and expects its code.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use serde_json::Value;

use crate::{
    cli::harness::{model_file, store::Store},
    process::{Node, baton_node, failure, json, output, text},
    small,
};

const SHARDS: u16 = 10;

/// The findings: exit code, the `CODE` of each unfixed finding, and the whole report.
fn doctor(home: &Path, words: &[&str]) -> (i32, String, Value) {
    let words = [&["doctor", "--json"], words].concat();
    let output = output(home, &words);
    let all: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let findings =
        all["checks"].as_array().unwrap().iter().flat_map(|check| check["findings"].as_array().unwrap());
    let open = findings.filter(|finding| finding["fixed"] == false);
    let codes = open.map(|finding| finding["code"].as_str().unwrap()).collect::<Vec<_>>().join(" ");
    let code = output.status.code().unwrap();
    assert_eq!(all["ok"] == true, code == 0, "{all}");
    (code, codes, all)
}

/// A standalone node: no model, no peers, ports chosen by the system.
const ALONE: [&str; 8] =
    ["--engine", "echo", "--mdns", "false", "--listen", "/ip4/127.0.0.1/tcp/0", "--admin", "127.0.0.1:0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_node_with_store_and_peers_has_no_problem() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::start(home.path(), SHARDS).await;
    let mut peer = Node::start(other.path(), &[]);
    let bootstrap = peer.ready["listen"][0].as_str().unwrap().to_owned();
    let same = ["--engine", "echo", "--mdns", "false", "--listen", "/ip4/127.0.0.1/tcp/0", "--shards", "10"];
    let same = [&same[..], &["--publisher", &store.url, "--bootstrap", &bootstrap]].concat();
    let run = [&["run", "--json", "--admin", "127.0.0.1:0"], &same[..]].concat();
    let mut node = Node::spawn(&mut baton_node(home.path(), &run));
    // Its first probe of the store may be unfinished.
    let began = std::time::Instant::now();
    while !output(home.path(), &["status", "--admin", node.admin()]).status.success() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "the node does not get ready");
    }
    let ask = [&same[..], &["--admin", node.admin()]].concat();
    let (code, codes, all) = doctor(home.path(), &ask);
    assert_eq!(code, 0, "{all}");
    // The findings of every test node: the echo engine, this machine only.
    assert_eq!(codes, "D409 D603", "{all}");
    let seen = all["checks"].to_string();
    for part in [
        "answers in",
        "head index",
        "is the running node's",
        "within",
        "exchange key good until",
        "1 connected",
        &format!("{bootstrap} answers"),
    ] {
        assert!(seen.contains(part), "{part} is not in {seen}");
    }
    let said = text(&output(home.path(), &[&["doctor"], &ask[..]].concat()).stdout);
    assert!(said.ends_with("No problem.\n") && !said.contains('\x1b'), "{said}");
    node.stop();
    peer.stop();
}

#[test]
fn keys_and_folders_that_others_can_read_are_found_and_fixed() {
    let home = tempfile::tempdir().unwrap();
    let words = [&ALONE[..], &["--offline"]].concat();
    assert_eq!(doctor(home.path(), &words).1, "D102 D409 D603 D803");
    output(home.path(), &["init"]);
    let folder = home.path().join(".local/share/baton-node");
    let (code, codes, _) = doctor(home.path(), &words);
    assert_eq!((code, codes.as_str()), (0, "D409 D603 D803"));

    let key = folder.join("node.key");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(folder.join("exchange.keys"), "damaged").unwrap();
    fs::set_permissions(folder.join("exchange.keys"), fs::Permissions::from_mode(0o600)).unwrap();
    let (code, codes, _) = doctor(home.path(), &words);
    assert_eq!((code, codes.as_str()), (1, "D103 D105 D107 D409 D603 D803"));
    let (_, codes, all) = doctor(home.path(), &[&words[..], &["--fix"]].concat());
    assert_eq!(codes, "D107 D409 D603 D803", "{all}");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(output(home.path(), &["keys", "rotate"]).status.success());
    assert_eq!(doctor(home.path(), &words).0, 0);

    fs::write(&key, "nonsense").unwrap();
    assert!(doctor(home.path(), &words).1.contains("D106"));
    fs::remove_file(&key).unwrap();
    assert!(doctor(home.path(), &words).1.contains("D104"));
}

#[test]
fn ports_of_others_and_a_node_that_cannot_be_asked_are_found() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    output(home.path(), &["init"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (listen, admin) = (format!("/ip4/127.0.0.1/tcp/{port}"), format!("127.0.0.1:{port}"));
    let engine = ["--offline", "--engine", "echo", "--mdns", "false"];
    let found = |words: &[&str]| doctor(home.path(), &[&engine[..], words].concat()).1;
    assert!(found(&["--listen", &listen, "--admin", "none"]).contains("D501"));
    let far = ["--listen", "/ip4/203.0.113.9/tcp/4001", "--admin", "none"];
    assert!(found(&far).contains("D502"));
    drop(taken);

    // Another node has the admin port.
    let other_node = Node::start(other.path(), &[]);
    let codes = found(&["--listen", "/ip4/127.0.0.1/tcp/0", "--admin", other_node.admin()]);
    assert!(codes.contains("D504"), "{codes:?}");
    // Our own node runs, but at another admin address.
    let node = Node::start(home.path(), &[]);
    let codes = found(&["--listen", "/ip4/127.0.0.1/tcp/0", "--admin", &admin]);
    assert!(codes.contains("D505"), "{codes:?}");
    // Its options came by flags; without its address, the doctor finds it by the data directory.
    let codes = doctor(home.path(), &["--offline"]).1;
    assert!(!["D503", "D504", "D505"].iter().any(|code| codes.contains(code)), "{codes}");
    // It is not ready, since no store answers. It also misses a configured listen address.
    let codes = found(&["--listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--admin", node.admin()]);
    assert!(codes.contains("D503") && codes.contains("D901"), "{codes:?}");
}

#[test]
fn models_that_are_missing_damaged_or_unreadable_are_found() {
    let home = tempfile::tempdir().unwrap();
    let models = home.path().join("models");
    fs::create_dir(&models).unwrap();
    let found = |words: &[&str]| {
        let words = [&["--offline", "--model-dir", models.to_str().unwrap()], words].concat();
        doctor(home.path(), &words)
    };
    fs::write(models.join("general.gguf"), small::model("phi3").finish()).unwrap();
    let all = found(&["--model", "general"]).2["checks"].to_string();
    assert!(all.contains("general is computed by a general library"), "{all}");
    fs::write(models.join("other.gguf"), model_file::model()).unwrap();
    let all = found(&["--model", "other"]).2["checks"].to_string();
    assert!(all.contains("other, a file of your own") && !all.contains("library"), "{all}");
    let found = |words: &[&str]| found(words).1;
    assert!(found(&[]).contains("D402"));
    assert!(found(&["--model", "mine"]).contains("D401"));
    fs::write(models.join("mine.gguf"), "not a model").unwrap();
    assert!(found(&["--model", "mine"]).contains("D405"));
    let both = ["--model", "other", "--more-models", "mine,none", "--model-memory-mb"];
    let codes = found(&[&both[..], &["100"]].concat());
    assert!(["D401", "D405", "D410"].iter().all(|code| codes.contains(code)), "{codes}");
    let codes = found(&[&both[..], &["2000"]].concat());
    assert!(codes.contains("D401") && !codes.contains("D410"), "{codes:?}");
    let file = models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::write(&file, "half").unwrap();
    assert!(found(&[]).contains("D403"));
    // The right size, but only zeros.
    fs::File::create(&file).unwrap().set_len(98_362_432).unwrap();
    assert!(found(&[]).contains("D403"));
}

/// A server that answers every request with `head`.
fn answering(head: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn stores_that_are_silent_failing_or_of_another_time_are_found() {
    let home = tempfile::tempdir().unwrap();
    output(home.path(), &["init"]);
    let past = answering("404 Not Found\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT");
    let failing = answering("503 Service Unavailable");
    let found = |words: &[&str]| doctor(home.path(), &[&ALONE[..], words].concat()).1;
    let of_the_store = |words: &[&str]| {
        let codes = found(words);
        let of_it = codes.split(' ').filter(|code| code.starts_with("D7") || code.starts_with("D2"));
        of_it.collect::<Vec<_>>().join(" ")
    };
    // One server that is silent is one problem, whatever it is used for.
    assert_eq!(of_the_store(&["--publisher", "http://127.0.0.1:9"]), "D204 D709");
    let apart = ["--publisher", "http://127.0.0.1:9", "--aggregator", "http://127.0.0.1:10", "--heads"];
    let apart = [&apart[..], &["http://127.0.0.1:11"]].concat();
    assert_eq!(of_the_store(&apart), "D204 D702 D701 D704");
    let codes = found(&["--publisher", &past]);
    assert!(codes.contains("D201") && codes.contains("D705"), "{codes:?}");
    assert!(!codes.contains("D701"), "{codes:?}");
    let codes = found(&["--publisher", &past, "--aggregator", &failing, "--heads", "none"]);
    assert!(codes.contains("D701") && !codes.contains("D702"), "{codes:?}");
    let codes = found(&["--publisher", &past, "--publisher-token-file", "/nowhere/token"]);
    assert!(codes.contains("D706"), "{codes:?}");
    let proxied = |url: &str| {
        let words = ["--engine", "proxied", "--proxied-model", "m", "--heads", "none", "--proxied-url", url];
        doctor(home.path(), &words).1
    };
    assert!(proxied("http://127.0.0.1:9").contains("D406"));
    assert!(proxied(&failing).contains("D406"));
    assert!(proxied(&answering("401 Unauthorized")).contains("D407"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_refuses_the_nodes_blobs_is_found_and_its_secret_is_the_fix() {
    const SECRET: &[u8] = b"a secret of more than 32 bytes, for tests";
    let home = tempfile::tempdir().unwrap();
    output(home.path(), &["init"]);
    let store = Store::with_secret(home.path(), SHARDS, Some(SECRET)).await;
    let file = home.path().join("secret");
    fs::write(&file, SECRET).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let open = [&ALONE[..], &["--publisher", &store.url, "--shards", "10"]].concat();
    let (code, codes, all) = doctor(home.path(), &open);
    assert!(code == 1 && codes.contains("D707"), "{all}");
    assert!(all.to_string().contains("publisher_secret_file"), "{all}");
    let wrong = home.path().join("wrong");
    fs::write(&wrong, [b'x'; 40]).unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).unwrap();
    let with = |file: &Path| {
        let secret = ["--publisher-secret-file", file.to_str().unwrap()];
        doctor(home.path(), &[&open[..], &secret].concat())
    };
    assert!(with(&wrong).1.contains("D707"), "another secret");
    let (_, codes, all) = with(&file);
    assert!(!codes.contains("D707"), "{all}");
    assert!(all.to_string().contains("accepts blobs from here"), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_shards_than_the_stores_is_found() {
    let home = tempfile::tempdir().unwrap();
    output(home.path(), &["init"]);
    let store = Store::with_secret(home.path(), SHARDS, None).await;
    let asked = |shards: &str| {
        doctor(home.path(), &[&ALONE[..], &["--publisher", &store.url, "--shards", shards]].concat())
    };
    let (code, codes, all) = asked("1000");
    assert!(code == 1 && codes.contains("D708"), "{all}");
    assert!(all.to_string().contains("has 10, these settings 1000"), "{all}");
    let (_, codes, all) = asked("10");
    assert!(!codes.contains("D708"), "{all}");
    let (_, codes, all) = doctor(home.path(), &[&ALONE[..], &["--publisher", &store.url]].concat());
    assert!(!codes.contains("D708"), "the store's number counts: {all}");
    // A node does not start with a store that would keep nothing of it.
    let words = ["run", "--engine", "echo", "--publisher", &store.url, "--listen", "/ip4/127.0.0.1/tcp/0"];
    let (code, said) = failure(&mut baton_node(home.path(), &[&words[..], &["--shards", "1000"]].concat()));
    assert!(
        code == 2 && said.contains("has 10 shards, and the settings have 1000; set shards = 10"),
        "{said}"
    );
}

#[test]
fn bootstrap_peers_that_are_silent_or_somebody_else_are_found() {
    let (home, other, third) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    output(home.path(), &["init"]);
    let peer = Node::start(other.path(), &[]);
    let good = peer.ready["listen"][0].as_str().unwrap();
    let (place, name) = good.rsplit_once("/p2p/").unwrap();
    let somebody = json(third.path(), &["init", "--json"]);
    let wrong = format!("{place}/p2p/{}", somebody["peer_id"].as_str().unwrap());
    let silent = format!("/ip4/127.0.0.1/tcp/9/p2p/{name}");
    let found = |bootstrap: &str| {
        let words = ["--heads", "none", "--publisher", "http://127.0.0.1:9", "--bootstrap", bootstrap];
        let codes = doctor(home.path(), &[&ALONE[..], &words].concat()).1;
        codes.split(' ').filter(|code| code.starts_with("D8")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(good), "");
    assert_eq!(found(place), "D805");
    assert_eq!(found(&wrong), "D802 D806");
    assert_eq!(found(&silent), "D801 D806");
    assert_eq!(found(&format!("{good},{silent},{wrong}")), "D801 D802");
}

#[test]
fn all_problems_of_a_configuration_are_reported() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("node.toml");
    fs::write(&file, "slotts = 1\ncache_mb = \"x\"\n").unwrap();
    let (code, codes, all) = doctor(home.path(), &["--config", file.to_str().unwrap()]);
    assert_eq!((code, codes.as_str()), (1, "D101 D101"), "{all}");
    let (code, codes, all) = doctor(home.path(), &["--config", "/nowhere/node.toml"]);
    assert_eq!((code, codes.as_str()), (1, "D101"), "{all}");
    // The flags conflict, although no file contains them.
    let (code, codes, _) = doctor(home.path(), &["--engine", "proxied"]);
    assert_eq!((code, codes.as_str()), (1, "D101"));
}
