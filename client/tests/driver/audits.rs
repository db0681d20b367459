//! Audits by scripted nodes over a real mesh: the disclosed data, the next node to ask, and untrusted
//! answers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use baton_client::{AuditWish, Client, ClientError, Multiaddr};
use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{AUDIT_PROTOCOL, Incoming, Mesh, MeshConfig, MeshHandle, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject,
    audit::{AuditAnswer, AuditFrame, AuditGap, AuditReport, AuditRequest, AuditVerdict},
    codec,
    ids::{AuthHash, ModelId, NodeId, ReceiptHash, SessionId},
    limits::{MAX_AUDIT_FRAME_BYTES, MAX_FRAME_BYTES, NODE_RECORD_VERSION, VERSION},
    node_record::{KeyWindow, ModelOffer, NodeLimits, NodeRecord, StorageOffer},
    receipt::EngineKind,
    wire::{ClientFrame, NodeFrame},
};

use baton_testkit::{GRACE, World, fake::now_ms, say, session};

/// The response to the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Say(AuditVerdict),
    Refuse(ErrorCode),
    /// Signs with another key.
    Forge,
    /// Signs as another node.
    OtherNode,
    OtherRequest,
    OtherReceipt,
    OtherModel,
    Garbage,
    Huge,
    HangUp,
    Silent,
}

const SAME: Act = Act::Say(AuditVerdict::Same { tokens: 3 });

/// The shared state of a test's auditors.
#[derive(Clone, Default)]
struct Script {
    acts: Arc<Mutex<VecDeque<Act>>>,
    asked: Arc<Mutex<Vec<(NodeId, AuditRequest)>>>,
}

/// A node that serves the model of the fake nodes, and dials no peer.
struct Auditor {
    mesh: MeshHandle,
}

struct AuditorInner {
    signing: SecretSigningKey,
    exchange: ExchangeSecret,
    script: Script,
}

impl Auditor {
    async fn start(script: &Script, audits: bool) -> Self {
        let shared = Arc::new(AuditorInner {
            signing: SecretSigningKey::generate(),
            exchange: ExchangeSecret::generate(),
            script: script.clone(),
        });
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let side_protocols = if audits { vec![AUDIT_PROTOCOL] } else { Vec::new() };
        let config = MeshConfig { side_protocols, ..MeshConfig::server("auditor", listen) };
        let (mesh, incoming) = Mesh::spawn(shared.signing.expose_seed(), config).await.unwrap();
        tokio::spawn(accept(shared, incoming));
        Self { mesh }
    }

    fn id(&self) -> NodeId {
        self.mesh.node_id()
    }

    fn addrs(&self) -> Vec<Multiaddr> {
        self.mesh.bootstrap_addrs()
    }
}

async fn accept(shared: Arc<AuditorInner>, mut incoming: Incoming) {
    while let Some((_, stream)) = incoming.next().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            if stream.protocol() == AUDIT_PROTOCOL.as_ref() {
                audit(&shared, stream).await;
            } else {
                tell(&shared, stream).await;
            }
        });
    }
}

async fn tell(shared: &AuditorInner, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_FRAME_BYTES).await else { return };
    let now = now_ms();
    let record = NodeRecord {
        version: NODE_RECORD_VERSION,
        node: shared.signing.node_id(),
        sequence: now,
        addresses: Vec::new(),
        keys: vec![KeyWindow {
            key: shared.exchange.public_key(),
            from_ms: now - 1000,
            until_ms: now + 3_600_000,
        }],
        models: vec![ModelOffer {
            model: ModelId([7; 32]),
            name: baton_testkit::fake::MODEL.to_owned(),
            engine: EngineKind::Native,
            context_tokens: 4096,
            input_price: 0,
            output_price: 0,
        }],
        limits: NodeLimits { slots: 4, queue: 8, turns_per_minute: 600, max_output_tokens: 256 },
        storage: StorageOffer::default(),
        versions: vec![VERSION],
        software: "auditor".to_owned(),
        issued_ms: now,
        expires_ms: now + 3_600_000,
    };
    let answer = match codec::decode::<ClientFrame>(&bytes, MAX_FRAME_BYTES).unwrap() {
        ClientFrame::NodeRecord => {
            NodeFrame::NodeRecord(SignedObject::sign(record, &shared.signing).bytes().clone())
        }
        _ => NodeFrame::Refused { code: ErrorCode::ModelUnavailable, retry_after_ms: 0 },
    };
    let _ = stream.send(&codec::encode(&answer)).await;
    let _ = stream.close().await;
}

async fn audit(shared: &AuditorInner, mut stream: TurnStream) {
    let Ok(Some(bytes)) = stream.recv(MAX_AUDIT_FRAME_BYTES).await else { return };
    let AuditFrame::Request { request: bytes, quota } = codec::decode(&bytes, MAX_AUDIT_FRAME_BYTES).unwrap();
    assert_eq!(quota, None);
    let request = bytes.open().unwrap();
    assert_eq!(request.audience, shared.signing.node_id());
    shared.script.asked.lock().unwrap().push((request.audience, request.clone()));
    let act = shared.script.acts.lock().unwrap().pop_front().unwrap_or(SAME);
    let mut report = AuditReport {
        version: VERSION,
        node: request.audience,
        request: bytes.hash(),
        receipt: request.receipt,
        model: request.model,
        verdict: AuditVerdict::Same { tokens: request.tokens },
        made_ms: now_ms(),
    };
    let mut key = shared.signing.clone();
    match act {
        Act::Say(verdict) => report.verdict = verdict,
        Act::Forge => key = SecretSigningKey::generate(),
        Act::OtherNode => {
            key = SecretSigningKey::generate();
            report.node = key.node_id();
        }
        Act::OtherRequest => report.request = AuthHash([9; 32]),
        Act::OtherReceipt => report.receipt = ReceiptHash([9; 32]),
        Act::OtherModel => report.model = ModelId([9; 32]),
        _ => {}
    }
    let bytes = match act {
        Act::Refuse(code) => codec::encode(&AuditAnswer::Refused { code, retry_after_ms: 10 }),
        Act::Garbage => vec![0xff; 40],
        Act::Huge => vec![0; 1 << 16],
        Act::HangUp => return,
        Act::Silent => return drop(stream.recv(16).await),
        _ => codec::encode(&AuditAnswer::Report(SignedObject::sign(report, &key).bytes().clone())),
    };
    // In some tests the client has left.
    let _ = stream.send(&bytes).await;
    let _ = stream.close().await;
}

/// A client with a session of two turns, which knows the auditors from now on.
async fn client(world: &World, auditors: &[Auditor]) -> (Client, SessionId) {
    let talks = Client::open(world.config(world.home.path())).await.unwrap();
    let id = session(&talks).await;
    say(&talks, id, "one").await;
    say(&talks, id, "two").await;
    talks.shutdown(GRACE).await;
    let mut config = world.config(world.home.path());
    config.bootstrap.extend(auditors.iter().flat_map(Auditor::addrs));
    config.timeouts.reply = Duration::from_millis(400);
    config.timeouts.idle = Duration::from_millis(100);
    let client = Client::open(config).await.unwrap();
    let all = async { while client.nodes().await.len() < 1 + auditors.len() {} };
    tokio::time::timeout(GRACE, all).await.unwrap();
    (client, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_disclosed_with_those_before_it_and_its_own_node_is_not_asked() {
    let (world, script) = (World::new(1).await, Script::default());
    let auditor = Auditor::start(&script, true).await;
    let (client, id) = client(&world, std::slice::from_ref(&auditor)).await;
    let receipts = client.session(id).receipts(true).await.unwrap();
    for (turn, seq) in [(None, 1), (Some(0), 0)] {
        let wish = AuditWish { turn, schema: Some("{}".to_owned()), ..AuditWish::default() };
        let audited = client.session(id).audit(&wish).await.unwrap();
        assert_eq!((audited.turn, audited.author), (seq, world.nodes[0].id()));
        assert_eq!(audited.report.node, auditor.id());
        assert_eq!(audited.report.verdict, AuditVerdict::Same { tokens: 3 });
        let (_, request) = script.asked.lock().unwrap().pop().unwrap();
        let receipt = receipts[usize::try_from(seq).unwrap()].receipt.as_ref().unwrap();
        assert_eq!((request.receipt, request.tokens), (receipt.receipt_hash(), receipt.tokens.output));
        assert_eq!(request.disclosure.schema.as_deref(), Some("{}"));
        let disclosed = request.disclosure.open().unwrap();
        assert_eq!(disclosed.turn.link.seq, seq);
        assert_eq!(disclosed.history.len() as u64, seq, "none that came later");
    }
    // The author itself, if it is named; it makes no audit.
    let named = AuditWish { node: Some(world.nodes[0].id()), ..AuditWish::default() };
    let error = client.session(id).audit(&named).await.unwrap_err();
    assert!(
        matches!(error, ClientError::AuditFailed { node, attempts: 1, code: Some(ErrorCode::UnsupportedVersion), .. }
            if node == world.nodes[0].id()),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("audits = true"), "{:?}", error.hint());
    let missing =
        client.session(id).audit(&AuditWish { turn: Some(7), ..AuditWish::default() }).await.unwrap_err();
    assert!(missing.to_string().contains("no turn 8"), "{missing}");
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_auditor_does_wrong_no_other_one_sees_the_conversation_unasked() {
    let (world, script) = (World::new(1).await, Script::default());
    let auditors = [Auditor::start(&script, true).await, Auditor::start(&script, true).await];
    let (client, id) = client(&world, &auditors).await;
    for act in [
        Act::Refuse(ErrorCode::Busy),
        Act::Refuse(ErrorCode::PayloadRejected),
        Act::Forge,
        Act::OtherNode,
        Act::OtherRequest,
        Act::OtherReceipt,
        Act::OtherModel,
        Act::Garbage,
        Act::Huge,
        Act::HangUp,
        Act::Silent,
    ] {
        script.asked.lock().unwrap().clear();
        script.acts.lock().unwrap().push_back(act);
        let error = client.session(id).audit(&AuditWish::default()).await.unwrap_err();
        let asked: Vec<NodeId> = script.asked.lock().unwrap().iter().map(|(node, _)| *node).collect();
        assert_eq!(asked.len(), 1, "{act:?}");
        assert!(
            matches!(error, ClientError::AuditFailed { attempts: 1, node, disclosed: true, .. } if node == asked[0]),
            "{act:?}: {error}"
        );
        assert!(error.hint().unwrap().contains("--only"), "{act:?}");
        // The user names the other one.
        let other = auditors.iter().map(Auditor::id).find(|node| *node != asked[0]);
        let audited =
            client.session(id).audit(&AuditWish { node: other, ..AuditWish::default() }).await.unwrap();
        assert_eq!(Some(audited.report.node), other, "{act:?}");
    }
    script.acts.lock().unwrap().push_back(Act::Refuse(ErrorCode::Busy));
    let error = client.session(id).audit(&AuditWish::default()).await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::Busy), 4));
    // A verdict of any kind is no failure.
    for verdict in [
        AuditVerdict::Different { token: Some(2) },
        AuditVerdict::Different { token: None },
        AuditVerdict::NotReplayable(AuditGap::Memory),
    ] {
        script.acts.lock().unwrap().push_back(Act::Say(verdict));
        assert_eq!(client.session(id).audit(&AuditWish::default()).await.unwrap().report.verdict, verdict);
    }
    client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_make_none_are_passed_over() {
    let (world, script) = (World::new(1).await, Script::default());
    let auditors = [Auditor::start(&script, false).await, Auditor::start(&script, true).await];
    let (client, id) = client(&world, &auditors).await;
    for _ in 0..4 {
        let audited = client.session(id).audit(&AuditWish::default()).await.unwrap();
        assert_eq!(audited.report.node, auditors[1].id());
    }
    let only = AuditWish { node: Some(auditors[0].id()), ..AuditWish::default() };
    let error = client.session(id).audit(&only).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnsupportedVersion), "{error}");
    client.shutdown(GRACE).await;
    // If no other node has the model, there is no node to ask.
    let lonely = Client::open(world.config(world.home.path())).await.unwrap();
    let error = lonely.session(id).audit(&AuditWish::default()).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::NotAuditable { reason } if reason.contains("no other node")),
        "{error}"
    );
    lonely.shutdown(GRACE).await;
}
