//! Traces of turns at a collector of a running `baton-node`: the spans, their contents, and turns undisturbed
//! by a failing collector.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cli::harness::turn::{Client, SHARDS},
    process::{ECHO, Node, baton_node},
};

/// A collector in this process, which stores its requests.
struct Collector {
    url: String,
    bodies: watch::Receiver<Vec<Bytes>>,
}

type CollectorState = Arc<(watch::Sender<Vec<Bytes>>, Mutex<Vec<HeaderMap>>)>;

impl Collector {
    async fn start() -> (Self, CollectorState) {
        let (sender, bodies) = watch::channel(Vec::new());
        let taken: CollectorState = Arc::new((sender, Mutex::default()));
        let take = async |State(taken): State<CollectorState>, headers: HeaderMap, body: Bytes| {
            taken.1.lock().unwrap().push(headers);
            taken.0.send_modify(|bodies| bodies.push(body));
        };
        let routes = Router::new().route("/v1/traces", post(take)).with_state(taken.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (Self { url, bodies }, taken)
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let bodies = self.bodies.borrow();
        bodies.iter().map(|body| ExportTraceServiceRequest::decode(body.clone()).unwrap()).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("neither a word nor a count: {other:?}"),
    };
    attributes.iter().map(|one| (one.key.clone(), text(one))).collect()
}

/// A node with a working store, and with traces to `endpoint`.
async fn node(home: &Path, endpoint: &str, more: &[&str]) -> (Node, DropGuard) {
    let shards = ShardCount::new(SHARDS).unwrap();
    let config = EmbeddedConfig { shards, ..EmbeddedConfig::new(home.join("store")) };
    let store = EmbeddedStore::open(config, |_| Err("no heads here".to_owned())).unwrap();
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let ended = stop.clone().cancelled_owned();
    tokio::spawn(async move { store.serve(listener, ended).await });
    let words = ["--shards", "10", "--publisher", &url, "--otlp-endpoint", endpoint];
    let own = ECHO.iter().position(|word| *word == "--publisher").unwrap();
    let words: Vec<_> = ECHO.into_iter().take(own).chain(["--json"]).chain(words).collect();
    (Node::spawn(baton_node(home, &words).args(more)), stop.drop_guard())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_becomes_a_trace_of_its_steps_without_its_text_ids_or_keys() {
    let home = tempfile::tempdir().unwrap();
    let (collector, taken) = Collector::start().await;
    let (mut node, _store) = node(home.path(), &collector.url, &[]).await;
    let client = Client::of(&node.ready).await;
    let mut turn = client.ask("zanzibar quokka").await;
    assert!(turn.finish().await.committed);
    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");

    let spans = collector.spans();
    let names: BTreeSet<_> = spans.iter().map(|span| span.name.as_str()).collect();
    let steps =
        ["admit", "queue", "history", "prompt", "generate", "prefill", "decode", "commit", "store", "turn"];
    assert_eq!(names, BTreeSet::from(steps));
    assert_eq!(spans.len(), steps.len());
    let find = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let root = find("turn");
    assert_eq!((root.parent_span_id.len(), root.kind()), (0, SpanKind::Server));
    for span in &spans {
        assert_eq!((span.trace_id.len(), &span.trace_id), (16, &root.trace_id));
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{}", span.name);
        assert!(span.start_time_unix_nano >= root.start_time_unix_nano, "{}", span.name);
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Ok, "{}", span.name);
        assert!(span.events.is_empty() && span.links.is_empty());
        let parent = match span.name.as_str() {
            "turn" => continue,
            "prefill" | "decode" => find("generate"),
            _ => root,
        };
        assert_eq!(span.parent_span_id, parent.span_id, "{}", span.name);
    }
    let said = texts(&root.attributes);
    assert_eq!(said["baton.outcome"], "committed");
    assert_eq!(said["baton.output_tokens"], "3", "{said:?}");
    assert!(said["baton.session"].len() == 8 && log.contains(&said["baton.session"]), "as in the log");
    assert_eq!(texts(&find("store").attributes)["baton.outcome"], "stored");
    let requests = collector.requests();
    let about = texts(&requests[0].resource_spans[0].resource.as_ref().unwrap().attributes);
    assert_eq!(about["service.name"], "baton-node");
    assert_eq!(about["service.instance.id"], node.ready["node"].as_str().unwrap());
    assert_eq!((about["baton.model"].as_str(), about["baton.engine"].as_str()), ("echo", "echo"));

    let headers = taken.1.lock().unwrap();
    assert!(headers.iter().all(|headers| headers["content-type"] == "application/x-protobuf"));
    assert!(headers.iter().all(|headers| !headers.contains_key("traceparent")));
    for body in collector.bodies.borrow().iter() {
        let has = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
        assert!(!has(b"zanzibar") && !has(b"quokka"));
        for secret in turn.secrets() {
            assert!(!has(&secret[..8]) && !has(&hex::encode(secret).as_bytes()[..16]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_fails_says_so_by_its_code() {
    let home = tempfile::tempdir().unwrap();
    let (collector, _taken) = Collector::start().await;
    let (mut node, _store) =
        node(home.path(), &collector.url, &["--context-tokens", "600", "--max-output-tokens", "512"]).await;
    let client = Client::of(&node.ready).await;
    let reply = client.ask(&"too long ".repeat(900)).await.finish().await;
    assert_eq!(reply.code, Some(baton_proto::ErrorCode::ContextOverflow), "{reply:?}");
    node.stop();
    let spans = collector.spans();
    for name in ["turn", "prompt"] {
        let span = spans.iter().find(|span| span.name == name).unwrap();
        assert_eq!(texts(&span.attributes)["baton.outcome"], "ContextOverflow");
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
    assert!(spans.iter().all(|span| span.name != "commit"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_silent_collector_disturbs_no_turn_and_is_logged_once() {
    // Accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    for (endpoint, complaints) in [("http://127.0.0.1:9", 1), (silent_url.as_str(), 0)] {
        let home = tempfile::tempdir().unwrap();
        let (mut node, _store) = node(home.path(), endpoint, &[]).await;
        let client = Client::of(&node.ready).await;
        for text in ["one", "two", "three"] {
            assert!(client.ask(text).await.finish().await.committed, "{endpoint}");
        }
        if complaints > 0 {
            // The first batch leaves two seconds after its first span; the shutdown sends the second.
            wait_for(&node, "baton_spans_total{result=\"failed\"} ", |count| count > 0).await;
            assert!(client.ask("four").await.finish().await.committed);
        }
        let began = Instant::now();
        let (code, log) = node.stop();
        assert_eq!(code, Some(0), "{log}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(log.matches("the collector does not take traces").count(), complaints, "{log}");
        if complaints == 0 {
            assert!(log.contains("the last traces were not delivered"), "{log}");
        }
    }
}

/// Waits until the metric with this line prefix has such a value.
async fn wait_for(node: &Node, line: &str, enough: impl Fn(u64) -> bool) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let text = client.get(format!("http://{}/metrics", node.admin())).send().await.unwrap();
        let text = text.text().await.unwrap();
        let value = text.lines().find_map(|found| found.strip_prefix(line)).unwrap();
        if enough(value.parse().unwrap()) {
            return;
        }
        assert!(Instant::now() < end, "{line} stays {value}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
