//! `/v1/chat` through a real socket: streams, disconnects, errors, and leftovers of a deleted session.

use std::{path::Path, time::Duration};

use baton_client::SessionRoot;
use baton_memory::{Memory, ids::OwnerId};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use baton_client::testkit::fake::Act;

use crate::http::harness;

use super::world::{PlainRelayer, World, memory_at};

/// The HTTP server on a world's memory, with conversations.
struct ChatServer<'a> {
    world: &'a World,
    url: String,
    client: reqwest::Client,
    relayer: PlainRelayer,
    _serving: tokio_util::sync::DropGuard,
}

impl<'a> ChatServer<'a> {
    async fn open(world: &'a World) -> Self {
        Self::on(world, world.memory.clone()).await
    }

    async fn on(world: &'a World, memory: Memory) -> Self {
        let relayer = world.plain_on(memory.clone()).await;
        let shutdown = CancellationToken::new();
        let config = harness::config(memory, &relayer.key, world.clock());
        let (address, _) = harness::serve(config, Some(relayer.chat.clone()), &shutdown).await;
        let url = format!("http://{address}");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { world, url, client, relayer, _serving: shutdown.drop_guard() }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (key, now) = (&self.world.account, self.world.clock()() / 1000);
        let headers = key.request_headers(&key.account_id(), method.as_str(), path, body.as_bytes(), now);
        let mut request = self.client.request(method, format!("{}{path}", self.url)).body(body);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send().await.unwrap()
    }

    async fn chat(&self, body: Value) -> Response {
        self.send(Method::POST, "/v1/chat", &body).await
    }

    async fn said(&self, body: Value) -> Value {
        let answer = self.chat(body).await;
        let (status, answer) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{status} {answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Stored records of a session's chat.
    async fn kept(&self, session: &str) -> usize {
        let mut kept = 0;
        for part in ["0", "1", "progress"] {
            let name = format!("chat/{session}/{part}");
            let record = self.world.memory.get_record(self.world.owner(), &name).await.unwrap();
            kept += usize::from(record.is_some());
        }
        kept
    }
}

fn says(text: &str, more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0.0, "seed": 1 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn goes_on(answer: &Value) -> Value {
    json!({ "session_id": answer["session_id"], "session_key": answer["session_key"], "head": answer["head"] })
}

/// Server-sent events as they arrive.
struct Events {
    response: Response,
    buffer: String,
}

impl Events {
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        Self { response, buffer: String::new() }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let parsed = line("event:")
                    .map(|name| (name.to_owned(), serde_json::from_str(line("data:").unwrap()).unwrap()));
                self.buffer = rest.to_owned();
                // A comment keeps the connection open, and has no content.
                if parsed.is_some() {
                    return parsed;
                }
                continue;
            }
            let chunk = self.response.chunk().await.unwrap()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_files(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Memory with its key files and without its database.
async fn without_the_database(world: &World) -> (tempfile::TempDir, Memory) {
    // As in an orderly exit of a relayer: the key files get each owner's progress.
    world.memory.close_all().await;
    let folder = tempfile::tempdir().unwrap();
    copy_files(&world.folder.path().join("keys"), &folder.path().join("keys"));
    let memory = memory_at(folder.path()).await;
    (folder, memory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_a_turn_goes_on_without_memory_when_the_owners_database_is_gone_and_says_so() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let first = ChatServer::open(&world).await.said(says("tell me about my boat", json!({}))).await;
    assert_eq!(first["recalled_facts"].as_array().unwrap().len(), 1, "{first}");
    let (_folder, lost) = without_the_database(&world).await;
    let server = ChatServer::on(&world, lost).await;
    let says_why = |memory: &Value| {
        let degraded = memory["degraded"].as_str().unwrap_or_default();
        assert_eq!(memory["mode"], "none", "{memory}");
        assert!(degraded.contains("lost") && degraded.contains("accept-loss"), "{memory}");
    };
    let second = server.said(says("and my boat?", goes_on(&first))).await;
    assert_eq!((&second["content"], &second["turn"]), (&json!("and my boat? (1)"), &json!(1)));
    says_why(&second["memory"]);
    assert_eq!((&second["memory"]["recorded"], &second["recalled_facts"]), (&json!(false), &json!([])));

    // Over a stream, and without memories.
    let mut more = says("and again", goes_on(&second));
    (more["stream"], more["memory_scope"]) = (true.into(), "none".into());
    let mut events = Events::of(server.chat(more).await);
    let (name, started) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &started["recalled_facts"]), ("started", &json!([])));
    says_why(&started["memory"]);
    let mut last = (name, started);
    while let Some(event) = events.next().await {
        last = event;
    }
    assert_eq!((last.0.as_str(), &last.1["content"]), ("done", &json!("and again (2)")));
    says_why(&last.1["memory"]);

    // The same for a new session; with the database back, the first one continues with memory.
    says_why(&server.said(says("hello", json!({}))).await["memory"]);
    let back = ChatServer::open(&world).await.said(says("tell me about my boat", goes_on(&last.1))).await;
    assert_eq!(
        (&back["content"], &back["memory"]["mode"]),
        (&json!("tell me about my boat (3)"), &json!("full"))
    );
    assert_eq!(back["memory"]["recorded"], true, "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_driven_by_one_request_at_a_time_also_without_memory() {
    let world = World::new().await;
    let first = ChatServer::open(&world).await.said(says("one", json!({}))).await;
    let (_folder, lost) = without_the_database(&world).await;
    let server = ChatServer::on(&world, lost).await;
    world.nodes[0].script([Act::Hang]);
    let mut slow = says("two", goes_on(&first));
    slow["stream"] = true.into();
    let mut events = Events::of(server.chat(slow).await);
    assert_eq!(events.next().await.unwrap().0, "started");
    let busy = server.chat(says("two too", goes_on(&first))).await;
    assert_eq!(busy.status(), 503);
    assert_eq!(busy.json::<Value>().await.unwrap()["code"], "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_its_events_in_order_and_its_text_before_its_end() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let server = ChatServer::open(&world).await;
    let stream = says("tell me about my boat", json!({ "stream": true }));
    let mut events = Events::of(server.chat(stream).await);
    let (name, started) = events.next().await.unwrap();
    assert_eq!(name, "started");
    assert_eq!(started["recalled_facts"].as_array().unwrap().len(), 1, "{started}");
    let (mut names, mut text, mut last) = (Vec::new(), String::new(), Value::Null);
    while let Some((name, value)) = events.next().await {
        text.push_str(value["text"].as_str().unwrap_or_default());
        names.push(name);
        last = value;
    }
    assert_eq!(names, ["text", "text", "done"]);
    assert_eq!((text.as_str(), last["content"].as_str()), ("tell me about my boat (0)", Some(text.as_str())));
    assert_eq!(last["recalled_facts"][0]["used"], true);
    assert_eq!((&last["request_id"], &last["session_id"]), (&started["request_id"], &started["session_id"]));
    // The client has the beginning while the node still generates the rest.
    world.nodes[0].script([Act::Hang]);
    let mut more = says("and more", goes_on(&last));
    more["stream"] = true.into();
    let mut events = Events::of(server.chat(more).await);
    assert_eq!(events.next().await.unwrap().0, "started");
    assert_eq!(events.next().await.unwrap().0, "text");
    world.nodes[0].hangs().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_cancels_its_turn() {
    let world = World::new().await;
    let server = ChatServer::open(&world).await;
    let first = server.said(says("one", json!({}))).await;
    world.nodes[0].script([Act::Hang]);
    let mut stream = says("two", goes_on(&first));
    stream["stream"] = true.into();
    let mut events = Events::of(server.chat(stream).await);
    while events.next().await.unwrap().0 != "text" {}
    drop(events);
    // The node is disconnected and stops. The session stays unchanged, without the message.
    world.nodes[0].left(1).await;
    let next = loop {
        // Busy until the turn is cleaned up.
        let answer = server.chat(says("three", goes_on(&first))).await;
        if answer.status() == 200 {
            break serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap();
        }
        assert_eq!(answer.status(), 503, "{}", answer.text().await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((next["content"].as_str(), next["turn"].as_u64()), (Some("three (1)"), Some(1)));
    assert!(next["earlier"].is_null(), "{next}");
    assert_eq!(world.turns().await, [0, 1], "nothing of it is remembered");
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_one_shape_before_a_stream_and_in_it() {
    let world = World::new().await;
    let server = ChatServer::open(&world).await;
    let checked = |error: &Value, code: &str| {
        assert_eq!(error["code"], code, "{error}");
        for field in ["message", "hint", "request_id"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {error}");
        }
    };
    let empty = server.chat(json!({ "messages": [], "stream": true })).await;
    assert_eq!(empty.status(), 400);
    checked(&empty.json().await.unwrap(), "bad_request");
    for stream in [false, true] {
        let unknown = server.chat(says("hello", json!({ "model": "nobody has it", "stream": stream }))).await;
        let error: Value = if stream {
            let mut events = Events::of(unknown);
            assert_eq!(events.next().await.unwrap().0, "started");
            let (name, error) = events.next().await.unwrap();
            assert_eq!(name, "error");
            assert!(events.next().await.is_none(), "it is the last one");
            error
        } else {
            assert_eq!(unknown.status(), 503);
            unknown.json().await.unwrap()
        };
        checked(&error, "no_node");
        assert_eq!(error["message_kept"], true);
        assert!(!error.to_string().contains("hello"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_records_are_deleted_with_session_project_and_persona() {
    let world = World::new().await;
    let server = ChatServer::open(&world).await;
    let owner: OwnerId = world.owner();
    let chat = async |more: Value| {
        let answer = server.said(says("my sister is called Ines", more)).await;
        answer["session_id"].as_str().unwrap().to_owned()
    };
    let deletions = [
        (json!({}), "DELETE", "/api/sessions/{id}", Value::Null),
        (json!({ "project": "boats" }), "DELETE", "/api/projects/boats", Value::Null),
        (json!({ "project": "cars" }), "POST", "/api/forget", json!({ "namespace": "cars" })),
        (json!({ "persona": "Aria" }), "DELETE", "/api/personas/Aria", Value::Null),
        (json!({}), "POST", "/api/forget", json!({ "namespace": "default" })),
    ];
    let other = chat(json!({ "project": "other" })).await;
    for (place, method, path, body) in deletions {
        let id = chat(place).await;
        assert_eq!(server.kept(&id).await, 2, "its journal, and how far it got");
        let path = path.replace("{id}", &id);
        let answer = server.send(method.parse().unwrap(), &path, &body).await;
        assert_eq!(answer.status(), 200, "{path} {}", answer.text().await.unwrap());
        assert_eq!(server.kept(&id).await, 0, "{path}");
    }
    assert_eq!(server.kept(&other).await, 2, "what was not deleted stays");
    // A session without recorded turns has only its journal.
    world.storage.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    let root = SessionRoot::generate();
    let unrecorded = json!({ "session_key": root.to_words().to_string(), "memory_scope": "none" });
    let id = chat(unrecorded).await;
    let path = format!("/api/sessions/{id}");
    assert_eq!(server.send(Method::DELETE, &path, &Value::Null).await.status(), 200);
    assert_eq!(server.kept(&id).await, 0);
    assert_eq!(server.send(Method::DELETE, &path, &Value::Null).await.status(), 404);
    // A session in use is not deleted.
    world.nodes[0].script([Act::Hang]);
    let relayer = &server.relayer;
    let with_key = |text| baton_relayer::chat::ChatRequest {
        session_key: Some(root.clone()),
        ..super::world::hello(text)
    };
    world.later_ms.fetch_add(30_000, std::sync::atomic::Ordering::SeqCst);
    let _events = relayer.ask(with_key("hang on"));
    world.nodes[0].hangs().await;
    assert_eq!(server.send(Method::DELETE, &path, &Value::Null).await.status(), 503);
    // All of it is deleted with the owner.
    let confirm = json!({ "confirm": owner.to_string() });
    assert_eq!(server.send(Method::POST, "/api/erase", &confirm).await.status(), 200);
    assert_eq!(server.kept(&other).await, 0);
}
