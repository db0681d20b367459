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
    let fields: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    let asked = [
        "model",
        "messages",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "seed",
        "max_tokens",
        "stop",
    ];
    assert_eq!(fields, asked, "nothing that the job does not need");
}

fn tools() -> Definitions {
    let text =
        r#"[{"type": "function", "function": {"name": "get_weather", "description": "z", "b": 1, "a": 2}}]"#;
    Definitions::parse(text).unwrap()
}

/// A piece of the first call, named if `named`.
fn part(index: usize, named: bool, arguments: &str) -> String {
    let mut call = serde_json::json!({ "index": index, "function": { "arguments": arguments } });
    if named {
        call["function"]["name"] = "now".into();
    }
    format!("data: {}\n\n", serde_json::json!({ "choices": [{ "delta": { "tool_calls": [call] } }] }))
}

/// The forms of streams that servers send: a name, the content and the calls that are read from it, and the
/// chunks. A list is a chunk's `tool_calls`, and a bare word is a `finish_reason`. Each ends with that, or the
/// marker, or both.
const FORMS: &str = r#"
# calls in parts, after text | I look. | now {"city":"Paris \"</tool_call>\""} & now {}
{"choices":[{"delta":{"content":"I look."}}]}
[{"index":0,"id":"a","function":{"arguments":"","name":"now"}}]
[{"index":0,"function":{"arguments":"{\"city\": \"Pa"}}]
[{"index":0,"function":{"arguments":"ris \\\"</tool_call>\\\"\"}"}}]
[{"index":1,"id":"b","function":{"arguments":"","name":"now"}}]
tool_calls
# whole calls without an index | | now {} & now {"a":1}
[{"id":"a","function":{"name":"now","arguments":"{}"}}]
[{"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]
tool_calls
# another id at the same index | | now {"a":1} & now {"b":2}
[{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]
[{"index":0,"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}]
tool_calls
# two calls in one piece at one index | | now {"a":1} & now {"b":2}
[{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}},{"index":0,"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}]
tool_calls
# no ids at the same index | | now {"a":1} & now {"b":2}
[{"index":0,"function":{"name":"now","arguments":"{\"a\":1}"}}]
[{"index":0,"function":{"name":"now","arguments":"{\"b\":2}"}}]
stop
# neither ids nor indices | | now {"a":1} & now {"b":2}
[{"function":{"name":"now","arguments":"{\"a\":"}}]
[{"function":{"arguments":"1}"}}]
[{"function":{"name":"now","arguments":"{\"b\":2}"}}]
stop
# ids alone | | now {"a":1} & now {"b":2}
[{"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]
[{"id":"b","function":{"name":"now","arguments":"{\"b\":2}"}}]
tool_calls
# id and name in each piece | | now {"a":1}
[{"index":0,"id":"a","function":{"name":"now","arguments":"{\"a\":"}}]
[{"index":0,"id":"a","function":{"name":"now","arguments":"1}"}}]
[{"index":0,"id":"a","function":{"name":"now","arguments":""}}]
tool_calls
# the name in a later piece | | now {"a":1}
[{"index":0,"id":"a","type":"function"}]
[{"index":0,"function":{"name":"now","arguments":null}}]
[{"index":0,"function":{"arguments":"{\"a\":1}"}}]
tool_calls
# arguments as an object | | now {"a":1}
[{"index":0,"id":"a","function":{"name":"now","arguments":{"a":1}}}]
tool_calls
# the older form | | now {"a":1}
{"choices":[{"delta":{"content":null,"function_call":{"name":"now","arguments":"{\"a\":"}}}]}
{"choices":[{"delta":{"function_call":{"arguments":"1}"}}}]}
function_call
# the call in the last chunk, with the end | | now {"a":1}
{"choices":[{"delta":{"content":"","tool_calls":[{"function":{"name":"now","arguments":"{\"a\":1}"}}]},"finish_reason":"stop"}]}
# a final message after its parts | I look. | now {"a":1}
{"choices":[{"delta":{"content":"I look."}}]}
{"choices":[{"message":{"content":"I look.","tool_calls":[{"id":"a","function":{"name":"now","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"}]}
# a final message alone | Hello. |
{"choices":[{"delta":null,"message":{"content":"Hello."},"finish_reason":"stop"}]}
# parts of two calls in turns, with text between | I look. | now {"a":1} & then {"b":2}
[{"index":0,"id":"a","function":{"name":"now","arguments":""}}]
[{"index":1,"id":"b","function":{"name":"then","arguments":""}}]
[{"index":0,"function":{"arguments":"{\"a\":"}}]
[{"index":1,"function":{"arguments":"{\"b\":"}}]
{"choices":[{"delta":{"content":"I look."}}]}
[{"index":0,"function":{"arguments":"1}"}}]
[{"index":1,"function":{"arguments":"2}"}}]
tool_calls
# the same with ids alone | | now {"a":1} & then {"b":2}
[{"id":"a","function":{"name":"now","arguments":"{\"a\":"}},{"id":"b","function":{"name":"then","arguments":"{\"b\":"}}]
[{"id":"a","function":{"arguments":"1}"}},{"id":"b","function":{"arguments":"2}"}}]
tool_calls
# names and arguments from the beginning again | | get_now {"a":{"a":1}} & now {"b":2}
[{"index":0,"function":{"name":"get","arguments":""}}]
[{"index":0,"function":{"name":"get_now","arguments":"{\"a\":"}}]
[{"index":0,"function":{"arguments":"{\"a\":1}}"}}]
[{"index":1,"id":"b","function":{"name":"now","arguments":"{}"}}]
[{"index":1,"id":"b","function":{"arguments":"{\"b\":"}}]
[{"index":1,"id":"b","function":{"arguments":"{\"b\":2"}}]
[{"index":1,"id":"b","function":{"arguments":"{\"b\":2}"}}]
tool_calls
# a value that begins as the one around it | | now {"a":{"a":1}}
[{"index":0,"function":{"name":"now","arguments":"{\"a\":"}}]
[{"index":0,"function":{"arguments":"{\"a\":"}}]
[{"index":0,"function":{"arguments":"1}}"}}]
tool_calls
# a name in pieces | | get_now {}
[{"index":0,"function":{"name":"get_"}}]
[{"index":0,"function":{"name":"now"}}]
tool_calls
# ids of each piece's own | | now {"a":1} & then {"b":2}
[{"index":0,"id":"a","function":{"name":"now","arguments":""}}]
[{"index":0,"id":"b","function":{"arguments":"{\"a\":"}}]
[{"index":0,"id":"c","function":{"arguments":"1}"}}]
[{"index":1,"id":"d","function":{"name":"then","arguments":""}}]
[{"index":1,"id":"e","function":{"arguments":"{\"b\":2}"}}]
tool_calls
# one id and one index for two calls, and a last piece without arguments | | now {"a":1} & now {"b":2}
[{"index":0,"id":"now","function":{"name":"now","arguments":"{\"a\":1}"}}]
[{"index":0,"id":"now","function":{"name":"now","arguments":"{\"b\":2}"}}]
[{"index":0,"id":"now","function":{"name":"now","arguments":""}}]
tool_calls
# an id and a name in each piece without an index | | now {"a":1}
[{"id":"a","function":{"name":"now","arguments":"{\"a\":"}}]
[{"id":"a","function":{"name":"now","arguments":"1}"}}]
[{"id":"a","function":{"name":"now","arguments":""}}]
tool_calls
# the name alone in each piece | | now {"a":1} & then {"b":2}
[{"function":{"name":"now","arguments":"{\"a\":"}}]
[{"function":{"name":"now","arguments":"1}"}}]
[{"function":{"name":"then","arguments":"{\"b\":2}"}}]
stop
# calls without the function around them | | now {"a":1} & then {}
[{"name":"now","arguments":{"a":1}},{"name":"then","arguments":null}]
tool_calls
# a refusal beside the content | Sorry. |
{"choices":[{"delta":{"content":null,"refusal":"Sor"}}]}
{"choices":[{"delta":{"refusal":"ry."}}]}
STOP
# content in parts | Hello. |
{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]}]}}]}
{"choices":[{"delta":{"content":[{"type":"text","text":"Hel"},{"type":"reference","reference_ids":[1]},{"type":"text","text":"lo"}]}}]}
{"choices":[{"delta":{"content":"."}}]}
stop
# odd fields of no importance | | now {"a":1} & now {"b":2}
[{"index":"0","id":7,"function":{"name":"now","arguments":"{\"a\":"}},{"index":1.0,"id":8,"function":{"name":"now","arguments":"{\"b\":"}}]
[{"index":"0","function":{"arguments":"1}"}},{"index":1.0,"function":{"arguments":"2}"}}]
[{"index":-1,"id":8,"function":{}}]
tool_calls
{"choices":[],"usage":{"prompt_tokens":5.0,"completion_tokens":-1}}
{"choices":[],"usage":"none"}
# empty and null fields | Hello. |
{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":null},"finish_reason":null}],"usage":null}
{"choices":[{"delta":null,"finish_reason":""}],"error":null}
{"choices":null,"usage":{"prompt_tokens":3,"completion_tokens":null}}
{"choices":[{"delta":{"content":"Hello.","tool_calls":[]}}]}
stop
{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}
"#;

#[tokio::test]
async fn answers_are_read_in_each_form_that_servers_send() {
    for case in FORMS.split("\n# ").skip(1) {
        let (form, chunks) = case.split_once('\n').unwrap();
        let [_, content, calls] = form.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{form}")
        };
        let call = |call: &str| {
            let (name, arguments) = call.split_once(' ').unwrap();
            Call { name: name.into(), arguments: Json::parse(arguments).unwrap() }
        };
        let calls: Vec<Call> = calls.split(" & ").filter(|call| !call.is_empty()).map(call).collect();
        let line = |chunk: &str| match chunk.as_bytes()[0] {
            b'{' => chunk.to_owned(),
            b'[' => format!(r#"{{"choices":[{{"delta":{{"tool_calls":{chunk}}}}}]}}"#),
            _ => format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{chunk}"}}]}}"#),
        };
        for (mark, before, after, end) in
            [("", "data: ", "\n\n", DONE), ("\u{FEFF}", "data:", "\r\n\r\n", ""), ("", "data: ", "\n", DONE)]
        {
            let lines = chunks.lines().map(|chunk| Some(format!("{before}{}{after}", line(chunk))));
            let first = [Some(mark.to_owned())];
            let pieces = first.into_iter().chain(lines).chain([Some(end.to_owned())]).collect();
            let (text, last) = answered(StatusCode::OK, pieces).await;
            assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Stop, .. }), "{form}: {last:?}");
            let said = read_answer(&text, |_| false);
            assert_eq!((said.content.as_str(), &said.calls), (content, &calls), "{form}: {text}");
        }
    }
    // A server that does not stream sends the whole answer as one value.
    let whole = serde_json::json!({
        "choices": [{ "message": { "role": "assistant", "content": "x".repeat(100_000) } }],
        "usage": { "prompt_tokens": 5.0, "completion_tokens": -1 },
    });
    for whole in [format!("\u{FEFF}{whole}"), format!("{whole:#}\n")] {
        let (text, last) = answered(StatusCode::OK, texts(&[&whole])).await;
        let EngineEvent::Done { finish: FinishReason::Stop, stats } = last else { panic!("{last:?}") };
        assert_eq!((text.len(), stats.input_tokens, stats.output_tokens), (100_000, 5, 1));
    }
    // Another success, and an end by the server's own limit.
    for end in ["length", "max_tokens", "MAX_TOKENS", "model_length"] {
        let end = FINISH.replace("stop", end);
        let (text, last) = answered(StatusCode::CREATED, texts(&[&chunk("a"), &end, DONE])).await;
        assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Length, .. }), "{end}: {last:?}");
        assert_eq!(text, "a");
    }
    // Invalid arguments from a model become text, and are not lost.
    let (text, _) = answered(StatusCode::OK, texts(&[&part(0, true, "{\"a\": "), FINISH, DONE])).await;
    assert!(text.contains("{\"a\": ") && read_answer(&text, |_| true).calls.is_empty());
    let endless = (0..200).map(|_| Some(part(0, false, "x"))).collect();
    for (pieces, expected) in [(endless, 0), ((0..200).map(|_| Some(chunk("x"))).collect(), 50)] {
        let (text, last) = answered(StatusCode::OK, pieces).await;
        assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Length, .. }), "{last:?}");
        assert!(expected == 0 || text.len() == expected);
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
    assert!(engine.count(&prompt).unwrap() > engine.count(&bare).unwrap());
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

/// The failure of an answer that consists of these pieces. It repeats nothing of the server's.
async fn failed(status: StatusCode, pieces: Vec<Option<String>>) -> EngineError {
    let (_, last) = answered(status, pieces).await;
    let EngineEvent::Failed(error) = last else { panic!("{last:?}") };
    assert!(!error.to_string().contains("secret"), "{error}");
    error
}

#[tokio::test]
async fn what_a_server_does_wrong_is_told_apart() {
    let error = failed(StatusCode::TOO_MANY_REQUESTS, texts(&["secret words of the server"])).await;
    assert!(matches!(error, EngineError::Backend { fault: BackendFault::RateLimited, .. }), "{error}");
    let overflow = r#"{"error":{"message":"secret","code":"context_length_exceeded"}}"#;
    for (error, fault) in [
        (format!("data: {overflow}"), BackendFault::ContextOverflow),
        (format!("error: {overflow}"), BackendFault::ContextOverflow),
        (r#"data: {"error":{"message":"secret"}}"#.to_owned(), BackendFault::Failed),
        ("event: error\ndata: {\"error\":\"secret\"}".to_owned(), BackendFault::Failed),
        (overflow.to_owned(), BackendFault::ContextOverflow),
        // The fields without `error`, a status inside, an error of the choice, and ends that are errors.
        (
            r#"data: {"object":"error","message":"secret context_length_exceeded","code":400}"#.to_owned(),
            BackendFault::ContextOverflow,
        ),
        (r#"data: {"detail":"secret"}"#.to_owned(), BackendFault::Failed),
        (r#"data: {"error":{"code":429,"message":"secret"}}"#.to_owned(), BackendFault::RateLimited),
        (
            r#"data: {"choices":[{"delta":{"content":""},"error":{"code":"401","message":"secret"}}]}"#
                .to_owned(),
            BackendFault::Denied,
        ),
        (FINISH.replace("stop", "error"), BackendFault::Failed),
        (FINISH.replace("stop", "content_filter"), BackendFault::ContentRefused),
        (FINISH.replace("stop", "SAFETY"), BackendFault::ContentRefused),
    ] {
        let error = failed(StatusCode::OK, texts(&[&chunk("Hel"), &error, "\n\n", DONE])).await;
        assert!(matches!(error, EngineError::Backend { fault: seen, .. } if seen == fault), "{error}");
    }
    for truncated in [
        texts(&[&chunk("a"), &chunk("b")]),
        texts(&[&chunk("a"), DONE]),
        texts(&[&chunk("a"), "data: {\"choi"]),
        vec![Some(chunk("a")), None],
        texts(&["{\"choices\":[{\"message\":"]),
        vec![],
    ] {
        assert_eq!(failed(StatusCode::OK, truncated).await, EngineError::BackendTruncated);
    }
    for garbage in [
        texts(&["data: {not json}\n\n"]),
        texts(&[&chunk("a"), "data: \u{1F600}\n\n"]),
        texts(&[&"x".repeat(2_000_000)]),
        texts(&["{\"answer\":\"secret\"}"]),
        (0..=MAX_CALLS).map(|index| Some(part(index, true, ""))).collect(),
    ] {
        let error = failed(StatusCode::OK, garbage).await;
        assert!(matches!(error, EngineError::BackendProtocol { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_answer_that_nobody_wants_is_ended() {
    for how in ["cancel", "drop", "shutdown"] {
        let server = Server::start(StatusCode::OK).await;
        let engine = server.engine();
        let first = job();
        let cancel = first.cancel.clone();
        let mut handle = engine.generate(first).unwrap();
        server.feed.send(Some(chunk("a"))).await.unwrap();
        handle.next().await.unwrap();
        assert_eq!(engine.generate(job()).unwrap_err(), EngineError::Busy { limit: 1 });
        match how {
            "cancel" => {
                cancel.cancel();
                let (_, last) = collect(handle).await;
                assert!(matches!(last, EngineEvent::Done { finish: FinishReason::Cancelled, .. }));
            }
            "drop" => drop(handle),
            _ => {
                engine.shutdown();
                assert_eq!(collect(handle).await.1, EngineEvent::Failed(EngineError::ShutDown));
                assert_eq!(engine.generate(job()).unwrap_err(), EngineError::ShutDown);
            }
        }
        server.feed.closed().await; // the server saw its connection go
    }
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
