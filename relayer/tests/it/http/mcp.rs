//! Memory's tools over real standard input and output, and over HTTP.

use std::{process::Stdio, time::Duration};

use baton_keys::{account::AccountKey, token::AgentToken};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::harness::{Answer, Person, TestServer};

/// An agent's side of `baton-relayer mcp`.
struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    next: u64,
}

impl Agent {
    async fn start(person: &Person<'_>, folder: &std::path::Path) -> Self {
        let key = folder.join("account.key");
        person.key.create(&key, None).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_baton-relayer"))
            .args(["mcp", "--url", &person.server.url("")])
            .args(["--account", &person.account])
            .arg("--account-key")
            .arg(&key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut agent = Self { input: child.stdin.take(), child, lines, next: 0 };
        let about = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about });
        let server = agent.ask("initialize", hello).await;
        assert_eq!(server["serverInfo"]["name"], "baton-memory");
        agent.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        agent
    }

    async fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        input.flush().await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        loop {
            let line = tokio::time::timeout(Duration::from_secs(60), self.lines.next_line()).await;
            let answer: Value = serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }
}

#[tokio::test]
async fn f9_an_agent_remembers_and_recalls_over_standard_input_and_output() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    server.follow_the_real_clock();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(&person, folder.path()).await;
    let tools = agent.ask("tools/list", json!({})).await;
    assert_eq!(tools["tools"].as_array().unwrap().len(), 9);
    let kept = agent.call("remember", json!({ "text": "My dog is called Biscuit." })).await;
    assert_eq!(kept["isError"], false, "{kept}");
    let found = agent.call("recall", json!({ "query": "What is my dog called?", "limit": 3 })).await;
    let item = &found["structuredContent"]["hits"][0]["item"];
    assert_eq!(item["text"], "My dog is called Biscuit.");
    let id = item["id"].as_str().unwrap().to_owned();
    assert_eq!(agent.call("get", json!({ "id": id })).await["structuredContent"]["id"], id);
    let newer = agent.call("supersede", json!({ "id": id, "text": "My dog is called Rex." })).await;
    assert_eq!(newer["isError"], false, "{newer}");
    let id = newer["structuredContent"]["id"].as_str().unwrap().to_owned();
    let edited = agent.call("edit", json!({ "id": id, "text": "My dog is called Max." })).await;
    let id = edited["structuredContent"]["id"].as_str().unwrap().to_owned();
    let listed = agent.call("list", json!({ "words": "dog" })).await;
    assert!(listed.to_string().contains("Max"), "{listed}");
    let profile = agent.call("profile", json!({})).await;
    assert!(profile["structuredContent"]["items"].is_array(), "{profile}");
    assert!(agent.call("projects", json!({})).await["structuredContent"]["places"].is_array());
    assert_eq!(agent.call("forget", json!({ "id": id })).await["isError"], false);
    let gone = agent.call("get", json!({ "id": id })).await;
    assert_eq!(gone["isError"], true);
    assert!(gone.to_string().contains("not_found"), "{gone}");
    let sneaky = agent.call("get", json!({ "id": "../export" })).await;
    assert_eq!(sneaky["isError"], true);
    drop(agent.input.take());
    assert!(agent.child.wait().await.unwrap().success(), "it ends with its input");
}

#[tokio::test]
async fn a_line_that_is_no_json_is_answered_with_a_parse_error_over_standard_output() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    server.follow_the_real_clock();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(&person, folder.path()).await;
    for nonsense in ["this is no json", "{\"jsonrpc\":\"2.0\",\"id\":7,"] {
        let line = format!("{nonsense}\n");
        agent.input.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
        let line = tokio::time::timeout(Duration::from_secs(60), agent.lines.next_line()).await;
        let answer: Value = serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &Value::Null));
        assert_eq!(answer["error"]["code"], -32_700, "{answer}");
    }
    // It continues to serve.
    assert_eq!(agent.ask("tools/list", json!({})).await["tools"].as_array().unwrap().len(), 9);
    drop(agent.input.take());
    assert!(agent.child.wait().await.unwrap().success(), "it ends with its input");
}

#[tokio::test]
async fn an_agent_without_the_scope_gets_an_error() {
    let server = TestServer::open().await;
    server.follow_the_real_clock();
    let owner = Person::new(&server);
    let friend = owner.friend();
    owner.post("/api/delegations", json!(owner.delegate(&friend, &["read"], None))).await.good();
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(&friend, folder.path()).await;
    assert_eq!(agent.call("recall", json!({ "query": "dog" })).await["isError"], false);
    let refused = agent.call("remember", json!({ "text": "My dog is called Biscuit." })).await;
    assert!(refused["isError"] == true && refused.to_string().contains("scope_missing"), "{refused}");
}

/// One JSON-RPC message to `/mcp`.
async fn rpc(person: &Person<'_>, method: &str, params: Value) -> Value {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut headers = person.headers("POST", "/mcp", message.as_bytes());
    headers.push(("accept", "application/json, text/event-stream".to_owned()));
    headers.push(("content-type", "application/json".to_owned()));
    headers.push(("mcp-protocol-version", "2025-06-18".to_owned()));
    let answer = person.server.send("POST", "/mcp", &headers, message.into_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn f9_tools_over_http_act_for_the_signer_of_each_message() {
    let server = TestServer::open().await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    server.bare("POST", "/mcp", "{}").await.refused(401, "unauthenticated");
    let about = json!({ "name": "test", "version": "1" });
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about });
    assert_eq!(rpc(&person, "initialize", hello).await["result"]["serverInfo"]["name"], "baton-memory");
    let call = async |who: &Person<'_>, tool: &str, arguments: Value| {
        rpc(who, "tools/call", json!({ "name": tool, "arguments": arguments })).await["result"].clone()
    };
    let kept = call(&person, "remember", json!({ "text": "My dog is called Biscuit." })).await;
    assert_eq!(kept["isError"], false, "{kept}");
    let query = json!({ "query": "What is my dog called?" });
    let found = call(&person, "recall", query.clone()).await;
    assert_eq!(found["structuredContent"]["hits"][0]["item"]["text"], "My dog is called Biscuit.");
    let nothing = call(&other, "recall", query.clone()).await;
    assert_eq!(nothing["structuredContent"]["hits"], json!([]));
    let mut friend = person.friend();
    friend.delegation = Some(person.delegate(&friend, &["read"], Some("garden")).to_header());
    let bound = call(&friend, "recall", query).await;
    assert_eq!(bound["structuredContent"]["hits"], json!([]), "the delegate's project holds for tools too");
    let refused = call(&friend, "remember", json!({ "text": "x y z" })).await;
    assert!(refused["isError"] == true && refused.to_string().contains("scope_missing"), "{refused}");
}

/// One JSON-RPC message to `/mcp` with this `Authorization` header.
async fn rpc_with(server: &TestServer, authorization: &str, method: &str, params: Value) -> Answer {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let headers = [
        ("authorization", authorization),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2025-06-18"),
    ];
    let headers = headers.map(|(name, value)| (name, value.to_owned()));
    server.send("POST", "/mcp", &headers, message.into_bytes()).await
}

#[tokio::test]
async fn an_agent_with_a_token_has_the_rights_of_its_delegation_until_it_is_revoked() {
    let server = TestServer::open().await;
    let owner = Person::new(&server);
    let token = AgentToken::generate(&owner.account);
    // The scheme has no case.
    let bearer = format!("bearer {}", *token.expose());
    let refused = rpc_with(&server, &bearer, "tools/list", json!({})).await;
    assert_eq!(refused.headers["www-authenticate"], "Bearer realm=\"baton memory\"");
    refused.refused(401, "invalid_token");

    let mut agent = owner.friend();
    agent.key = AccountKey::from_seed(&token.key().expose_seed());
    let delegation = owner.delegate(&agent, &["read", "write"], Some("garden"));
    owner.post("/api/delegations", json!(delegation)).await.good();
    let listed = rpc_with(&server, &bearer, "tools/list", json!({})).await;
    listed.good();
    assert_eq!(listed.json()["result"]["tools"].as_array().unwrap().len(), 9);
    let call = async |tool: &str, arguments: Value| {
        let answer =
            rpc_with(&server, &bearer, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["result"].clone()
    };
    let fact = json!({ "text": "The roses want water on Tuesdays.", "project": "garden" });
    let kept = call("remember", fact).await;
    assert_eq!(kept["isError"], false, "{kept}");
    let elsewhere = call("remember", json!({ "text": "x y z", "project": "house" })).await;
    assert!(elsewhere["isError"] == true && elsewhere.to_string().contains("project_only"), "{elsewhere}");

    // Tokens are for agents' tools alone.
    let headers = [("authorization", bearer.clone())];
    server.send("GET", "/v1/memory/projects", &headers, Vec::new()).await.refused(401, "unauthenticated");
    let other = format!("Bearer {}", *AgentToken::generate(&owner.account).expose());
    for wrong in
        [other.as_str(), "Bearer baton-token-", "Bearer x", "Basic eDp5", &bearer[..bearer.len() - 1]]
    {
        rpc_with(&server, wrong, "tools/list", json!({})).await.refused(401, "invalid_token");
    }
    let gone = format!("/api/delegations/{}", delegation.id);
    owner.ask("DELETE", &gone, Value::Null).await.good();
    rpc_with(&server, &bearer, "tools/list", json!({})).await.refused(401, "invalid_token");
}
