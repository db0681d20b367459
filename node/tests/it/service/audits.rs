//! Audits over real sockets: the node recomputes a recorded turn and signs the report. It reports turns that
//! it cannot compute. It refuses each invalid request by code, before any computation.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use baton_mesh::{AUDIT_PROTOCOL, OpenError, TurnStream};
use baton_node::{
    engine::{
        Constraint, Engine, EngineError, EngineInfo, GenerateHandle, GenerateJob, TokenCount,
        native::{NativeConfig, NativeEngine},
    },
    models::{Catalogue, DEFAULT_MODEL},
    prompt::Prompt,
    service::ServiceLimits,
};
use baton_proto::{
    ErrorCode, SignedObject,
    audit::{AuditAnswer, AuditBytes, AuditFrame, AuditGap, AuditReport, AuditRequest, AuditVerdict},
    codec,
    disclosure::Disclosure,
    export::{Export, ExportMemory, OpenTurn, open},
    ids::{ModelId, NodeId, ReceiptHash},
    limits::{AUDIT_REQUEST_VERSION, MAX_AUDIT_FRAME_BYTES, MAX_FRAME_BYTES},
    memory::MemoryItem,
    receipt::Receipt,
};
use tempfile::{TempDir, tempdir};
use tokio::{io::AsyncWriteExt as _, time::Instant};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::service::network::{
    client::{Client, Session},
    node::{Setup, TestNode},
    store::MemoryStore,
};

/// The conversation from the tests of `baton-node replay`.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/export.json");
const MEMORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/memory.json");
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/schema.json");
const REMEMBERED: u64 = 3;
const DRAWN: u64 = 1;

fn model_file() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let folder = variable("BATON_NODE_MODEL_DIR").or_else(|| cache().map(|cache| cache.join("baton/models")));
    let folder = folder.expect("set BATON_NODE_MODEL_DIR or HOME");
    let catalogue = Catalogue::built_in();
    catalogue.pull(DEFAULT_MODEL, &folder, &mut |_| {}).unwrap();
    folder.join(&catalogue.entry(DEFAULT_MODEL).unwrap().file)
}

/// The native engine. With `draws_otherwise` it computes a different answer.
struct Auditor {
    inner: NativeEngine,
    draws_otherwise: bool,
    jobs: AtomicUsize,
}

impl Auditor {
    fn load(draws_otherwise: bool) -> Arc<Self> {
        let config = NativeConfig { slots: 2, ..NativeConfig::new("audit", model_file()) };
        let inner = NativeEngine::load(&config).unwrap();
        Arc::new(Self { inner, draws_otherwise, jobs: AtomicUsize::new(0) })
    }
}

impl Engine for Auditor {
    fn info(&self) -> &EngineInfo {
        self.inner.info()
    }

    fn count(&self, prompt: &Prompt) -> Result<TokenCount, EngineError> {
        self.inner.count(prompt)
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        self.inner.constrain(schema)
    }

    fn generate(&self, mut job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        self.jobs.fetch_add(1, SeqCst);
        job.sampling.seed += u64::from(self.draws_otherwise);
        self.inner.generate(job)
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

fn offering() -> ServiceLimits {
    ServiceLimits { audits: true, ..Setup::default().limits }
}

async fn node(engine: &Arc<Auditor>, limits: ServiceLimits) -> (TestNode, TempDir) {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempdir().unwrap());
    let setup = Setup { limits, beside: Some(engine.clone()), ..Setup::default() };
    (TestNode::start(&folder.path().join("journal"), &store, setup).await, folder)
}

struct Recording {
    export: Export,
    turns: Vec<OpenTurn>,
    memory: Vec<MemoryItem>,
    schema: String,
}

impl Recording {
    fn read() -> Self {
        let export: Export = serde_json::from_str(&fs::read_to_string(RECORDED).unwrap()).unwrap();
        let memory: Vec<ExportMemory> = serde_json::from_str(&fs::read_to_string(MEMORY).unwrap()).unwrap();
        let memory = memory.into_iter().find(|one| one.seq == REMEMBERED).unwrap().items;
        Self { turns: open(&export).unwrap(), export, memory, schema: fs::read_to_string(SCHEMA).unwrap() }
    }

    fn receipt(&self, seq: u64) -> &SignedObject<Receipt> {
        self.turns.iter().find(|turn| turn.link.seq == seq).unwrap().receipt.as_ref().unwrap()
    }

    /// A complete request for a turn.
    fn request(&self, node: &TestNode, seq: u64) -> AuditRequest {
        let receipt = self.receipt(seq);
        let wants_schema = self.turns[usize::try_from(seq).unwrap()].sampling.as_ref().unwrap();
        let memory = if seq == REMEMBERED { self.memory.clone() } else { Vec::new() };
        let schema = wants_schema.json_schema.map(|_| self.schema.clone());
        AuditRequest {
            version: AUDIT_REQUEST_VERSION,
            nonce: baton_keys::secret::random_bytes(),
            audience: node.node,
            receipt: receipt.receipt_hash(),
            model: receipt.model,
            tokens: receipt.tokens.output,
            disclosure: Disclosure::of(&self.export, seq, memory, schema).unwrap(),
        }
    }
}

async fn send_raw(client: &Client, node: &TestNode, frame: &[u8]) -> TurnStream {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (addrs, protocol) = (node.mesh.listen_addrs(), &AUDIT_PROTOCOL);
    let mut stream = client.mesh.open_side(node.node, &addrs, protocol, deadline).await.unwrap();
    stream.send_by(frame, deadline).await.unwrap();
    stream
}

async fn next(stream: &mut TurnStream) -> AuditAnswer {
    let deadline = Instant::now() + Duration::from_secs(120);
    let bytes = stream.recv_by(MAX_FRAME_BYTES, deadline).await.unwrap().expect("an answer");
    codec::decode(&bytes, MAX_FRAME_BYTES).unwrap()
}

async fn ask(client: &Client, node: &TestNode, request: &AuditRequest) -> AuditAnswer {
    let (_, frame) = baton_proto::audit::frame(request, |_| None).unwrap();
    next(&mut send_raw(client, node, &frame).await).await
}

async fn verdict(client: &Client, node: &TestNode, request: &AuditRequest) -> AuditVerdict {
    match ask(client, node, request).await {
        AuditAnswer::Report(bytes) => {
            let hash = AuditBytes::new(request).unwrap().hash();
            AuditReport::verify(bytes, &hash, request).unwrap().verdict
        }
        AuditAnswer::Refused { code, .. } => panic!("refused: {code}"),
    }
}

async fn refusal(client: &Client, node: &TestNode, request: &AuditRequest) -> ErrorCode {
    code(ask(client, node, request).await)
}

fn code(answer: AuditAnswer) -> ErrorCode {
    match answer {
        AuditAnswer::Refused { code, .. } => code,
        AuditAnswer::Report(_) => panic!("it was audited"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disclosed_turn_is_computed_again_and_what_came_of_it_is_signed() {
    let engine = Auditor::load(false);
    let (node, _folder) = node(&engine, offering()).await;
    let (client, recorded) = (Client::start().await, Recording::read());
    for turn in &recorded.turns {
        let request = recorded.request(&node, turn.link.seq);
        let same = AuditVerdict::Same { tokens: request.tokens };
        assert_eq!(verdict(&client, &node, &request).await, same, "turn {}", turn.link.seq);
    }
    assert_eq!(engine.jobs.load(SeqCst), recorded.turns.len());
    // An input of the turn is missing or different.
    let mut bare = recorded.request(&node, REMEMBERED);
    bare.disclosure.memory.clear();
    let gap = |gap| AuditVerdict::NotReplayable(gap);
    assert_eq!(verdict(&client, &node, &bare).await, gap(AuditGap::Memory));
    let with_schema = recorded
        .turns
        .iter()
        .find(|turn| turn.sampling.as_ref().is_some_and(|sampling| sampling.json_schema.is_some()));
    let mut other = recorded.request(&node, with_schema.unwrap().link.seq);
    other.disclosure.schema = Some("{\"type\":\"string\"}".to_owned());
    assert_eq!(verdict(&client, &node, &other).await, gap(AuditGap::Schema));
    assert_eq!(engine.jobs.load(SeqCst), recorded.turns.len(), "nothing was computed for those");
    // Turns are served as well.
    client.turn(&node, &mut Session::new(), "hello").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_node_computes_otherwise_is_different_from_some_token_on() {
    let engine = Auditor::load(true);
    let (node, _folder) = node(&engine, offering()).await;
    let (client, recorded) = (Client::start().await, Recording::read());
    let request = recorded.request(&node, DRAWN);
    let found = verdict(&client, &node, &request).await;
    assert!(matches!(found, AuditVerdict::Different { token: Some(at) } if at < request.tokens), "{found:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_with_a_request_is_refused_by_name_and_nothing_is_computed() {
    let engine = Auditor::load(false);
    let (node, _folder) = node(&engine, offering()).await;
    let (client, recorded) = (Client::start().await, Recording::read());
    let echo = node.model;
    type Change = Box<dyn FnOnce(&mut AuditRequest)>;
    let cases: Vec<(Change, ErrorCode)> = vec![
        (Box::new(|request| request.audience = NodeId([9; 32])), ErrorCode::WrongAudience),
        (Box::new(|request| request.model = ModelId([9; 32])), ErrorCode::ModelUnavailable),
        // A local model whose engine gives answers that cannot be recomputed.
        (Box::new(move |request| request.model = echo), ErrorCode::ModelUnavailable),
        (Box::new(|request| request.receipt = ReceiptHash([9; 32])), ErrorCode::PayloadRejected),
        (Box::new(|request| request.tokens += 1), ErrorCode::PayloadRejected),
        (Box::new(|request| request.disclosure.segments.clear()), ErrorCode::PayloadRejected),
        (Box::new(|request| request.disclosure.record_keys.clear()), ErrorCode::PayloadRejected),
        (Box::new(|request| request.disclosure.receipt.signature.0[0] ^= 1), ErrorCode::PayloadRejected),
        (Box::new(|request| request.disclosure.auth.body[9] ^= 1), ErrorCode::PayloadRejected),
    ];
    let mut wrong = Vec::new();
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut request = recorded.request(&node, DRAWN);
        change(&mut request);
        let found = refusal(&client, &node, &request).await;
        if found != expected {
            wrong.push((number, found, expected));
        }
    }
    assert_eq!(wrong, []);
    let mut garbage = send_raw(&client, &node, &[0xff; 9]).await;
    assert_eq!(code(next(&mut garbage).await), ErrorCode::NonCanonical);
    let (near, mut far) = tokio::io::duplex(1 << 16);
    node.service.serve(TurnStream::from_io(NodeId([8; 32]), AUDIT_PROTOCOL.as_ref(), near.compat()));
    let length = u32::try_from(MAX_AUDIT_FRAME_BYTES + 1).unwrap().to_le_bytes();
    far.write_all(&length).await.unwrap();
    let mut huge = TurnStream::from_io(node.node, AUDIT_PROTOCOL.as_ref(), far.compat());
    assert_eq!(code(next(&mut huge).await), ErrorCode::FrameTooLarge);
    node.service.hold_turns(true);
    assert_eq!(refusal(&client, &node, &recorded.request(&node, DRAWN)).await, ErrorCode::Busy);
    assert_eq!(engine.jobs.load(SeqCst), 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_offers_none_does_not_speak_the_protocol_and_each_counts_as_a_turn() {
    let engine = Auditor::load(false);
    let (plain, _folder) = node(&engine, Setup::default().limits).await;
    let (client, recorded) = (Client::start().await, Recording::read());
    let deadline = Instant::now() + Duration::from_secs(20);
    let addrs = plain.mesh.listen_addrs();
    let opened = client.mesh.open_side(plain.node, &addrs, &AUDIT_PROTOCOL, deadline).await;
    assert!(matches!(opened, Err(OpenError::ProtocolUnsupported)), "{opened:?}");
    plain.stop().await;

    let (strict, _other) = node(&engine, ServiceLimits { turns_per_minute: 2, ..offering() }).await;
    let request = recorded.request(&strict, 0);
    let mut found = Mutex::new(Vec::new());
    for _ in 0..3 {
        let answer = ask(&client, &strict, &request).await;
        found.get_mut().unwrap().push(match answer {
            AuditAnswer::Report(_) => None,
            AuditAnswer::Refused { code, retry_after_ms } => Some((code, retry_after_ms > 0)),
        });
    }
    assert_eq!(found.into_inner().unwrap(), [None, None, Some((ErrorCode::RateLimited, true))]);
    strict.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_audit() {
    let engine = Auditor::load(false);
    let (node, _folder) = node(&engine, offering()).await;
    let (client, recorded) = (Client::start().await, Recording::read());
    let frame = codec::encode(&AuditFrame::Request {
        request: AuditBytes::new(&recorded.request(&node, 0)).unwrap(),
        quota: None,
    });
    let mut stream = send_raw(&client, &node, &frame).await;
    while engine.jobs.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stream.close().await.unwrap();
    drop(stream);
    // Its slot is free again: other turns are served, and the node stops at once.
    client.turn(&node, &mut Session::new(), "hello").await;
    node.stop().await;
}
