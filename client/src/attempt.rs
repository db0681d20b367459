//! One attempt at a turn: sends it, opens the reply and rebuilds the turn. Ends with an accepted turn or a
//! failure with the known facts; it never decides the next step.

mod accept;
pub(crate) mod checks;
pub(crate) mod delivery;
pub(crate) mod embed;
pub(crate) mod liveness;
pub(crate) mod opening;
mod pace;
mod receive;
mod reply;
pub(crate) mod request;
pub(crate) mod resolve;

use std::{sync::Arc, time::Duration};

use baton_mesh::TurnStream;
use baton_proto::{
    SignedObject,
    commit::AcceptedTurn,
    ids::ExchangeKey,
    memory::MemoryItem,
    turn::TurnAuth,
    wire::{ClientFrame, RelayRecall, TurnRequest, TurnStatus},
};
use tokio::time::Instant;

use crate::{
    attempt::request::PreparedAttempt,
    core::Core,
    event::{RouteOptions, TurnEvent},
    identities::SessionMesh,
    network::{
        exchange::{self, ExchangeError},
        retry::{AnswerPrefix, AttemptFailure},
    },
    session::{open_session::Session, state::State},
    timeouts::Timeouts,
};

use accept::{ArrivedAnswer, AuthorTurn};
pub(crate) use pace::first_token_wait;
pub(crate) use receive::{ReplyTail, admitted};
use reply::ArrivingReply;
use resolve::{SHORT_STATUS_WAIT, STATUS_WAIT};

/// Receives the events of a turn.
pub(crate) type Events<'a> = dyn FnMut(TurnEvent) + Send + 'a;

/// A rebuilt turn.
pub(crate) struct AttemptSuccess {
    pub(crate) accepted: AcceptedTurn,
    pub(crate) memory: Vec<MemoryItem>,
    /// The tokens of the answer; none of a turn whose reply was lost.
    pub(crate) tokens: Vec<u32>,
    /// The substream on which the node will report whether the turn is stored, unless the reply was lost.
    pub(crate) tail: Option<ReplyTail>,
}

/// The environment of an attempt.
pub(crate) struct AttemptContext<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) session: &'a Arc<Session>,
    /// The network under the session's identity.
    pub(crate) session_mesh: &'a SessionMesh,
    pub(crate) route: &'a RouteOptions,
    /// The beginning of the answer, if another node made one.
    pub(crate) begun: Option<&'a AnswerPrefix>,
    pub(crate) timeouts: Timeouts,
    /// How long to wait for the first token, once the node's queue ahead of the turn is empty.
    pub(crate) first_token: Duration,
    /// Whether another node could continue the answer, so that a stalled node is not waited for.
    pub(crate) substitute: bool,
    /// Whether another node is known to begin its answers, so that a slow node is not waited for.
    pub(crate) faster: bool,
}

/// Sends a prepared and journaled attempt, follows the reply and rebuilds the turn.
pub(crate) async fn run(
    context: &AttemptContext<'_>,
    prepared: PreparedAttempt,
    events: &mut Events<'_>,
) -> Result<AttemptSuccess, AttemptFailure> {
    let mut reply = ArrivingReply::new(context, &prepared);
    if !reply.memory.is_empty() {
        events(TurnEvent::Memory(reply.memory.clone()));
    }
    let sent = Instant::now();
    let PreparedAttempt { turn, auth, request, node_key, secret, terms, .. } = prepared;
    let opened = send(context, &auth, request, node_key, events).await;
    let mut stream = opened.map_err(|failure| context.blame(failure))?;
    let admitted = admitted(context, &auth, &mut stream, &mut reply.memory, events).await;
    let nonce = admitted.map_err(|failure| context.blame(failure))?;
    reply.admit(Instant::now());
    let mut tail = ReplyTail::new(context, stream, secret.reply_opener(&nonce, &auth.auth_hash().0));
    let committed = match receive::follow(context, &auth, &mut tail, &mut reply, events).await {
        Ok(committed) => committed,
        Err(failure) => return Err(reply.failed(context.blame(failure))),
    };
    let arrived =
        ArrivedAnswer { text: &reply.text, tokens: reply.tokens, hashes: Some(&reply.hashes), lost: false };
    let (answer, memory) = (reply.text.as_str(), reply.memory.as_slice());
    let sealed =
        AuthorTurn { turn: &turn, auth: &auth, committed: &committed, answer, memory, terms, arrived };
    let now_ms = context.core.now_ms();
    let accepted = match context.session.read(|state| sealed.accept(state, now_ms)) {
        Ok(accepted) => accepted,
        Err(code) => return Err(reply.failed(context.blame(AttemptFailure::check(code)))),
    };
    reply.unnoted.clear();
    tail.speed = context.route.relayer.is_none().then(|| reply.pace.measured(sent));
    let tokens = std::mem::take(&mut *reply.ids);
    Ok(AttemptSuccess { accepted, memory: reply.memory, tokens, tail: Some(tail) })
}

/// Opens the substream at the node, or at the relayer, and sends the request there.
pub(crate) async fn send(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    request: TurnRequest,
    node_key: ExchangeKey,
    events: &mut Events<'_>,
) -> Result<TurnStream, AttemptFailure> {
    let RouteOptions { relayer, hint, .. } = context.route;
    let (target, frame) = match relayer {
        Some(relayer) => {
            let hint = hint.as_ref().map(|hint| hint.sign(auth).bytes().clone());
            let recall = hint.map(|hint| RelayRecall { hint, node_key });
            (relayer.node, ClientFrame::Relay { request, recall })
        }
        None => (auth.audience, ClientFrame::Turn(request)),
    };
    let directory = &context.core.directory;
    let addrs = match relayer {
        Some(relayer) if !relayer.addrs.is_empty() => relayer.addrs.clone(),
        _ => directory.addrs_to_dial(target).await,
    };
    // A relayer passes no quota on, and the node would charge the turn to the relayer's user.
    let quota = context.core.config.quota.as_deref().filter(|_| relayer.is_none());
    let quota = quota.and_then(|quota| quota.for_turn(auth)).map(ClientFrame::Quota);
    let frames: Vec<_> = quota.iter().chain([&frame]).collect();
    // Our own request may be too large for a frame.
    let frames = exchange::encode_all(&frames).map_err(|error| AttemptFailure::from(error).unclear())?;
    drop(frame);
    let wait = context.timeouts.open;
    let mut stream = match relayer {
        Some(_) => {
            let opened = context.session_mesh.open(target, &addrs, Instant::now() + wait).await;
            opened.map_err(ExchangeError::from)?
        }
        None => opening::open_reported(context, target, &addrs, events).await?,
    };
    exchange::send_all(&mut stream, frames, wait).await?;
    Ok(stream)
}

impl AttemptContext<'_> {
    /// Removes all blame from the node if a relayer is in between. A relayer can drop, change and invent the
    /// data it carries, and report different memory to each side.
    fn blame(&self, failure: AttemptFailure) -> AttemptFailure {
        if self.route.relayer.is_some() { failure.unclear() } else { failure }
    }

    /// Whether the node says, asked apart from the reply, that it still works on the turn.
    async fn is_running(&self, auth: &SignedObject<TurnAuth>) -> bool {
        let wait = if self.substitute { SHORT_STATUS_WAIT } else { STATUS_WAIT };
        let status = resolve::status(self.core, self.session_mesh, self.session, auth, wait).await;
        matches!(status, Ok(TurnStatus::Accepted))
    }
}

/// Attempts of the pending turn that may have been sealed, according to their nodes; oldest first.
pub(crate) fn open_attempts(state: &State) -> Vec<SignedObject<TurnAuth>> {
    let pending = state.pending.iter().flat_map(|pending| &pending.attempts);
    pending.filter(|attempt| !attempt.refused).map(|attempt| attempt.auth.clone()).collect()
}
