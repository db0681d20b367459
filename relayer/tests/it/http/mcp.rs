//! Memory's tools for agents, at `/mcp`.

use baton_keys::{account::AccountKey, token::AgentToken};
use serde_json::{Value, json};

use super::harness::{Answer, Person, TestServer};

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

/// Calls a tool; returns its result.
async fn call(person: &Person<'_>, tool: &str, arguments: Value) -> Value {
    rpc(person, "tools/call", json!({ "name": tool, "arguments": arguments })).await["result"].clone()
}

/// As [`call`], for a call that succeeds; returns its answer.
async fn good(person: &Person<'_>, tool: &str, arguments: Value) -> Value {
    let result = call(person, tool, arguments).await;
    assert_eq!(result["isError"], false, "{result}");
    result["structuredContent"].clone()
}

/// As [`call`], for a call that fails with this code.
async fn refused(person: &Person<'_>, tool: &str, arguments: Value, code: &str) {
    let result = call(person, tool, arguments).await;
    let error = result["structuredContent"]["error"].as_str().unwrap_or_default();
    assert!(result["isError"] == true && error.starts_with(code), "{result}");
}

#[tokio::test]
async fn f9_the_tools_are_operations_of_the_document() {
    let server = TestServer::open().await;
    let document = server.bare("GET", "/openapi.json", "").await.good();
    let listed = rpc(&Person::new(&server), "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let mut names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    let expected =
        ["edit", "forget", "get", "list", "profile", "projects", "recall", "remember", "supersede"];
    assert_eq!(names, expected);
    let tool = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    for name in expected {
        assert!(tool(name)["description"].as_str().unwrap().len() > 10, "{name}");
        let schema = &tool(name)["inputSchema"];
        assert!(schema["type"] == "object" && !schema.to_string().contains("$ref"), "{name}: {schema}");
        let hints = &tool(name)["annotations"];
        let reads = ["get", "list", "profile", "projects", "recall"].contains(&name);
        assert_eq!(hints["readOnlyHint"], reads, "{name}");
        assert_eq!(hints["destructiveHint"], ["edit", "forget"].contains(&name), "{name}");
    }
    // Fields and their limits are those of the route; the path's id is one of the arguments.
    let recall = &tool("recall")["inputSchema"]["properties"];
    assert_eq!(
        recall["threshold"],
        document["components"]["schemas"]["RecallInput"]["properties"]["threshold"]
    );
    assert_eq!(recall["filters"]["properties"]["kinds"]["maxItems"], 8);
    assert_eq!(tool("edit")["inputSchema"]["required"], json!(["text", "id"]));
    assert!(tool("profile")["inputSchema"]["properties"]["persona"]["description"].is_string());
}

#[tokio::test]
async fn f9_tools_act_for_the_signer_of_each_message() {
    let server = TestServer::open().await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    server.bare("POST", "/mcp", "{}").await.refused(401, "unauthenticated");
    let about = json!({ "name": "test", "version": "1" });
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about });
    assert_eq!(rpc(&person, "initialize", hello).await["result"]["serverInfo"]["name"], "baton-memory");
    good(&person, "remember", json!({ "text": "My dog is called Biscuit." })).await;
    let query = json!({ "query": "What is my dog called?", "limit": 3 });
    let found = good(&person, "recall", query.clone()).await["results"][0].clone();
    assert_eq!(found["text"], "My dog is called Biscuit.");
    assert_eq!(good(&other, "recall", query.clone()).await["results"], json!([]));
    let friend = person.delegate_of(&["read"], Some("garden"));
    let bound = good(&friend, "recall", query).await;
    assert_eq!(bound["results"], json!([]), "the delegate's project holds for tools too");
    refused(&friend, "remember", json!({ "text": "x y z" }), "scope_missing").await;

    let id = &found["id"];
    assert_eq!(good(&person, "get", json!({ "id": id })).await["id"], *id);
    let newer = good(&person, "supersede", json!({ "id": id, "text": "My dog is called Rex." })).await;
    let edited = json!({ "id": newer["id"], "text": "My dog is called Max.", "others": "none" });
    let id = good(&person, "edit", edited).await["id"].clone();
    assert!(good(&person, "list", json!({ "words": "dog" })).await.to_string().contains("Max"));
    assert!(good(&person, "profile", json!({ "persona": null })).await["items"].is_array());
    assert!(good(&person, "projects", json!({})).await["places"].is_array());
    assert_eq!(good(&person, "forget", json!({ "ids": [id] })).await["count"], 1);
    refused(&person, "get", json!({ "id": id }), "not_found").await;
    refused(&person, "get", json!({ "id": "../export" }), "not_found").await;
    refused(&person, "get", json!({}), "bad_request").await;
    refused(&person, "list", json!({ "everywhere": true }), "bad_request").await;
    let unknown = rpc(&person, "tools/call", json!({ "name": "erase", "arguments": {} })).await;
    assert!(unknown["error"]["message"].as_str().unwrap().contains("no such tool"), "{unknown}");
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
    server.send("GET", "/api/projects", &headers, Vec::new()).await.refused(401, "unauthenticated");
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
