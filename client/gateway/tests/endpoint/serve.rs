//! The endpoint that speaks OpenAI's API, over a real socket.

mod tools;

use std::{ops::Deref, sync::Arc, time::Duration};

use baton_client::{Client, ClientConfig, Conversation, TurnInput};
use baton_gateway::{Gateway, GatewayConfig, GatewayMemory, NamedKeys};
use baton_proto::{ErrorCode, record::RecordKind};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};
use zeroize::Zeroizing;

use baton_client::testkit::{
    GRACE, World,
    fake::{Act, MODEL},
};

/// The owner's key.
pub(crate) const KEY: &str = "sk-test";
/// A text of a model with a call.
pub(crate) const CALL: &str =
    "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
/// The path of chat completions.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The events of a stream whose events have names, which must be the types of their data.
pub(crate) async fn named_events(endpoint: &Endpoint, path: &str, body: &Value) -> Vec<Value> {
    let response = endpoint.request(Method::POST, path).json(body).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.unwrap();
    let mut events = Vec::new();
    for event in text.split("\n\n").filter(|event| event.contains("data: ")) {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let data: Value = serde_json::from_str(field("data: ")).unwrap();
        assert_eq!(data["type"], field("event: "), "an event's name is its type");
        events.push(data);
    }
    events
}

/// An endpoint over the client of a world. Its owner's programs send requests by its methods.
pub(crate) struct Endpoint {
    owner: Program,
    pub(crate) client: Client,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Deref for Endpoint {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.owner
    }
}

/// A program with a key.
#[derive(Clone)]
pub(crate) struct Program {
    url: String,
    http: reqwest::Client,
    key: String,
}

impl Endpoint {
    pub(crate) async fn open(world: &World) -> Self {
        Self::over(world.client().await).await
    }

    /// An endpoint in a world of some nodes.
    pub(crate) async fn with_nodes(nodes: usize) -> (World, Self) {
        let world = World::new(nodes).await;
        let endpoint = Self::open(&world).await;
        (world, endpoint)
    }

    pub(crate) async fn over(client: Client) -> Self {
        Self::through(client, TurnInput::new(Vec::new()), None, None).await
    }

    /// Over the client of a world, with the keys of its home.
    pub(crate) async fn with_keys(
        world: &World,
        template: TurnInput,
        memory: Option<Arc<dyn GatewayMemory>>,
    ) -> Self {
        let keys = NamedKeys::open(world.home.path()).unwrap();
        Self::through(world.client().await, template, memory, Some(keys)).await
    }

    pub(crate) async fn through(
        client: Client,
        template: TurnInput,
        memory: Option<Arc<dyn GatewayMemory>>,
        keys: Option<NamedKeys>,
    ) -> Self {
        let config = GatewayConfig {
            key: Some(Zeroizing::new(KEY.to_owned())),
            origins: vec!["https://chat.example".to_owned()],
            hosts: vec!["box.example".to_owned()],
            relayer: Some("relayer.example".to_owned()),
            memory,
            keys,
            ..GatewayConfig::new(template)
        };
        let gateway = Gateway::open(client.clone(), config).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            gateway.serve(listener, stopped).await
        });
        let owner = Program { url, http: reqwest::Client::new(), key: KEY.to_owned() };
        Self { owner, client, stop: Some(stop), served }
    }

    /// A connection with the head of a chat request, whose body of this length the caller may send.
    pub(crate) async fn begin_chat(&self, key: &str, length: u64) -> TcpStream {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("http://")).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// Over a client that knows a node where there is none; in memory, or in the home of a world.
    pub(crate) async fn without_nodes(world: &World, has_home: bool) -> Self {
        let home = has_home.then(|| world.home.path().to_owned());
        let mut config = ClientConfig { home, ..world.config(world.home.path()) };
        let dead = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        config.bootstrap = vec![dead.parse().unwrap()];
        config.timeouts.discovery = Duration::from_millis(400);
        Self::over(Client::open(config).await.unwrap()).await
    }

    pub(crate) async fn close(self) {
        let client = self.client.clone();
        self.stop().await;
        client.shutdown(GRACE).await;
    }

    /// Ends the endpoint after all work that follows its answers. Its client stays open.
    pub(crate) async fn stop(mut self) {
        // Connections that stay open would be waited for.
        drop(self.owner);
        drop(self.stop.take());
        self.served.await.unwrap().unwrap();
    }

    /// The session of an answer.
    pub(crate) async fn conversation(&self, answer: &Value) -> Conversation {
        let id = answer["baton"]["session"].as_str().unwrap().parse().unwrap();
        self.client.session(id).conversation().await.unwrap()
    }

    /// The sessions of the home.
    pub(crate) async fn sessions(&self) -> usize {
        self.client.session_ids().await.unwrap().len()
    }
}

impl Program {
    /// The same with another key.
    pub(crate) fn by(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.without_key(method, path).bearer_auth(&self.key)
    }

    pub(crate) fn without_key(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) fn chat(&self, body: &Value) -> RequestBuilder {
        self.request(Method::POST, CHAT).json(body)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.see(path).await.1
    }

    /// The status of a request without a body, and its answer.
    pub(crate) async fn see(&self, path: &str) -> (u16, Value) {
        sent(self.request(Method::GET, path)).await
    }

    /// The status of a request, and its answer.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        sent(self.request(Method::POST, path).json(body)).await
    }

    /// The answer to a request that must succeed.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// A chat completion that must succeed.
    pub(crate) async fn say(&self, messages: &Value) -> Value {
        self.post(CHAT, &json!({ "model": MODEL, "messages": messages })).await
    }

    /// A streamed chat completion: its text, its finish reason if it is done, and its chunks.
    pub(crate) async fn stream(&self, body: &Value) -> (String, Option<String>, Vec<Value>) {
        let body = with(body.clone(), json!({ "stream": true }));
        streamed(&self.chat(&body).send().await.unwrap().text().await.unwrap())
    }

    /// A chat in a session that is named.
    pub(crate) fn chat_in(&self, session: &str, messages: &Value) -> RequestBuilder {
        self.chat(&json!({ "messages": messages })).header("x-baton-session", session)
    }

    /// Begins a session, as the page does before its first turn.
    pub(crate) async fn begin(&self) -> String {
        let begun = self.post("/api/sessions", &Value::Null).await;
        begun["id"].as_str().unwrap().to_owned()
    }

    /// Status and error code of a request that must fail.
    pub(crate) async fn refused(&self, request: RequestBuilder) -> (u16, String) {
        let (status, body) = sent(request).await;
        (status, body["error"]["code"].as_str().unwrap().to_owned())
    }
}

/// An object with more fields.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// The status of a request, and its answer.
pub(crate) async fn sent(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Asserts that an answer has these fields: of the objects and lists in it, those that are named.
#[track_caller]
pub(crate) fn assert_has(answer: &Value, fields: &Value) {
    match fields {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| assert_has(&answer[name.as_str()], field));
        }
        Value::Array(fields) => {
            fields.iter().enumerate().for_each(|(index, field)| assert_has(&answer[index], field));
        }
        field => assert_eq!(answer, field, "{answer}"),
    }
}

/// Asserts that an answer is this turn, from 1, of another answer's session.
#[track_caller]
pub(crate) fn assert_turn(answer: &Value, other: &Value, turn: u64) {
    assert_has(answer, &json!({ "baton": { "session": other["baton"]["session"], "turn": turn } }));
}

pub(crate) fn said(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
}

/// A message of the user.
pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn answer(body: &Value) -> &str {
    body["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The data of all events.
pub(crate) fn events(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// The text of a stream, its finish reason, and its chunks.
fn streamed(text: &str) -> (String, Option<String>, Vec<Value>) {
    let mut all = events(text);
    let done = all.last().is_some_and(|last| last == "[DONE]");
    if done {
        all.pop();
    }
    let chunks: Vec<Value> = all.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    let finish = chunks.iter().find_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    (deltas.collect(), finish.map(str::to_owned).filter(|_| done), chunks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_sends_everything_each_time_keeps_one_session() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let first = endpoint.say(&said(&[("user", "a")])).await;
    let choice = json!({ "message": { "content": "a (0)" }, "finish_reason": "stop" });
    assert_has(&first, &json!({ "object": "chat.completion", "model": MODEL, "choices": [choice] }));
    let count = |name: &str| first["usage"][name].as_u64().unwrap();
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    let second = endpoint.say(&said(&[("user", "a"), ("assistant", "a (0)\n"), ("user", "b")])).await;
    assert_eq!(answer(&second), "b (1)", "the node read the turn before");
    assert_turn(&second, &first, 2);
    assert_has(&second, &json!({ "baton": { "seq": 1, "verified": true } }));
    let other = endpoint.say(&said(&[("user", "a")])).await;
    assert_ne!(other["baton"]["session"], first["baton"]["session"], "a conversation that begins alike");
    endpoint.close().await;
    // An endpoint that starts over the same home finds the session by its messages.
    let endpoint = Endpoint::open(&world).await;
    let all = [("user", "a"), ("assistant", "a (0)"), ("user", "b"), ("assistant", "b (1)"), ("user", "c")];
    let third = endpoint.say(&said(&all)).await;
    assert_eq!((answer(&third), &third["baton"]["session"]), ("c (2)", &first["baton"]["session"]));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_differently_becomes_an_edit_or_a_branch_and_nothing_is_lost() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let first = endpoint.say(&said(&[("user", "a")])).await;
    let session = &first["baton"]["session"];
    let base = [("user", "a"), ("assistant", "a (0)")];
    endpoint.say(&said(&[&base[..], &[("user", "b")]].concat())).await;
    let edited = endpoint.say(&said(&[&base[..], &[("user", "B")]].concat())).await;
    assert_eq!((&edited["baton"]["session"], answer(&edited)), (session, "B (1)"), "the last turn, replaced");
    let longer = [&base[..], &[("user", "B"), ("assistant", "B (1)"), ("user", "c")]].concat();
    endpoint.say(&said(&longer)).await;
    let branched = endpoint.say(&said(&[&base[..], &[("user", "x")]].concat())).await;
    assert_ne!(&branched["baton"]["session"], session);
    let id = session.as_str().unwrap().parse().unwrap();
    let kinds: Vec<RecordKind> = {
        let history = endpoint.client.session(id).history().await.unwrap();
        history.iter().map(|view| view.turn.record.as_ref().unwrap().kind).collect()
    };
    assert_eq!(kinds, [RecordKind::Turn, RecordKind::Turn, RecordKind::Edit, RecordKind::Turn]);
    let unknown = [("user", "from elsewhere"), ("assistant", "yes"), ("user", "go on")];
    let conversation = endpoint.conversation(&endpoint.say(&said(&unknown)).await).await;
    assert_eq!(conversation.turns[0].messages.len(), 4, "what was said elsewhere is carried in");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_session_is_used_whatever_the_words() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let first = endpoint.say(&said(&[("system", "S:"), ("user", "a")])).await;
    assert_eq!(answer(&first), "S:a (0)");
    let id = first["baton"]["session"].as_str().unwrap();
    let named =
        async |session: &str, pairs: &[(&str, &str)]| sent(endpoint.chat_in(session, &said(pairs))).await;
    let (_, last) = named("last", &[("user", "b")]).await;
    assert_eq!(answer(&last), "S:b (1)", "it keeps its system text");
    assert_eq!(last["baton"]["session"], id);
    let (_, edited) = named(id, &[("user", "a"), ("assistant", "S:a (0)"), ("user", "c")]).await;
    assert_eq!(answer(&edited), "S:c (1)");
    let (_, fresh) = named("new", &[("user", "a")]).await;
    assert_ne!(fresh["baton"]["session"], id);
    for (session, pairs, status, code) in [
        (&id[..12], &[("user", "z"), ("assistant", "y"), ("user", "b")][..], 409, "history_mismatch"),
        (&"0".repeat(64), &[("user", "a")], 404, "session_not_found"),
    ] {
        let (found, error) = named(session, pairs).await;
        assert_eq!((found, &error["error"]["code"]), (status, &json!(code)));
    }
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_shape_that_programs_expect() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let hello = json!({ "model": MODEL, "messages": [user("hello there")] });
    let counted = with(hello, json!({ "stream_options": { "include_usage": true } }));
    let (content, finish, chunks) = endpoint.stream(&counted).await;
    assert_eq!((content.as_str(), finish.as_deref()), ("hello there (0)", Some("stop")));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let all = json!({ "id": chunks[0]["id"], "model": MODEL, "object": "chat.completion.chunk" });
    chunks.iter().for_each(|chunk| assert_has(chunk, &all));
    let last = chunks.last().unwrap();
    assert!(last["choices"].as_array().unwrap().is_empty() && last["usage"]["completion_tokens"] == 2);
    assert_eq!(chunks[chunks.len() - 2]["baton"]["verified"], true);
    let body = json!({ "prompt": "hello", "stream": true });
    let text = endpoint.request(Method::POST, "/v1/completions").json(&body).send().await.unwrap();
    let all = events(&text.text().await.unwrap());
    let first: Value = serde_json::from_str(&all[0]).unwrap();
    assert_eq!((&first["object"], all.last().unwrap().as_str()), (&json!("text_completion"), "[DONE]"));
    let whole = endpoint.post("/v1/completions", &json!({ "prompt": "hello" })).await;
    assert_eq!(whole["choices"][0]["text"], "hello (0)");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_begun_by_a_node_that_dies_is_finished_by_another_without_a_word_twice() {
    let world = World::new(2).await;
    for node in &world.nodes {
        node.script([Act::Truncate]);
    }
    // The first node asked breaks off. The second may do so too; then the first serves.
    let endpoint = Endpoint::open(&world).await;
    let (content, finish, _) = endpoint.stream(&json!({ "messages": [user("hello there")] })).await;
    assert_eq!((content.as_str(), finish.as_deref()), ("hello there (0)", Some("stop")));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_and_asks_again_gets_the_same_turn() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    world.nodes[0].script([Act::Hang]);
    let body = json!({ "messages": said(&[("user", "a")]), "stream": true });
    let mut response = endpoint.chat(&body).send().await.unwrap();
    let session = response.headers()["x-baton-session"].to_str().unwrap().to_owned();
    assert!(response.chunk().await.unwrap().is_some());
    world.nodes[0].hangs().await;
    drop(response);
    let id = session.parse().unwrap();
    // The endpoint notices only at its next write. Until then, the same request gets a busy error.
    let again = loop {
        let response = endpoint.chat(&json!({ "messages": said(&[("user", "a")]) })).send().await.unwrap();
        let same = response.headers().get("x-baton-session").is_some_and(|value| *value == *session);
        let body: Value = response.json().await.unwrap();
        if same {
            break body;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(answer(&again), "a (0)");
    assert_eq!(endpoint.client.session(id).history().await.unwrap().len(), 1);
    endpoint.close().await;
}

/// Reads a stream until it has this text.
pub(crate) async fn until(response: &mut reqwest::Response, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        seen.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
}

/// Begins a stream whose node hangs; later turns are served. Both are open until they are dropped.
pub(crate) async fn hung(world: &World, request: RequestBuilder) -> (String, reqwest::Response) {
    for node in &world.nodes {
        node.script([Act::Hang]);
    }
    let mut running = request.send().await.unwrap();
    let session = running.headers()["x-baton-session"].to_str().unwrap().to_owned();
    assert!(running.chunk().await.unwrap().is_some());
    let hangs = world.nodes.iter().map(|node| Box::pin(node.hangs()));
    futures::future::select_all(hangs).await;
    for node in &world.nodes {
        node.clear_script();
    }
    (session, running)
}

/// The session that an answer branched off into.
async fn branch_of(endpoint: &Endpoint, parent: &str, beside: reqwest::Response, text: &str) -> String {
    assert_eq!(beside.status(), 200);
    let branch = beside.headers()["x-baton-session"].to_str().unwrap().to_owned();
    let body: Value = beside.json().await.unwrap();
    assert!(answer(&body).starts_with(text), "{body}");
    let conversation = endpoint.client.session(branch.parse().unwrap()).conversation().await.unwrap();
    assert_eq!(conversation.branch.unwrap().session_id.to_string(), parent);
    branch
}

#[tokio::test(flavor = "multi_thread")]
async fn continuations_beside_a_running_one_branch_whether_they_say_the_same_or_not() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let first = endpoint.say(&said(&[("user", "a")])).await;
    let history = |last: &str| said(&[("user", "a"), ("assistant", "a (0)"), ("user", last)]);
    let body = json!({ "messages": history("b"), "stream": true });
    let (session, running) = hung(&world, endpoint.chat(&body)).await;
    assert_eq!(first["baton"]["session"], session);
    let beside = ["b", "b", "c"].map(|last| endpoint.chat(&json!({ "messages": history(last) })).send());
    let mut branches = Vec::new();
    for (response, text) in futures::future::join_all(beside).await.into_iter().zip(["b (", "b (", "c ("]) {
        let branch = branch_of(&endpoint, &session, response.unwrap(), text).await;
        assert!(!branches.contains(&branch), "each has a branch of its own");
        branches.push(branch);
    }
    drop(running);
    endpoint.close().await;
}

/// Requests that end while others choose their places: none is refused, and none follows a turn that it does
/// not know.
#[tokio::test(flavor = "multi_thread")]
async fn many_continuations_at_once_never_follow_each_other() {
    let (_world, endpoint) = Endpoint::with_nodes(2).await;
    let first = endpoint.say(&said(&[("user", "a")])).await;
    let asked = (0..12).map(|number| {
        let last = format!("b{number}");
        let messages = said(&[("user", "a"), ("assistant", "a (0)"), ("user", &last)]);
        let request = endpoint.chat(&json!({ "messages": messages }));
        async move {
            let (status, body) = sent(request).await;
            assert_eq!(status, 200, "{body}");
            assert!(answer(&body).starts_with(&format!("{last} (")), "{body}");
        }
    });
    futures::future::join_all(asked).await;
    let turns = endpoint.conversation(&first).await.turns;
    assert_eq!(turns.len(), 2, "the first turn, and one continuation");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_shape_and_the_status_that_programs_act_upon() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let hi = json!({ "messages": said(&[("user", "hi")]) });
    let with = |name: &str, value: Value| {
        let mut body = hi.clone();
        body[name] = value;
        endpoint.chat(&body)
    };
    let code = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(endpoint.refused(with("model", json!("gpt-4"))).await, code(404, "model_not_found"));
    assert_eq!(endpoint.refused(with("n", json!(5))).await, code(400, "unsupported_parameter"));
    assert_eq!(endpoint.refused(with("max_token", json!(2))).await, code(400, "unknown_parameter"));
    assert_eq!(endpoint.refused(with("messages", json!([]))).await, code(400, "invalid_value"));
    let long = said(&[("user", &"x".repeat(600 * 1024))]);
    assert_eq!(endpoint.refused(with("messages", long)).await, code(400, "context_length_exceeded"));
    let huge = said(&[("user", &"x".repeat(17 * 1024 * 1024))]);
    assert_eq!(endpoint.refused(with("messages", huge)).await, code(413, "body_too_large"));
    let mut announced = endpoint.begin_chat(KEY, 10_000_000_000).await;
    let mut head = [0; 12];
    let read = tokio::time::timeout(GRACE, announced.read_exact(&mut head)).await;
    read.expect("an answer before the body").unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    drop(announced);
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
    assert_eq!(endpoint.refused(endpoint.chat(&hi)).await, code(400, "context_length_exceeded"));
    world.nodes[0].clear_script();
    assert_eq!(endpoint.refused(endpoint.request(Method::GET, "/v1/nothing")).await.0, 404);
    assert_eq!(endpoint.refused(endpoint.request(Method::GET, "/v1/chat/completions")).await.0, 405);
    let embeddings = endpoint.request(Method::POST, "/v1/embeddings").json(&json!({ "input": "a" }));
    assert_eq!(endpoint.refused(embeddings).await, code(404, "model_not_found"));
    let models = endpoint.get("/v1/models").await;
    let model = &models["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!(MODEL), &json!("model")));
    assert!(
        model["context_length"].as_u64().unwrap() > 0 && model["context_length"] == model["max_model_len"]
    );
    assert_eq!(endpoint.get(&format!("/v1/models/{MODEL}")).await["id"], MODEL);
    assert_eq!(endpoint.refused(endpoint.request(Method::GET, "/v1/models/a/b")).await.0, 404);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn background_prompts_and_chats_with_store_false_are_in_no_list() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let titles = "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nUSER: a\n</chat_history>";
    for body in [
        json!({ "messages": said(&[("user", "a")]), "store": false }),
        json!({ "messages": said(&[("user", "a")]), "metadata": { "task": "title_generation" } }),
        json!({ "messages": said(&[("user", titles)]) }),
    ] {
        let response = endpoint.chat(&body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{body}");
        assert!(response.headers().get("x-baton-session").is_none(), "{body}");
    }
    assert_eq!(endpoint.get("/api/sessions").await["sessions"], json!([]));
    let kept = endpoint.say(&said(&[("user", "a")])).await;
    assert_eq!(endpoint.get("/api/sessions").await["sessions"].as_array().unwrap().len(), 1);
    let named = json!({ "messages": [user("b")], "store": false, "session": kept["baton"]["session"] });
    assert_eq!(endpoint.refused(endpoint.chat(&named)).await, (400, "unsupported_parameter".to_owned()));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_and_errors_have_names_and_say_which_model_and_engine_answered() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let hi = json!({ "messages": said(&[("user", "hi")]) });
    let mut names = Vec::new();
    let system = json!({ "messages": said(&[("system", "be brief")]) });
    let requests = [
        (endpoint.chat(&hi), 200),
        (endpoint.chat(&system), 400),
        (endpoint.without_key(Method::GET, "/v1/models"), 401),
        (endpoint.request(Method::GET, "/v1/nothing"), 404),
    ];
    for (request, status) in requests {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        let name = response.headers()["x-request-id"].to_str().unwrap().to_owned();
        assert!(name.len() == 36 && name.starts_with("req_") && !names.contains(&name), "{name}");
        names.push(name);
        let body: Value = response.json().await.unwrap();
        match status {
            200 => {
                let model = body["baton"]["model"].as_str().unwrap();
                let named = format!("fp_{}_{}", &model[..12], body["baton"]["engine"].as_str().unwrap());
                assert_eq!(body["system_fingerprint"], named);
            }
            400 => assert!(body["error"]["message"].as_str().unwrap().contains("only system text"), "{body}"),
            _ => {}
        }
    }
    let response = endpoint.chat(&with(hi, json!({ "stream": true }))).send().await.unwrap();
    assert_eq!(response.headers()["x-accel-buffering"], "no", "a proxy keeps no event back");
    let text = response.text().await.unwrap();
    let (_, _, chunks) = streamed(&text);
    let last = chunks.last().unwrap();
    assert!(last["system_fingerprint"].as_str().unwrap().starts_with("fp_"), "{last}");
    assert!(chunks.iter().all(|chunk| chunk.get("system_fingerprint").is_some()), "{text}");
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_with_the_key_are_served_and_only_pages_that_were_allowed() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let open = || endpoint.without_key(Method::GET, "/v1/models");
    for without in [open(), open().bearer_auth("sk-tesu")] {
        assert_eq!(endpoint.refused(without).await, (401, "invalid_api_key".to_owned()));
    }
    let get = || endpoint.request(Method::GET, "/v1/models");
    let other_host = get().header("host", "evil.example");
    assert_eq!(endpoint.refused(other_host).await, (403, "origin_not_allowed".to_owned()));
    for host in ["box.example:80", "LOCALHOST", "[::1]", "[::1]:9"] {
        assert_eq!(get().header("host", host).send().await.unwrap().status(), StatusCode::OK, "{host}");
    }
    assert_eq!(endpoint.refused(get().header("origin", "https://evil.example")).await.0, 403);
    let allowed = get().header("origin", "https://chat.example").send().await.unwrap();
    assert_eq!(allowed.status(), StatusCode::OK);
    assert_eq!(allowed.headers()["access-control-allow-origin"], "https://chat.example");
    let small = open().header("authorization", format!("bearer {KEY}"));
    assert_eq!(small.send().await.unwrap().status(), StatusCode::OK, "a scheme has no case");
    let refused = open().send().await.unwrap();
    assert!(refused.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer "));
    let probe = endpoint.without_key(Method::OPTIONS, "/v1/models").send().await.unwrap();
    assert_eq!(probe.status(), StatusCode::NO_CONTENT, "also without an origin");
    let packed = endpoint.chat(&json!({})).header("content-encoding", "gzip");
    assert_eq!(endpoint.refused(packed).await, (415, "unsupported_encoding".to_owned()));
    endpoint.close().await;
}
