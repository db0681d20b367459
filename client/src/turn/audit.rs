//! An audit: a node that the caller names checks the last answer of a session, by a request that adds no turn.

use std::sync::Arc;

use baton_proto::{
    ErrorCode, SignedObject, check::CheckVerdict, ids::NodeId, receipt::Receipt, record::RecordKind,
    turn::Sampling, wire::ReplyEvent,
};
use tokio::time::Instant;

use super::progress::turn_failed;
use crate::{
    attempt::{
        self, AttemptContext, ReplyTail,
        request::{AttemptOrder, PreparedAttempt},
    },
    core::Core,
    error::ClientError,
    event::RouteOptions,
    network::{exchange::ExchangeError, retry::AttemptFailure},
    session::{
        open_session::Session,
        state::{PendingTurn, State},
    },
    storage,
};

/// The outcome of an audit.
#[derive(Clone, Debug)]
pub struct AuditOutcome {
    /// The turn of the answer.
    pub turn: u64,
    /// The node that gave the answer.
    pub author: NodeId,
    /// The result.
    pub verdict: CheckVerdict,
    /// The signed statement of the node that was asked.
    pub receipt: SignedObject<Receipt>,
}

/// As [`SessionHandle::audit`](crate::SessionHandle::audit).
pub(crate) async fn audit(
    core: &Arc<Core>,
    session: &Arc<Session>,
    node: NodeId,
) -> Result<AuditOutcome, ClientError> {
    let _permit = session.begin()?;
    let nothing = || ClientError::NotAuditable;
    let last = session.read(|state| {
        let (turn, meta) = state.last()?;
        Some((turn.link.seq, turn.link.author, meta.receipt.as_ref()?.model))
    });
    let (turn, author, model) = last.ok_or_else(nothing)?;
    storage::ensure_head_id(session).await?;
    let session_mesh = core.identities.of_turns(session.id).await?;
    let route = RouteOptions { model: Some(model.to_string()), node: Some(node), ..RouteOptions::default() };
    let (choice, _in_flight) = Box::pin(core.directory.choose(&core.wish(&route))).await?;
    let pending = PendingTurn {
        turn_id: session.read(State::draw_turn_id),
        kind: RecordKind::Turn,
        supersedes_from: None,
        messages: Vec::new(),
        sampling: Sampling::default(),
        max_output_tokens: 0,
        model: None,
        begun_ms: core.now_ms(),
    };
    let now_ms = core.now_ms();
    let prepared = session.read(|state| {
        let (turn, choice, route) = (&pending, &choice, &route);
        AttemptOrder { state, turn, attempt: 0, choice, route, begun: None, now_ms }.prepare()
    })?;
    if prepared.auth.checks.is_empty() {
        return Err(nothing());
    }
    let timeouts = core.config.timeouts;
    let context = AttemptContext {
        core,
        session,
        session_mesh: &session_mesh,
        route: &route,
        begun: None,
        timeouts,
        first_token: timeouts.first_token,
        substitute: false,
        faster: false,
    };
    let asked = Box::pin(ask(&context, prepared)).await;
    let receipt = asked.map_err(|failure| turn_failed(1, node, &failure))?;
    let verdict = receipt.checks.first().ok_or_else(nothing)?.verdict;
    Ok(AuditOutcome { turn, author, verdict, receipt })
}

/// Sends the request, and waits for the receipt of its node.
async fn ask(
    context: &AttemptContext<'_>,
    prepared: PreparedAttempt,
) -> Result<SignedObject<Receipt>, AttemptFailure> {
    let PreparedAttempt { auth, request, node_key, secret, .. } = prepared;
    let mut stream = attempt::send(context, &auth, request, node_key, &mut |_| {}).await?;
    let nonce = attempt::admitted(context, &auth, &mut stream, &mut Vec::new(), &mut |_| {}).await?;
    let mut tail = ReplyTail::new(context, stream, secret.reply_opener(&nonce, &auth.auth_hash().0));
    let deadline = Instant::now() + context.timeouts.reply_to(0);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tail.next(left).await?.ok_or(ExchangeError::Ended)?.0 {
            ReplyEvent::Waiting(_) => {}
            ReplyEvent::Failed { code, retry_after_ms, reason } => {
                return Err(AttemptFailure::node(code, retry_after_ms).because(&reason));
            }
            ReplyEvent::Checked(bytes) => {
                let receipt = SignedObject::<Receipt>::verify(bytes).map_err(AttemptFailure::check)?;
                let fits = receipt.node == auth.audience
                    && receipt.auth_hash == auth.auth_hash()
                    && receipt.checks.iter().map(|check| check.order).eq(auth.checks.iter().copied());
                let mismatch = || AttemptFailure::check(ErrorCode::ReceiptMismatch);
                return fits.then_some(receipt).ok_or_else(mismatch);
            }
            _ => return Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }
}
