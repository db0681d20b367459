//! Features of the endpoint beyond text: JSON, probabilities, ephemeral completions, memory.

use std::{pin::Pin, sync::Arc};

use baton_client::{AccountKey, MemoryHint, TurnInput, TurnOutcome};
use baton_gateway::{
    GatewayMemory, HintExtent, MemoryEntry, MemoryFailure, MemoryFilter, MemoryFuture, MemorySharing,
};
use baton_proto::{ErrorCode, ids::SessionId, record::Message};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use baton_client::testkit::{
    World,
    fake::{Act, MODEL},
    relayer::{FakeRelayer, Trick},
};

use crate::serve::{CHAT, Endpoint, events, said, user, with};

fn hello(more: Value) -> Value {
    with(json!({ "messages": said(&[("user", "hello")]) }), more)
}

fn schema_of(world: &World) -> Option<String> {
    world.nodes[0].seen(|seen| seen.asked.pop()).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_format_becomes_the_schema_that_a_node_is_given() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let schema = json!({ "type": "object", "properties": { "z": { "type": "string" }, "a": {} } });
    let named = json!({ "name": "thing", "strict": true, "schema": schema });
    for (format, expected) in [
        (json!({ "type": "text" }), None),
        (json!({ "type": "json_object" }), Some(r#"{"type":"object"}"#.to_owned())),
        (json!({ "type": "json_schema", "json_schema": named }), Some(schema.to_string())),
    ] {
        endpoint.post(CHAT, &hello(json!({ "response_format": format }))).await;
        assert_eq!(schema_of(&world), expected);
    }
    // If no node supports the form, the error is the request's. The same messages in another form are a new
    // request.
    world.nodes[0].script([Act::Refuse(ErrorCode::PayloadRejected); 8]);
    let json =
        hello(json!({ "response_format": { "type": "json_object" }, "messages": said(&[("user", "x")]) }));
    assert_eq!(endpoint.refused(endpoint.chat(&json)).await, (400, "unsupported_parameter".to_owned()));
    world.nodes[0].clear_script();
    let words = hello(json!({ "messages": said(&[("user", "x")]) }));
    endpoint.post(CHAT, &words).await;
    assert_eq!(schema_of(&world), None);
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_come_in_both_shapes_whole_and_in_streams() {
    let (world, endpoint) = Endpoint::with_nodes(2).await;
    let body = hello(json!({ "logprobs": true, "top_logprobs": 1 }));
    let whole = endpoint.post(CHAT, &body).await;
    let content = whole["choices"][0]["logprobs"]["content"].clone();
    assert_eq!(content[0]["token"], "hell");
    assert_eq!((&content[1]["logprob"], &content[1]["bytes"][0]), (&json!(-0.125), &json!(111)));
    let other = json!([{ "token": "other 1", "logprob": -0.818, "bytes": b"other 1" }]);
    assert_eq!(content[0]["top_logprobs"], other);
    // Both nodes break off once: no report is sent twice, and none is missing.
    for node in &world.nodes {
        node.script([Act::Truncate]);
    }
    let (_, _, chunks) = endpoint.stream(&body).await;
    let told: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(Value::Array(told), content);
    let plain = endpoint.post(CHAT, &hello(json!({}))).await;
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
    let body = json!({ "prompt": "hello", "logprobs": 2 });
    let old = endpoint.post("/v1/completions", &body).await;
    let logprobs = &old["choices"][0]["logprobs"];
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!(["hell", "o (0)"]), &json!([0, 4])));
    assert_eq!(logprobs["top_logprobs"][0], json!({ "other 1": -0.818, "other 2": -1.511, "hell": -0.125 }));
    endpoint.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_of_a_completion_and_its_blob_is_bought_for_the_shortest_time() {
    let (world, endpoint) = Endpoint::with_nodes(1).await;
    let ask = |body: Value| endpoint.request(Method::POST, "/v1/completions").json(&body).send();
    for turn in 0..3 {
        let answered = ask(json!({ "prompt": format!("hello {turn}") })).await.unwrap();
        assert!(answered.headers().get("x-baton-session").is_none());
        let body: Value = answered.json().await.unwrap();
        assert_eq!(body["choices"][0]["text"], format!("hello {turn} (0)"));
        assert_eq!(body["baton"]["verified"], true);
    }
    let streamed = ask(json!({ "prompt": "hello", "stream": true })).await.unwrap().text().await.unwrap();
    assert_eq!(events(&streamed).last().unwrap(), "[DONE]");
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
    assert_eq!(ask(json!({ "prompt": "hello" })).await.unwrap().status(), 400);
    world.nodes[0].clear_script();
    assert_eq!(endpoint.sessions().await, 0, "none is here");
    assert_eq!(endpoint.get("/api/sessions").await["sessions"], json!([]));
    let storage =
        world.nodes[0].seen(|seen| seen.asked.iter().map(|(_, storage)| *storage).collect::<Vec<_>>());
    assert!(storage.iter().all(|one| (one.open_epochs, one.closed_epochs) == (1, 1)), "{storage:?}");
    // A continued conversation is stored as usual.
    endpoint.say(&said(&[("user", "a")])).await;
    assert_eq!(endpoint.sessions().await, 1);
    endpoint.close().await;
    let journals = std::fs::read_dir(world.home.path().join("sessions")).unwrap().flatten();
    let journals = journals.filter(|file| file.path().extension().is_some_and(|end| end == "journal"));
    assert_eq!(journals.count(), 1);
    let acks = world.nodes[0].seen(|seen| seen.acks.len());
    assert_eq!(acks, 5, "each answer was acknowledged before its session was forgotten");
}

/// Recalls by fixed text, and passes on the exchanges to remember.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) AccountKey, pub(crate) mpsc::UnboundedSender<(String, String)>);

impl GatewayMemory for Memory {
    fn hint(&self, project: Option<&str>, _session: SessionId, messages: &[Message]) -> MemoryHint {
        let hint = MemoryHint::new(self.0.clone(), format!("{} new", messages.len()));
        MemoryHint { project: project.map(str::to_owned), ..hint }
    }

    fn sharing(&self) -> MemorySharing {
        MemorySharing { hint: HintExtent::Keywords, remembered_at: Some("memory.example".to_owned()) }
    }

    fn remember<'a>(
        &'a self,
        _project: Option<&'a str>,
        messages: &'a [Message],
        outcome: &'a TurnOutcome,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.1.send((messages[0].text.clone(), outcome.text.clone())).unwrap();
        Box::pin(async {})
    }

    fn answer_agent<'a>(
        &'a self,
        message: &'a str,
        version: Option<&'a str>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<String>, String>> + Send + 'a>> {
        Box::pin(async move {
            match message {
                "quiet" => Ok(None),
                "bad" => Err("the relayer cannot be reached".to_owned()),
                message => Ok(Some(format!("{{\"{message}\":\"{}\"}}", version.unwrap_or_default()))),
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, Vec<MemoryEntry>> {
        let [query, kind] = [&filter.query, &filter.kind].map(|part| part.as_deref().unwrap_or_default());
        let (text, project) = (format!("{query} {kind}"), filter.project.clone());
        Box::pin(async move { Ok(vec![MemoryEntry { text, project, ..MemoryEntry::default() }]) })
    }

    fn edit<'a>(
        &'a self,
        project: Option<&'a str>,
        id: &'a str,
        text: &'a str,
    ) -> MemoryFuture<'a, MemoryEntry> {
        let (id, text, project) = (id.to_owned(), text.to_owned(), project.map(str::to_owned));
        Box::pin(async move { Ok(MemoryEntry { id, text, project, ..MemoryEntry::default() }) })
    }

    fn delete<'a>(&'a self, project: Option<&'a str>, id: &'a str) -> MemoryFuture<'a, ()> {
        // Each project has one memory, which its name begins.
        let own = project.is_none_or(|project| id.starts_with(project));
        Box::pin(async move { own.then_some(()).ok_or(MemoryFailure::Unknown) })
    }

    fn delete_all<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, u64> {
        let number = filter.project.as_ref().map_or(9, |project| project.len() as u64);
        Box::pin(async move { Ok(number) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayer_adds_memory_to_what_programs_say_and_exchanges_are_remembered() {
    let world = World::new(1).await;
    let relayer = FakeRelayer::start(&world.nodes[0], Trick::None).await;
    let (remembered, mut exchanges) = mpsc::unbounded_channel();
    let memory: Arc<dyn GatewayMemory> = Arc::new(Memory(AccountKey::generate(), remembered));
    let template = TurnInput::new(Vec::new()).with_route(|route| route.relayer = Some(relayer.named()));
    let endpoint = Endpoint::through(world.client().await, template, Some(memory), None).await;
    let first = endpoint.say(&said(&[("user", "a")])).await;
    let second = endpoint.say(&said(&[("user", "a"), ("assistant", "a (0)"), ("user", "b")])).await;
    assert_eq!(first["baton"]["session"], second["baton"]["session"]);
    let memories = first["baton"]["memories"].as_array().unwrap();
    assert!(!memories.is_empty() && memories.iter().all(|one| one["text"].is_string()), "{first}");
    let at = format!("/api/sessions/{}", first["baton"]["session"].as_str().unwrap());
    let shown = endpoint.get(&at).await;
    assert_eq!(shown["turns"][0]["memories"], first["baton"]["memories"], "the page has them after a reload");
    let words: Vec<String> = relayer.hints.lock().iter().map(|hint| hint.hint.clone()).collect();
    assert_eq!(words, ["1 new", "1 new"]);
    for expected in [("a", "a (0)"), ("b", "b (1)")] {
        let (said, answered) = exchanges.recv().await.unwrap();
        assert_eq!((said.as_str(), answered.as_str()), expected);
    }
    // A completion uses the same relayer, and is not remembered.
    endpoint.post("/v1/completions", &json!({ "prompt": "c" })).await;
    assert_eq!(relayer.hints.lock().len(), 3);
    endpoint.close().await;
    assert!(exchanges.recv().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_are_sessions_of_their_own_and_each_can_go_on() {
    let (_world, endpoint) = Endpoint::with_nodes(2).await;
    let messages = [user("a")];
    let three = json!({ "model": MODEL, "messages": messages, "n": 3, "seed": 7 });
    let three = endpoint.post(CHAT, &three).await;
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]["content"]), (&json!(index), &json!("a (0)")));
    }
    let first = three["baton"]["session"].as_str().unwrap();
    let mut sessions = vec![first];
    sessions.extend(choices[1..].iter().map(|choice| choice["baton"]["session"].as_str().unwrap()));
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 3);
    assert_eq!(three["baton"]["seed"].as_u64().unwrap() + 2, choices[2]["baton"]["seed"].as_u64().unwrap());

    // In a named session, the others branch off before the turn.
    let named = json!({ "model": MODEL, "session": first, "messages": [user("b")], "n": 2 });
    let two = endpoint.post(CHAT, &named).await;
    assert_eq!((&two["baton"]["session"], &two["baton"]["turn"]), (&json!(first), &json!(2)));
    let branch = two["choices"][1]["baton"]["session"].as_str().unwrap();
    let conversation = endpoint.client.session(branch.parse().unwrap()).conversation().await.unwrap();
    assert_eq!(conversation.branch.unwrap().session_id.to_string(), first);

    // A stream has the parts of all answers, each with its position; the counts are of all of them.
    let both = json!({ "model": MODEL, "messages": messages, "n": 2 });
    let counted = with(both, json!({ "stream_options": { "include_usage": true } }));
    let (_, finish, chunks) = endpoint.stream(&counted).await;
    assert_eq!(finish.as_deref(), Some("stop"), "the stream is done");
    let mut ended = Vec::new();
    for index in 0..2 {
        let of = |chunk: &&Value| chunk["choices"][0]["index"] == index;
        let own: Vec<&Value> = chunks.iter().filter(of).collect();
        let text = own.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(text.collect::<String>(), "a (0)");
        let last = own.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        ended.push(last["baton"]["session"].as_str().unwrap());
    }
    assert_ne!(ended[0], ended[1]);
    let counts: Vec<&Value> = chunks.iter().filter(|chunk| chunk["usage"].is_object()).collect();
    assert_eq!((counts.len(), &counts[0]["choices"]), (1, &json!([])));
    let total = |counts: &Value| counts["usage"]["total_tokens"].as_u64().unwrap();
    assert_eq!(total(counts[0]), total(&three) / 3 * 2);
    endpoint.close().await;
}
