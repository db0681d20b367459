//! The proxied engine against a real HTTP server that follows, or breaks, the chat-completions protocol.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
    routing::post,
};
use baton_node::{
    engine::{
        BackendFault, Engine, EngineError, EngineEvent, EngineKind, FinishReason, GenerateHandle,
        GenerateJob, Sampling,
        proxied::{ProxiedConfig, ProxiedEngine, ProxiedError},
    },
    prompt::{ChatMessage, Prompt, Role},
};
use baton_proto::tools::{Call, Definitions, Json, MAX_CALLS, call_id, read_answer, write_call};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle};

/// One scripted answer: a status and the pieces of a body; a piece of `None` breaks the connection.
type Pieces = mpsc::Receiver<Option<String>>;

#[derive(Clone)]
struct Script {
    status: StatusCode,
    pieces: Arc<Mutex<Option<Pieces>>>,
    seen: Arc<Mutex<Option<(HeaderMap, serde_json::Value)>>>,
}

struct Server {
    address: SocketAddr,
    script: Script,
    /// Feeds the answer's body; closed once the server has dropped the response.
    feed: mpsc::Sender<Option<String>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(script): State<Script>, headers: HeaderMap, body: Bytes) -> Response {
    *script.seen.lock().unwrap() = Some((headers, serde_json::from_slice(&body).unwrap()));
    let pieces = script.pieces.lock().unwrap().take().expect("one request to a script");
    let stream = futures::stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((piece.ok_or_else(|| std::io::Error::other("broken on purpose")), pieces))
    });
    Response::builder().status(script.status).body(Body::from_stream(stream)).unwrap()
}

impl Server {
    async fn start(status: StatusCode) -> Self {
        let (feed, pieces) = mpsc::channel(1);
        let script =
            Script { status, pieces: Arc::new(Mutex::new(Some(pieces))), seen: Arc::new(Mutex::new(None)) };
        let router = Router::new().route("/v1/chat/completions", post(answer)).with_state(script.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, script, feed, task }
    }

    fn engine(&self) -> ProxiedEngine {
        ProxiedEngine::new(&config(&format!("http://{}/", self.address)), Handle::current()).unwrap()
    }
}

fn config(base_url: &str) -> ProxiedConfig {
    ProxiedConfig {
        name: "backend".into(),
        base_url: base_url.into(),
        model: "some-model".into(),
        bearer: Some(String::from("sesame").into()),
        context_tokens: 1000,
        max_concurrent: 1,
        idle_timeout: Duration::from_secs(20),
    }
}

fn job() -> GenerateJob {
    let messages = vec![ChatMessage::new(Role::System, "be brief"), ChatMessage::new(Role::User, "hi")];
    let sampling = Sampling { seed: u64::MAX, stop: vec!["END".into()], ..Sampling::default() };
    GenerateJob::new(Prompt::new(messages), sampling, 50)
}

fn chunk(text: &str) -> String {
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "delta": { "content": text } }] }))
}

const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn collect(mut handle: GenerateHandle) -> (String, EngineEvent) {
    let mut text = String::new();
    loop {
        match handle.next().await.expect("a last event always comes") {
            EngineEvent::Started { input_tokens } => assert!(input_tokens > 0),
            EngineEvent::Token { text: more, .. } => text += &more,
            last => {
                assert!(handle.next().await.is_none());
                return (text, last);
            }
        }
    }
}

/// Answers with `pieces`, then ends the body.
async fn answered(status: StatusCode, pieces: Vec<Option<String>>) -> (String, EngineEvent) {
    let mut server = Server::start(status).await;
    let engine = server.engine();
    let handle = engine.generate(job()).unwrap();
    let (closed, _) = mpsc::channel(1);
    let feed = std::mem::replace(&mut server.feed, closed);
    let feeding = tokio::spawn(async move {
        for piece in pieces {
            if feed.send(piece).await.is_err() {
                break; // the engine has seen enough and closed the connection
            }
        }
    });
    let result = collect(handle).await;
    feeding.await.unwrap();
    result
}

fn texts(pieces: &[&str]) -> Vec<Option<String>> {
    pieces.iter().map(|piece| Some((*piece).to_owned())).collect()
}

#[tokio::test]
async fn streams_an_answer_with_the_counts_as_reported() {
    let server = Server::start(StatusCode::OK).await;
    let engine = server.engine();
    assert_eq!(engine.info().kind, EngineKind::Proxied);
    assert_eq!(engine.info().model_id, engine.info().manifest.model_id());
    assert!(engine.info().manifest.architecture.starts_with("proxied:"));
    let mut handle = engine.generate(job()).unwrap();
    server.feed.send(Some(chunk("Hel"))).await.unwrap();
    assert!(matches!(handle.next().await, Some(EngineEvent::Started { .. })));
    // Slow: the first piece arrives before the server has sent the second.
    let first = EngineEvent::Token { index: 0, ids: vec![], text: "Hel".into(), logprobs: vec![] };
    assert_eq!(handle.next().await, Some(first));
    for piece in [chunk("lo"), FINISH.into(), USAGE.into(), DONE.into()] {
        server.feed.send(Some(piece)).await.unwrap();
    }
    let (text, last) = collect(handle).await;
    assert_eq!(text, "lo");
    let EngineEvent::Done { finish: FinishReason::Stop, stats } = last else { panic!("{last:?}") };
    assert_eq!((stats.input_tokens, stats.output_tokens), (11, 7));

    let (headers, body) = server.script.seen.lock().unwrap().take().unwrap();
    assert_eq!(headers["authorization"], "Bearer sesame");
    assert_eq!(body["model"], "some-model");
    assert_eq!(body["messages"][1], serde_json::json!({ "role": "user", "content": "hi" }));
    assert_eq!((&body["stream"], &body["max_tokens"]), (&true.into(), &50.into()));
    assert_eq!((&body["stop"][0], &body["seed"]), (&"END".into(), &0x7fff_ffff.into()));
    assert!(body.get("top_k").is_none() && body.get("repetition_penalty").is_none());
}

fn tools() -> Definitions {
    let text =
        r#"[{"type": "function", "function": {"name": "get_weather", "description": "z", "b": 1, "a": 2}}]"#;
    Definitions::parse(text).unwrap()
}

fn delta(delta: &serde_json::Value) -> String {
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "delta": delta }] }))
}

fn part(index: Option<usize>, name: Option<&str>, arguments: &str) -> String {
    let mut call = serde_json::json!({ "function": { "arguments": arguments } });
    if let Some(index) = index {
        call["index"] = index.into();
    }
    if let Some(name) = name {
        call["id"] = "call_of_the_server".into();
        call["function"]["name"] = name.into();
    }
    delta(&serde_json::json!({ "content": null, "tool_calls": [call] }))
}

#[tokio::test]
async fn calls_that_come_in_parts_become_text_that_reads_as_calls() {
    const CALLED: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n";
    let call =
        |name: &str, arguments: &str| Call { name: name.into(), arguments: Json::parse(arguments).unwrap() };
    let weather = call("get_weather", r#"{"city": "Paris \"</tool_call>\""}"#);
    let cases = [
        (
            vec![
                chunk("I look."),
                part(Some(0), Some("get_weather"), ""),
                part(Some(0), None, r#"{"city": "Pa"#),
                part(Some(0), None, r#"ris \"</tool_call>\""}"#),
                part(Some(1), Some("now"), ""),
            ],
            ("I look.", vec![weather.clone(), call("now", "{}")]),
        ),
        // Whole calls without an index.
        (
            vec![part(None, Some("now"), "{}"), part(None, Some("now"), r#"{"a":1}"#)],
            ("", vec![call("now", "{}"), call("now", r#"{"a": 1}"#)]),
        ),
    ];
    for (pieces, (content, calls)) in cases {
        let mut pieces: Vec<Option<String>> = pieces.into_iter().map(Some).collect();
        pieces.extend(texts(&[CALLED, DONE]));
        let (text, last) = answered(StatusCode::OK, pieces).await;
        assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Stop, .. }), "{last:?}");
        let said = read_answer(&text, |_| false);
        assert_eq!((said.content.as_str(), said.calls), (content, calls), "{text}");
    }
    // Invalid arguments from a model become text, and are not lost.
    let pieces = [&part(Some(0), Some("now"), "{\"a\": "), CALLED, DONE];
    let (text, _) = answered(StatusCode::OK, texts(&pieces)).await;
    assert!(text.contains("{\"a\": ") && read_answer(&text, |_| true).calls.is_empty());
    let many = (0..MAX_CALLS + 1).map(|index| Some(part(Some(index), Some("now"), ""))).collect();
    let (_, last) = answered(StatusCode::OK, many).await;
    assert!(matches!(last, EngineEvent::Failed(EngineError::BackendProtocol { .. })), "{last:?}");
    let endless = (0..200).map(|_| Some(part(Some(0), Some(""), "x"))).collect();
    let (_, last) = answered(StatusCode::OK, endless).await;
    assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Length, .. }), "{last:?}");
}

/// The forms of streams that servers send, as data lines. Each ends with `finish_reason` or the marker, or both.
#[tokio::test]
async fn answers_are_read_in_each_form_that_servers_send() {
    const FIRST: &str = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]}}]}"#;
    const CALLED: &str = r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#;
    const STOP: &str = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let call = |arguments: &str| Call { name: "now".into(), arguments: Json::parse(arguments).unwrap() };
    let calls = |all: &[&str]| all.iter().map(|arguments| call(arguments)).collect::<Vec<_>>();
    let two = || calls(&[r#"{"a":1}"#, r#"{"b":2}"#]);
    let one = || calls(&[r#"{"a":1}"#]);
    let part = |call: &str| format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}"#);
    let cases: Vec<(&str, Vec<String>, &str, Vec<Call>)> = vec![
        (
            "another id at the same index",
            vec![FIRST.into(), part(r#"{"index":0,"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}"#), CALLED.into()],
            "",
            two(),
        ),
        (
            "two calls in one piece at one index",
            vec![
                part(r#"{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}},{"index":0,"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}"#),
                CALLED.into(),
            ],
            "",
            two(),
        ),
        (
            "no ids at the same index",
            vec![
                part(r#"{"index":0,"function":{"name":"now","arguments":"{\"a\":1}"}}"#),
                part(r#"{"index":0,"function":{"name":"now","arguments":"{\"b\":2}"}}"#),
                STOP.into(),
            ],
            "",
            two(),
        ),
        (
            "neither ids nor indices",
            vec![
                part(r#"{"function":{"name":"now","arguments":"{\"a\":"}}"#),
                part(r#"{"function":{"arguments":"1}"}}"#),
                part(r#"{"function":{"name":"now","arguments":"{\"b\":2}"}}"#),
                STOP.into(),
            ],
            "",
            two(),
        ),
        (
            "ids alone",
            vec![
                part(r#"{"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}"#),
                part(r#"{"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}"#),
                CALLED.into(),
            ],
            "",
            two(),
        ),
        (
            "id and name in each piece",
            vec![
                part(r#"{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":"}}"#),
                part(r#"{"index":0,"id":"a","function":{"name":"now","arguments":"1}"}}"#),
                part(r#"{"index":0,"id":"a","function":{"name":"now","arguments":""}}"#),
                CALLED.into(),
            ],
            "",
            one(),
        ),
        (
            "the name in a later piece",
            vec![
                part(r#"{"index":0,"id":"a","type":"function"}"#),
                part(r#"{"index":0,"function":{"name":"now","arguments":null}}"#),
                part(r#"{"index":0,"function":{"arguments":"{\"a\":1}"}}"#),
                CALLED.into(),
            ],
            "",
            one(),
        ),
        (
            "arguments as an object",
            vec![part(r#"{"index":0,"id":"a","function":{"name":"now","arguments":{"a":1}}}"#), CALLED.into()],
            "",
            one(),
        ),
        (
            "the older form",
            vec![
                r#"{"choices":[{"delta":{"content":null,"function_call":{"name":"now","arguments":"{\"a\":"}}}]}"#.into(),
                r#"{"choices":[{"delta":{"function_call":{"arguments":"1}"}}}]}"#.into(),
                r#"{"choices":[{"delta":{},"finish_reason":"function_call"}]}"#.into(),
            ],
            "",
            one(),
        ),
        (
            "the call in the last chunk, with the end",
            vec![r#"{"choices":[{"delta":{"content":"","tool_calls":[{"function":{"name":"now","arguments":"{\"a\":1}"}}]},"finish_reason":"stop"}]}"#.into()],
            "",
            one(),
        ),
        (
            "a final message after its parts",
            vec![
                r#"{"choices":[{"delta":{"content":"I look."}}]}"#.into(),
                r#"{"choices":[{"message":{"content":"I look.","tool_calls":[{"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"}]}"#.into(),
            ],
            "I look.",
            one(),
        ),
        (
            "a final message alone",
            vec![r#"{"choices":[{"delta":null,"message":{"content":"Hello."},"finish_reason":"stop"}]}"#.into()],
            "Hello.",
            Vec::new(),
        ),
        (
            "empty and null fields",
            vec![
                r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":null},"finish_reason":null}],"usage":null}"#.into(),
                r#"{"choices":[{"delta":null,"finish_reason":""}],"error":null}"#.into(),
                r#"{"choices":null,"usage":{"prompt_tokens":3,"completion_tokens":null}}"#.into(),
                r#"{"choices":[{"delta":{"content":"Hello.","tool_calls":[]}}]}"#.into(),
                STOP.into(),
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#.into(),
            ],
            "Hello.",
            Vec::new(),
        ),
    ];
    for (form, lines, content, calls) in cases {
        for (before, after, end) in
            [("data: ", "\n\n", DONE), ("data:", "\r\n\r\n", ""), ("data: ", "\n", DONE)]
        {
            let mut pieces: Vec<_> =
                lines.iter().map(|line| Some(format!("{before}{line}{after}"))).collect();
            pieces.push(Some(end.to_owned()));
            let (text, last) = answered(StatusCode::OK, pieces).await;
            assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Stop, .. }), "{form}: {last:?}");
            let said = read_answer(&text, |_| false);
            assert_eq!((said.content.as_str(), &said.calls), (content, &calls), "{form}: {text}");
        }
    }
    for error in [r#"data: {"error":{"message":"secret"}}"#, "event: error\ndata: {\"error\":\"secret\"}"] {
        let (_, last) = answered(StatusCode::OK, texts(&[&chunk("Hel"), error, "\n\n", DONE])).await;
        let EngineEvent::Failed(failed @ EngineError::Backend { .. }) = last else { panic!("{last:?}") };
        assert!(!failed.to_string().contains("secret"));
    }
}

#[tokio::test]
async fn tools_calls_and_results_are_sent_as_the_server_knows_them() {
    let server = Server::start(StatusCode::OK).await;
    let engine = server.engine();
    assert!(engine.info().takes_tools);
    let calls = [write_call("get_weather", r#"{"city": "Paris"}"#), write_call("now", "{}")];
    let mut results = ["rain", "noon"].map(|text| ChatMessage::new(Role::Tool, text));
    // The second call's result comes first.
    results[0].call_id = Some(call_id([5; 8], 1));
    let mut messages = vec![
        ChatMessage::new(Role::User, "weather?"),
        ChatMessage::new(Role::Assistant, format!("I look.\n{}\n{}", calls[0].as_str(), calls[1].as_str())),
    ];
    messages.extend(results);
    let bare = Prompt::new(messages);
    let prompt = bare.clone().with_tools(Some(Arc::new(tools())));
    assert!(engine.count(&prompt).unwrap().tokens > engine.count(&bare).unwrap().tokens);
    let mut handle = engine.generate(GenerateJob { prompt, ..job() }).unwrap();
    server.feed.send(Some(FINISH.into())).await.unwrap();
    assert!(matches!(handle.next().await, Some(EngineEvent::Started { .. })));
    let (_, body) = server.script.seen.lock().unwrap().take().unwrap();
    assert_eq!(
        body["tools"][0]["function"],
        serde_json::json!({ "name": "get_weather", "description": "z", "b": 1, "a": 2 })
    );
    let said = &body["messages"];
    assert_eq!(
        (&said[1]["content"], said[1]["tool_calls"].as_array().unwrap().len()),
        (&"I look.".into(), 2)
    );
    let call = &said[1]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["arguments"]),
        (&"function".into(), &r#"{"city": "Paris"}"#.into())
    );
    let ids = [0, 1].map(|place: usize| said[1]["tool_calls"][place]["id"].as_str().unwrap());
    assert_eq!((said[2]["tool_call_id"].as_str(), said[2]["name"].as_str()), (Some(ids[1]), Some("now")));
    assert_eq!(
        (said[3]["tool_call_id"].as_str(), said[3]["name"].as_str()),
        (Some(ids[0]), Some("get_weather"))
    );
}

#[tokio::test]
async fn a_truncated_answer_is_an_error_however_it_ends() {
    let truncated = EngineEvent::Failed(EngineError::BackendTruncated);
    let cases = [
        texts(&[&chunk("a"), &chunk("b")]),
        texts(&[&chunk("a"), DONE]),
        texts(&[&chunk("a"), "data: {\"choi"]),
        vec![Some(chunk("a")), None],
        vec![],
    ];
    for pieces in cases {
        assert_eq!(answered(StatusCode::OK, pieces).await.1, truncated);
    }
}

#[tokio::test]
async fn a_schema_is_passed_on_and_an_answer_in_prose_is_none() {
    let schema = r#"{"type":"object","properties":{"z":{},"a":{}}}"#;
    for (pieces, good) in [(["{\"z\": ", "1}"], true), (["The z ", "is 1"], false)] {
        let server = Server::start(StatusCode::OK).await;
        let engine = server.engine();
        let constraint = Some(engine.constrain(schema).unwrap());
        let handle = engine.generate(GenerateJob { constraint, ..job() }).unwrap();
        let feeding = async {
            for piece in pieces.map(chunk).into_iter().chain([FINISH.into(), DONE.into()]) {
                server.feed.send(Some(piece)).await.unwrap();
            }
        };
        let ((text, last), ()) = tokio::join!(collect(handle), feeding);
        assert_eq!(text, pieces.concat());
        assert_eq!(matches!(last, EngineEvent::Done { finish: FinishReason::Stop, .. }), good, "{last:?}");
        assert!(good || matches!(last, EngineEvent::Failed(EngineError::Schema { .. })), "{last:?}");
        let (_, body) = server.script.seen.lock().unwrap().take().unwrap();
        let format = &body["response_format"];
        assert_eq!(
            (&format["type"], &format["json_schema"]["strict"]),
            (&"json_schema".into(), &true.into())
        );
        assert_eq!(format["json_schema"]["schema"].to_string(), schema);
    }
}

#[tokio::test]
async fn maps_the_servers_refusals() {
    for (status, fault) in [
        (StatusCode::INTERNAL_SERVER_ERROR, BackendFault::Failed),
        (StatusCode::UNAUTHORIZED, BackendFault::Denied),
        (StatusCode::NOT_FOUND, BackendFault::NoModel),
        (StatusCode::BAD_REQUEST, BackendFault::Rejected),
        (StatusCode::TEMPORARY_REDIRECT, BackendFault::Failed),
        (StatusCode::TOO_MANY_REQUESTS, BackendFault::RateLimited),
        (StatusCode::SERVICE_UNAVAILABLE, BackendFault::Busy),
    ] {
        let (text, last) = answered(status, texts(&["secret words of the server"])).await;
        let EngineEvent::Failed(error) = last else { panic!("{last:?}") };
        assert!(!error.to_string().contains("secret"), "{error}");
        let EngineError::Backend { fault: seen, .. } = error else { panic!("{error}") };
        assert_eq!((text.as_str(), seen), ("", fault), "{status}");
    }
    let too_long = r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#;
    for line in [format!("data: {too_long}\n\n"), format!("error: {too_long}\n\n")] {
        let (_, last) = answered(StatusCode::OK, texts(&[&line])).await;
        let overflow = matches!(
            last,
            EngineEvent::Failed(EngineError::Backend { fault: BackendFault::ContextOverflow, .. })
        );
        assert!(overflow, "{last:?}");
    }
}

#[tokio::test]
async fn refuses_garbage_and_oversized_lines() {
    let endless = "x".repeat(100_000);
    for pieces in
        [texts(&["data: {not json}\n\n"]), texts(&[&chunk("a"), "data: \u{1F600}\n\n"]), texts(&[&endless])]
    {
        let (_, last) = answered(StatusCode::OK, pieces).await;
        assert!(matches!(last, EngineEvent::Failed(EngineError::BackendProtocol { .. })), "{last:?}");
    }
}

#[tokio::test]
async fn a_server_that_ignores_the_limit_is_left() {
    let pieces = (0..200).map(|_| Some(chunk("x"))).collect();
    let (text, last) = answered(StatusCode::OK, pieces).await;
    assert_eq!(text.len(), 50);
    assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Length, .. }));
}

#[tokio::test]
async fn a_cancel_closes_the_request() {
    let server = Server::start(StatusCode::OK).await;
    let engine = server.engine();
    let job = job();
    let cancel = job.cancel.clone();
    let mut handle = engine.generate(job).unwrap();
    server.feed.send(Some(chunk("a"))).await.unwrap();
    handle.next().await.unwrap();
    cancel.cancel();
    let (_, last) = collect(handle).await;
    assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Cancelled, .. }));
    server.feed.closed().await; // the server saw its connection go
}

#[tokio::test]
async fn a_dropped_reader_closes_the_request_and_frees_the_slot() {
    let server = Server::start(StatusCode::OK).await;
    let engine = server.engine();
    let mut handle = engine.generate(job()).unwrap();
    server.feed.send(Some(chunk("a"))).await.unwrap();
    handle.next().await.unwrap();
    assert_eq!(engine.generate(job()).unwrap_err(), EngineError::Busy { limit: 1 });
    drop(handle);
    server.feed.closed().await;
}

#[tokio::test]
async fn shutdown_ends_running_jobs_and_refuses_new_ones() {
    let server = Server::start(StatusCode::OK).await;
    let engine = server.engine();
    let handle = engine.generate(job()).unwrap();
    server.feed.send(Some(chunk("a"))).await.unwrap();
    engine.shutdown();
    assert_eq!(collect(handle).await.1, EngineEvent::Failed(EngineError::ShutDown));
    assert_eq!(engine.generate(job()).unwrap_err(), EngineError::ShutDown);
}

#[tokio::test]
async fn refuses_what_it_cannot_do() {
    let engine = ProxiedEngine::new(&config("http://127.0.0.1:9"), Handle::current()).unwrap();
    let resumed = GenerateJob { resume_tokens: vec![1], ..job() };
    assert_eq!(engine.generate(resumed).unwrap_err(), EngineError::ResumeUnsupported);
    let mut likely = job();
    likely.sampling.logprobs = 1;
    assert!(matches!(engine.generate(likely), Err(EngineError::Unsupported { .. })));
    assert!(!engine.info().reports_logprobs);
    assert!(matches!(engine.constrain("[]"), Err(EngineError::Schema { .. })));
    let mut wild = job();
    wild.sampling.top_p = f32::NAN;
    assert_eq!(engine.generate(wild).unwrap_err(), EngineError::InvalidSampling);
    let (_, last) = collect(engine.generate(job()).unwrap()).await;
    assert_eq!(last, EngineEvent::Failed(EngineError::BackendUnreachable));
    for url in ["ftp://x", "nonsense", "", "http://x?a=b"] {
        let refused = ProxiedEngine::new(&config(url), Handle::current());
        assert!(matches!(refused, Err(ProxiedError::BaseUrl { .. })), "{url}");
    }
    let shown = format!("{:?}", config("http://x"));
    assert!(!shown.contains("sesame"));
}
