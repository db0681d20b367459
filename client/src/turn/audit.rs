//! An audit: a node that the caller names checks the last answer of a session, by a request that adds no turn.

use std::sync::Arc;

use baton_proto::{
    ErrorCode, SignedObject,
    check::CheckVerdict,
    ids::NodeId,
    receipt::Receipt,
    record::RecordKind,
    turn::Sampling,
    wire::{ClientFrame, NodeFrame, ReplyEvent},
};
use tokio::time::Instant;

use crate::{
    attempt::request::{self, AttemptOptions, PreparedAttempt},
    core::Core,
    error::ClientError,
    event::RouteOptions,
    network::exchange::{self, ExchangeError},
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
    let own = core.identities.of_turns(session.id).await?;
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
    let options = AttemptOptions {
        memory_from: None,
        memory: None,
        memory_tokens: 0,
        with_locator: route.with_locator,
        inline: route.inline,
        begun: None,
        audits: true,
    };
    let now_ms = core.now_ms();
    let prepared = session.read(|state| request::prepare(state, &pending, 0, &choice, &options, now_ms))?;
    if prepared.auth.checks.is_empty() {
        return Err(nothing());
    }
    let receipt = ask(core, &own, prepared).await.map_err(|error| ClientError::TurnFailed {
        attempts: 1,
        node,
        code: match &error {
            ExchangeError::Refused { code, .. } | ExchangeError::Broken(code) => Some(*code),
            _ => None,
        },
        reason: error.to_string(),
        relayed: false,
        retry_after_ms: 0,
    })?;
    let verdict = receipt.checks.first().ok_or_else(nothing)?.verdict;
    Ok(AuditOutcome { turn, author, verdict, receipt })
}

/// Sends the request, and waits for the receipt of its node.
async fn ask(
    core: &Arc<Core>,
    own: &crate::identities::SessionMesh,
    prepared: PreparedAttempt,
) -> Result<SignedObject<Receipt>, ExchangeError> {
    let PreparedAttempt { auth, request, secret, .. } = prepared;
    let timeouts = &core.config.timeouts;
    let quota = core.config.quota.as_deref().and_then(|quota| quota.for_turn(&auth)).map(ClientFrame::Quota);
    let turn = ClientFrame::Turn(request);
    let frames = exchange::encode_all(&quota.iter().chain([&turn]).collect::<Vec<_>>())?;
    let addrs = core.directory.addrs_to_dial(auth.audience).await;
    let mut stream = own.open(auth.audience, &addrs, Instant::now() + timeouts.open).await?;
    exchange::send_all(&mut stream, frames, timeouts.open).await?;
    let wait = timeouts.reply_to(0);
    let nonce = match exchange::receive(&mut stream, wait).await? {
        Some(NodeFrame::Accepted { nonce }) => nonce,
        Some(NodeFrame::Refused { code, retry_after_ms }) => {
            return Err(ExchangeError::Refused { code, retry_after_ms });
        }
        Some(_) => return Err(ExchangeError::Broken(ErrorCode::NonCanonical)),
        None => return Err(ExchangeError::Ended),
    };
    let mut opener = secret.reply_opener(&nonce, &auth.auth_hash().0);
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(NodeFrame::Chunk(sealed)) = exchange::receive(&mut stream, left).await? else {
            return Err(ExchangeError::Ended);
        };
        let opened = opener.open(&sealed).map_err(|_| ExchangeError::Broken(ErrorCode::StreamTruncated))?;
        match ReplyEvent::from_chunk(&opened.0).map_err(ExchangeError::Broken)? {
            ReplyEvent::Waiting(_) => {}
            ReplyEvent::Failed { code, retry_after_ms, .. } => {
                return Err(ExchangeError::Refused { code, retry_after_ms });
            }
            ReplyEvent::Checked(bytes) => {
                let receipt = SignedObject::<Receipt>::verify(bytes).map_err(ExchangeError::Broken)?;
                let fits = receipt.node == auth.audience
                    && receipt.auth_hash == auth.auth_hash()
                    && receipt.checks.iter().map(|check| check.order).eq(auth.checks.iter().copied());
                return if fits {
                    Ok(receipt)
                } else {
                    Err(ExchangeError::Broken(ErrorCode::ReceiptMismatch))
                };
            }
            _ => return Err(ExchangeError::Broken(ErrorCode::NonCanonical)),
        }
    }
}
