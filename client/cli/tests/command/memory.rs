//! `baton account` and `baton memory`, against a relayer's HTTP endpoint that checks every signature.

use std::path::Path;

use baton_keys::{
    SecretSigningKey,
    account::{RequestParts, account_id, body_sha256, sign_relayer_url, verify_request},
    ids::PublicKey,
    token::AgentToken,
};
use baton_proto::right::RightChain;
use serde_json::{Value, json};
use tempfile::TempDir;
use wiremock::{
    Match, Mock, MockServer, Request, ResponseTemplate,
    matchers::{body_json, method, path},
};

use crate::command::{code, ends, err, last, out, run, says};

/// Matches a request with a valid signature of its account.
struct ValidSignature;

impl Match for ValidSignature {
    fn matches(&self, request: &Request) -> bool {
        // The question for the relayer's key is not signed.
        if request.headers.get("x-signature").is_none() {
            return false;
        }
        let header = |name: &str| request.headers.get(name).unwrap().to_str().unwrap();
        let query = request.url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let parts = RequestParts {
            timestamp: header("x-timestamp"),
            method: request.method.as_str(),
            path_and_query: &format!("{}{query}", request.url.path()),
            body_sha256: &body_sha256(&request.body),
            nonce: header("x-nonce"),
            account_id: header("x-account-id"),
        };
        let key = PublicKey::parse_hex(header("x-public-key")).unwrap();
        let mut signature = [0; 64];
        hex::decode_to_slice(header("x-signature"), &mut signature).unwrap();
        account_id(&key) == parts.account_id && verify_request(&key, &parts, &signature).is_ok()
    }
}

async fn baton(folder: &Path, arguments: &[&str], stdin: &str) -> std::process::Output {
    let home = folder.join("home").display().to_string();
    let all: Vec<String> = arguments.iter().chain(&["--home", &home]).map(ToString::to_string).collect();
    let (folder, stdin) = (folder.to_owned(), stdin.to_owned());
    tokio::task::spawn_blocking(move || run(&folder, &all, &stdin)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_made_shown_backed_up_and_restored_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let none = baton(folder.path(), &["account"], "").await;
    ends(&none, 2, &["baton account new"]);
    let made = last(&baton(folder.path(), &["account", "new", "--json"], "").await);
    assert!(made["account"].as_str().unwrap().starts_with("0x"));
    assert_eq!(code(&baton(folder.path(), &["account", "new"], "").await), 2, "there is one");
    let shown = out(&baton(folder.path(), &["account"], "").await);
    assert!(shown.contains(made["account"].as_str().unwrap()), "{shown}");
    assert_eq!(
        code(&baton(folder.path(), &["account", "backup"], "").await),
        2,
        "words do not go into a pipe"
    );
    assert_eq!(code(&baton(folder.path(), &["account", "backup", "--out", "words"], "").await), 0);
    let words = std::fs::read_to_string(folder.path().join("words")).unwrap();
    assert_eq!(words.split_whitespace().count(), 24);

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("passphrase"), "correct horse\n").unwrap();
    let account = other.path().join("my.key").display().to_string();
    let restored =
        baton(other.path(), &["account", "restore", "--account", &account, "--json"], &words).await;
    assert_eq!(last(&restored)["account"], made["account"], "{}", err(&restored));
    let wrong = words.replacen(words.split_whitespace().next().unwrap(), "xyzzy", 1);
    assert_eq!(code(&baton(other.path(), &["account", "restore"], &wrong).await), 2);
}

async fn start_relayer(folder: &TempDir) -> MockServer {
    assert_eq!(code(&baton(folder.path(), &["account", "new"], "").await), 0);
    MockServer::start().await
}

async fn answers(server: &MockServer, verb: &str, at: &str, body: Option<Value>, answer: Value) {
    let mut mock = Mock::given(ValidSignature).and(method(verb)).and(path(at));
    if let Some(body) = body {
        mock = mock.and(body_json(body));
    }
    mock.respond_with(ResponseTemplate::new(200).set_body_json(answer)).mount(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_names_the_relayer_that_proves_its_url_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let url = server.uri();
    let relayer = SecretSigningKey::from_seed(&[5; 32]);
    let key = relayer.public_key().to_string();
    for (proven, named) in [(url.as_str(), true), ("https://other.example", false)] {
        server.reset().await;
        let identity = json!({
            "relayer": key, "url": proven, "url_signature": hex::encode(sign_relayer_url(&relayer, proven)),
        });
        let answer = ResponseTemplate::new(200).set_body_json(identity);
        Mock::given(path("/relayer")).respond_with(answer).mount(&server).await;
        answers(&server, "GET", "/api/profile", None, json!({ "items": [] })).await;
        let shown = baton(folder.path(), &["memory", "search", "--relayer-url", &url], "").await;
        assert_eq!(code(&shown), 0, "{}", err(&shown));
        let requests = server.received_requests().await.unwrap();
        let signed = requests.iter().find(|request| request.url.path() == "/api/profile").unwrap();
        assert_eq!(signed.url.query(), named.then(|| format!("relayer={key}")).as_deref(), "{proven}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_are_listed_searched_added_edited_and_forgotten_with_signed_requests() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let url = server.uri();
    let baton = async |arguments: &[&str]| {
        let all = [&["memory"], arguments, &["--relayer", &url]].concat();
        baton(folder.path(), &all, "").await
    };
    let id = "ab".repeat(16);
    let item = json!({
        "id": id, "kind": "fact", "author": "user", "time": "2026-11-21T10:00:00Z", "text": "likes tea",
        "consent": "granted",
    });
    let list = json!({ "everything": true, "limit": 50, "words": "tea" });
    answers(&server, "POST", "/api/list", Some(list), json!({ "items": [item], "next": null })).await;
    let listed = baton(&["list", "tea", "--all"]).await;
    assert_eq!(
        out(&listed),
        format!("{id}  2026-11-21  fact     user      -            likes tea\n"),
        "{}",
        err(&listed)
    );

    let query = json!({ "query": "drinks", "limit": 6, "project": "p" });
    let mut found = json!({ "results": [item], "degraded": null });
    found["results"][0]["score"] = json!(0.75);
    answers(&server, "POST", "/api/recall", Some(query), found).await;
    let found = baton(&["search", "drinks", "--project", "p"]).await;
    assert!(out(&found).starts_with("0.75  abab"), "{} {}", out(&found), err(&found));

    let fact = Some(json!({ "text": "likes tea", "layer": "profile" }));
    answers(&server, "POST", "/api/remember", fact, json!({ "id": id, "existed": false })).await;
    assert_eq!(out(&baton(&["add", "likes tea"]).await), format!("{id}  remembered\n"));

    let edited = json!({ "text": "likes coffee" });
    answers(&server, "PATCH", &format!("/api/items/{id}"), Some(edited), item.clone()).await;
    assert_eq!(code(&baton(&["edit", &id, "likes coffee"]).await), 0);
    answers(&server, "POST", "/api/delete", Some(json!({ "ids": [id] })), json!({ "count": 1 })).await;
    assert_eq!(out(&baton(&["delete", &id]).await), "1 memory deleted for good\n");
    let holder = |id: &str, author: &str, deleted: bool| json!({ "id": id, "kind": "episode", "author": author, "session": "work", "deleted": deleted });
    let others = [holder("cd", "assistant", false), holder("ef", "user", true)];
    let body = json!({ "ids": [id], "others": "none" });
    let answer = json!({ "count": 1, "others": others, "more": 3 });
    answers(&server, "POST", "/api/delete", Some(body), answer).await;
    let removed = baton(&["delete", &id, "--others", "none"]).await;
    assert_eq!(out(&removed), "1 memory deleted for good\n");
    says(
        &removed,
        &["cd  episode of assistant  in work", "1 item with the same words", "3 more", "baton memory delete"],
    );
    assert_eq!(code(&baton(&["forget", &id, "--others", "some"]).await), 2);
    assert_eq!(code(&baton(&["forget", "--everything"]).await), 2, "nobody to ask");
    let account = last(&self::baton(folder.path(), &["account", "--json"], "").await);
    let confirm = Some(json!({ "confirm": account["account"] }));
    answers(&server, "POST", "/api/erase", confirm, json!({ "count": 1 })).await;
    let everything = baton(&["delete", "--everything", "--yes"]).await;
    assert_eq!(out(&everything), "everything is deleted\n", "{}", err(&everything));
    let on = json!({ "extract_through_nodes": true });
    let settings = json!({ "extract_through_nodes": true, "nodes_offered": false, "written_by": "rules" });
    answers(&server, "PUT", "/api/settings", Some(on), settings.clone()).await;
    let decided = baton(&["--extract-through-nodes", "on"]).await;
    assert!(out(&decided).starts_with("extract through nodes  on\n"), "{}", out(&decided));
    says(&decided, &["offers no nodes"]);
    answers(&server, "GET", "/api/settings", None, settings.clone()).await;
    let project = json!({ "name": "garden", "items": 3 });
    let session = json!({ "name": "s1", "items": 1, "project": "garden" });
    answers(&server, "GET", "/api/projects", None, json!({ "places": [project] })).await;
    answers(&server, "GET", "/api/sessions", None, json!({ "places": [session] })).await;
    let shown = out(&baton(&[]).await);
    assert!(shown.ends_with("project  garden  3 items\nsession  s1  1 item  in garden\n"), "{shown}");
    assert_eq!(last(&baton(&["--json"]).await)["settings"], settings);
    assert_eq!(code(&baton(&["--extract-through-nodes", "on", "list"]).await), 2);
    assert_eq!(code(&baton(&["forget", "../owner"]).await), 2);
    answers(&server, "GET", "/api/profile", None, json!({ "items": [] })).await;
    assert_eq!(code(&baton(&["search", "--persona", "a b"]).await), 0);
    let grant = json!({ "ids": [id], "decision": "grant" });
    answers(&server, "POST", "/api/consent", Some(grant), json!({ "count": 1 })).await;
    assert_eq!(out(&baton(&["consent", &id]).await), "1 memory kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_are_named_by_the_beginning_of_their_id_and_deleted_by_project_or_kind() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let url = server.uri();
    let baton = async |arguments: &[&str]| {
        let all = [&["memory"], arguments, &["--relayer", &url]].concat();
        baton(folder.path(), &all, "").await
    };
    let [one, two] = ["ab".repeat(16), format!("abc{}", "d".repeat(29))];
    let search = |prefix: &str| {
        Some(json!({
            "everything": true, "archived": true, "filters": { "history": true }, "id": prefix, "limit": 8,
        }))
    };
    let found =
        |ids: &[&str]| json!({ "items": ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>() });
    answers(&server, "POST", "/api/list", search("abab"), found(&[&one])).await;
    answers(&server, "POST", "/api/list", search("abcd"), found(&[&one, &two])).await;
    answers(&server, "POST", "/api/list", search("ffff"), found(&[])).await;
    answers(&server, "POST", "/api/delete", Some(json!({ "ids": [one] })), json!({ "count": 1 })).await;
    answers(&server, "PATCH", &format!("/api/items/{one}"), Some(json!({ "text": "x" })), json!({})).await;
    assert_eq!(out(&baton(&["delete", "abab"]).await), "1 memory deleted for good\n");
    assert_eq!(code(&baton(&["edit", "abab", "x"]).await), 0);
    let several = baton(&["delete", "abcd"]).await;
    ends(&several, 2, &[&one, &two]);
    for unknown in ["ffff", "ab", "nothex"] {
        assert_eq!(code(&baton(&["delete", unknown]).await), 2, "{unknown}");
    }

    answers(&server, "DELETE", "/api/projects/a%20b", None, json!({ "count": 7 })).await;
    assert_eq!(code(&baton(&["delete", "--project", "a b"]).await), 2, "nobody to ask");
    let project = baton(&["delete", "--project", "a b", "--yes"]).await;
    assert_eq!(out(&project), "7 memories deleted for good\n", "{}", err(&project));
    let facts = json!({
        "everything": false, "archived": true, "limit": 200, "filters": { "history": true, "kinds": ["fact"] },
    });
    let listed =
        json!({ "items": [{ "id": one, "project": null }, { "id": two, "project": "p" }], "next": null });
    answers(&server, "POST", "/api/list", Some(facts), listed).await;
    let kind = baton(&["delete", "--kind", "fact", "--yes"]).await;
    assert_eq!(out(&kind), "1 memory deleted for good\n", "the pool's alone: {}", err(&kind));
    assert_eq!(code(&baton(&["delete", &one, "--project", "p"]).await), 2);
    assert_eq!(code(&baton(&["delete"]).await), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_relayer_refuses_has_its_code_hint_and_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let refusal = json!({ "code": "scope_missing", "message": "not allowed", "hint": "ask the owner" });
    let answer = ResponseTemplate::new(403).set_body_json(refusal);
    Mock::given(ValidSignature).respond_with(answer).mount(&server).await;
    let refused = ["memory", "--json", "--relayer", &server.uri()];
    let refused = baton(folder.path(), &refused, "").await;
    assert_eq!((code(&refused), last(&refused)["error"]["name"].as_str()), (9, Some("scope_missing")));
    assert!(err(&refused).contains("ask the owner"));
    let away = baton(folder.path(), &["memory", "list", "--relayer", "http://127.0.0.1:9"], "").await;
    ends(&away, 9, &["--relayer"]);
    assert_eq!(code(&baton(folder.path(), &["memory", "list"], "").await), 2, "no relayer is named");
    let deaf = baton(folder.path(), &["chat", "--memory", "--message", "x"], "").await;
    ends(&deaf, 2, &["--relayer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_the_key_of_a_registered_delegation_and_is_the_only_output() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let url = server.uri();
    answers(&server, "POST", "/api/delegations", None, json!({ "count": 1 })).await;
    let arguments =
        ["account", "delegate", "--token", "--scopes", "read,write", "--project", "garden", "--days", "7"];
    let made = baton(folder.path(), &[&arguments[..], &["--relayer", &url]].concat(), "").await;
    assert_eq!(code(&made), 0, "{}", err(&made));
    let token = AgentToken::parse(out(&made).trim()).unwrap();
    says(&made, &[&format!("{url}/mcp")]);
    let requests = server.received_requests().await.unwrap();
    let registered = requests.iter().find(|request| request.url.path() == "/api/delegations").unwrap();
    let body: Value = serde_json::from_slice(&registered.body).unwrap();
    let chain: RightChain = body["delegation"].as_str().unwrap().parse().unwrap();
    assert_eq!(chain.last().holder, token.key().public_key());
    let memory = json!({ "scopes": ["read", "write"], "project": "garden" });
    assert_eq!(chain.describe()["memory"], memory);
    let shown = last(&baton(folder.path(), &["account", "--json"], "").await);
    assert_eq!(shown["account"], token.account());
    let id = chain.last().id;
    says(&made, &[&format!("baton account revoke {id}")]);
    let json = last(
        &baton(folder.path(), &["account", "delegate", "--token", "--json", "--relayer", &url], "").await,
    );
    assert!(AgentToken::parse(json["token"].as_str().unwrap()).is_some(), "{json}");
    let nowhere = baton(folder.path(), &["account", "delegate", "--token"], "").await;
    assert_eq!(code(&nowhere), 2, "{}", err(&nowhere));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_s_messages_go_to_the_relayer_signed_and_its_errors_come_back_as_answers() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_relayer(&folder).await;
    let url = server.uri();
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize" });
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let list = json!({ "jsonrpc": "2.0", "id": "two", "method": "tools/list" });
    let agreed = json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocolVersion": "2025-06-18" } });
    answers(&server, "POST", "/mcp", Some(hello.clone()), agreed.clone()).await;
    let told_mock = Mock::given(ValidSignature).and(path("/mcp")).and(body_json(&told));
    told_mock.respond_with(ResponseTemplate::new(202)).mount(&server).await;
    let refused = json!({ "code": "not_admitted", "message": "not served here", "hint": "ask its operator" });
    let list_mock = Mock::given(ValidSignature).and(path("/mcp")).and(body_json(&list));
    list_mock.respond_with(ResponseTemplate::new(403).set_body_json(refused)).mount(&server).await;
    let too_long = "1".repeat(2 * 1024 * 1024 + 100_000);
    let input = format!("{hello}\n{told}\nnot json\n\n{list}\n{too_long}\n");
    let run = baton(folder.path(), &["memory", "mcp", "--relayer", &url], &input).await;
    ends(&run, 2, &["a message has less than"]);
    let lines: Vec<Value> = out(&run).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], agreed);
    assert_eq!(lines[1]["error"]["code"], -32_700, "{lines:?}");
    assert_eq!((&lines[2]["id"], &lines[2]["error"]["code"]), (&json!("two"), &json!(-32_603)));
    assert!(lines[2].to_string().contains("not served here (ask its operator)"), "{}", lines[2]);
    let requests = server.received_requests().await.unwrap();
    let versions = requests.iter().filter(|request| request.url.path() == "/mcp");
    let versions: Vec<_> =
        versions.map(|request| request.headers.get("mcp-protocol-version").is_some()).collect();
    assert_eq!(versions, [false, true, true], "the agreed version goes with each later message");
}
