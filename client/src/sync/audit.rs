//! Audits: another node recomputes a turn from the data that its client discloses, and signs the result.

use std::{sync::Arc, time::Duration};

use baton_keys::secret::random_bytes;
use baton_mesh::{AUDIT_PROTOCOL, OpenError, TurnStream};
use baton_proto::{
    ErrorCode, SignedObject,
    audit::{AuditAnswer, AuditBytes, AuditReport, AuditRequest, frame},
    codec,
    disclosure::Disclosure,
    ids::NodeId,
    limits::{AUDIT_REQUEST_VERSION, MAX_SIGNED_BYTES},
};
use tokio::time::Instant;

use crate::{
    core::Core,
    error::ClientError,
    identities::SessionMesh,
    network::{
        choose::{Choice, Wish},
        exchange::ExchangeError,
        retry::AttemptFailure,
    },
    session::{
        info::view,
        open_session::Session,
        state::{State, TurnMeta},
    },
    sync::transfer,
};

/// Most nodes to try until one takes the request: many make no audits.
const MAX_NODES: usize = 16;
/// Pause before the next search for nodes.
const SEARCH_PAUSE: Duration = Duration::from_millis(250);
/// Largest frame of an answer: a signed report, or a refusal.
const MAX_ANSWER_BYTES: usize = MAX_SIGNED_BYTES + 256;

/// The request for an audit.
#[derive(Clone, Debug, Default)]
pub struct AuditWish {
    /// The turn; the last one if none.
    pub turn: Option<u64>,
    /// The node to ask, possibly the author itself; if none, any other node that serves the model.
    pub node: Option<NodeId>,
    /// The JSON schema of the answer, as it was sent; if none, the journal's.
    pub schema: Option<String>,
}

/// The outcome of an audit.
#[derive(Clone, Debug)]
pub struct AuditOutcome {
    /// The turn.
    pub turn: u64,
    /// The node that answered the turn.
    pub author: NodeId,
    /// The signed statement, verified and about this very request.
    pub report: SignedObject<AuditReport>,
    /// Nodes that were asked earlier and made no audit, with the reasons.
    pub refused: Vec<(NodeId, String)>,
}

/// The schema that a turn's answer was held to, if this journal has its text.
fn journaled_schema(state: &State, meta: &TurnMeta) -> Option<String> {
    let (sampling, _) = meta.asked.as_ref()?;
    state.schema(&sampling.json_schema?).map(str::to_owned)
}

/// As [`SessionHandle::audit`](crate::SessionHandle::audit).
pub(crate) async fn audit(
    core: &Arc<Core>,
    session: &Arc<Session>,
    wish: &AuditWish,
) -> Result<AuditOutcome, ClientError> {
    let not = |reason: String| ClientError::NotAuditable { reason };
    let view = session.read(|state| {
        let mut turns = state.history.iter().zip(&state.meta);
        let turn = match wish.turn {
            Some(seq) => turns.find(|(turn, _)| turn.link.seq == seq),
            None => state.last(),
        };
        turn.map(|turn| (view(turn), journaled_schema(state, turn.1)))
    });
    let (view, schema) = view.ok_or_else(|| match wish.turn {
        Some(seq) => not(format!("the session has no turn {}", seq + 1)),
        None => not("the session has no turn".to_owned()),
    })?;
    let turn = view.turn.link.seq;
    let receipt =
        view.receipt.ok_or_else(|| not(format!("there is no receipt of turn {} here", turn + 1)))?;
    let export = transfer::export_until(session, turn).await?;
    let disclosure = Disclosure::of(&export, turn, view.memory, wish.schema.clone().or(schema))
        .map_err(|error| not(format!("turn {}: {error}", turn + 1)))?;
    let mut request = AuditRequest {
        version: AUDIT_REQUEST_VERSION,
        nonce: random_bytes(),
        audience: receipt.node,
        receipt: receipt.receipt_hash(),
        model: receipt.model,
        tokens: receipt.tokens.output,
        disclosure,
    };
    AuditBytes::new(&request)
        .map_err(|_| not("the window of the turn is too long to be handed to a node".to_owned()))?;
    let mut refused: Vec<(NodeId, String)> = Vec::new();
    let (mut last, mut disclosed) = (None, false);
    // The author could claim anything about its own answer.
    let mut tried: Vec<NodeId> = if wish.node.is_none() { vec![receipt.node] } else { Vec::new() };
    let model = receipt.model.to_string();
    let until = Instant::now() + core.config.timeouts.discovery;
    let mesh = core.identities.of_turns(session.id).await?;
    while refused.len() < MAX_NODES {
        let wanted = Wish {
            model: Some(&model),
            node: wish.node,
            tried: &tried,
            now_ms: core.now_ms(),
            ..Wish::default()
        };
        let chosen = core.directory.choose(&wanted).await;
        let Some((choice, _in_flight)) = chosen.ok().filter(|(choice, _)| !tried.contains(&choice.node))
        else {
            // Just after the start the client still learns of nodes; a named node has been asked.
            if wish.node.is_some_and(|node| tried.contains(&node)) || Instant::now() >= until {
                break;
            }
            tokio::time::sleep(SEARCH_PAUSE).await;
            core.directory.refresh().await;
            continue;
        };
        request.audience = choice.node;
        request.nonce = random_bytes();
        let asked = match open(core, &mesh, choice.node).await {
            Ok(stream) => {
                disclosed = true;
                ask_for_audit(core, stream, &choice, &request).await
            }
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(report) => return Ok(AuditOutcome { turn, author: receipt.node, report, refused }),
            Err(failure) => {
                tracing::debug!(node = %choice.node, reason = failure.reason, "a node made no audit");
                refused.push((choice.node, failure.reason.clone()));
                last = Some(failure);
                tried.push(choice.node);
            }
        }
        // A second node sees the conversation only if the user asks for it.
        if disclosed {
            break;
        }
    }
    let (Some(failure), Some((node, _))) = (last, refused.last()) else {
        return Err(not("no other node that serves the model was found".to_owned()));
    };
    let (attempts, node, code) = (u32::try_from(refused.len()).unwrap_or(u32::MAX), *node, failure.code);
    Err(ClientError::AuditFailed { attempts, node, code, reason: failure.reason, disclosed })
}

/// A substream for an audit; it discloses nothing.
async fn open(core: &Arc<Core>, mesh: &SessionMesh, node: NodeId) -> Result<TurnStream, AttemptFailure> {
    let addrs = core.directory.addrs_to_dial(node).await;
    let until = Instant::now() + core.config.timeouts.open;
    mesh.open_side(node, &addrs, &AUDIT_PROTOCOL, until).await.map_err(|error| match error {
        OpenError::ProtocolUnsupported => AttemptFailure {
            reason: "it makes none".to_owned(),
            ..AttemptFailure::node(ErrorCode::UnsupportedVersion, 0)
        },
        error => ExchangeError::Open(error).into(),
    })
}

/// One request, to one node, which sees what it discloses.
async fn ask_for_audit(
    core: &Arc<Core>,
    mut stream: TurnStream,
    choice: &Choice,
    request: &AuditRequest,
) -> Result<SignedObject<AuditReport>, AttemptFailure> {
    let config = &core.config;
    let quota = |hash| {
        let holder = config.quota.as_deref()?;
        holder.for_audit((choice.node, request.model), core.now_ms(), hash)
    };
    let (hash, frame) = frame(request, quota).map_err(|code| AttemptFailure::check(code).unclear())?;
    let answer = config.timeouts.reply + config.timeouts.idle;
    let failed = |error| AttemptFailure::from(ExchangeError::Frame(error));
    stream.send_by(&frame, Instant::now() + answer).await.map_err(failed)?;
    // This side stays open: closing it would cancel the audit.
    let received = stream.recv_by(MAX_ANSWER_BYTES, Instant::now() + answer).await;
    let bytes = received.map_err(failed)?.ok_or(ExchangeError::Ended)?;
    match codec::decode(&bytes, MAX_ANSWER_BYTES).map_err(AttemptFailure::check)? {
        AuditAnswer::Refused { code, retry_after_ms } => Err(AttemptFailure::node(code, retry_after_ms)),
        AuditAnswer::Report(bytes) => {
            AuditReport::verify(bytes, &hash, request).map_err(AttemptFailure::check)
        }
    }
}
