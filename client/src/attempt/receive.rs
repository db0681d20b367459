//! Receives a reply: the admission, the events up to the commitment, and the report on the store after it.

use std::time::Duration;

use baton_keys::seal::StreamOpener;
use baton_mesh::{FrameError, TurnStream};
use baton_proto::{
    ErrorCode, SignedBytes, SignedObject,
    memory::{MemoryItem, check_items},
    turn::TurnAuth,
    wire::{Committed, NodeFrame, ReplyEvent, StoreState},
};
use tokio::time::Instant;

use super::{AttemptContext, Events, reply::ArrivingReply};
use crate::{
    event::TurnEvent,
    identities::SessionMesh,
    network::{
        exchange::{self, ExchangeError},
        reputation::SpeedSample,
        retry::{AttemptFailure, AttemptStatus},
    },
    session::state::{AttemptChange, Entry},
};

/// The rest of a reply, after the turn is final.
pub(crate) struct ReplyTail {
    stream: TurnStream,
    /// Carries the stream.
    _mesh: SessionMesh,
    opener: StreamOpener,
    /// Speed of the answer; none through a relayer, whose time cannot be told from the node's.
    pub(crate) speed: Option<SpeedSample>,
}

/// Waits until the node admits or refuses the turn; returns the nonce of its reply.
pub(crate) async fn admitted(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    stream: &mut TurnStream,
    memory: &mut Vec<MemoryItem>,
    events: &mut Events<'_>,
) -> Result<[u8; 32], AttemptFailure> {
    let mut frame = first_frame(context, auth, stream, events).await?;
    // A relayer first reports its added items, once; a node reports no memory.
    if context.route.relayer.is_some() {
        match frame {
            Some(NodeFrame::Memory(items)) => {
                *memory = take_memory(context, auth, items, events).await?;
                frame = first_frame(context, auth, stream, events).await?;
            }
            Some(NodeFrame::Refused { .. }) | None => {}
            Some(_) => return Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }
    match frame {
        Some(NodeFrame::Accepted { nonce }) => {
            events(TurnEvent::Admitted);
            Ok(nonce)
        }
        Some(NodeFrame::Refused { code, retry_after_ms }) => {
            let failure = AttemptFailure::node(code, retry_after_ms);
            // A relayer can report this about a turn that it still passed on.
            Err(match context.route.relayer {
                Some(_) => {
                    AttemptFailure { status: AttemptStatus::Hearsay, reason: relayed_reason(code), ..failure }
                }
                None => failure,
            })
        }
        Some(_) => Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        None => Err(ExchangeError::Ended.into()),
    }
}

/// The next frame before the node admits the turn. A node that loads its model may take long.
async fn first_frame(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    stream: &mut TurnStream,
    events: &mut Events<'_>,
) -> Result<Option<NodeFrame>, AttemptFailure> {
    let sent = Instant::now();
    let deadline = sent + context.timeouts.reply_to(auth.max_output_tokens);
    loop {
        match exchange::receive(stream, context.timeouts.admit).await {
            Err(ExchangeError::Frame(FrameError::Timeout)) if Instant::now() < deadline => {
                if context.substitute || !context.is_running(auth).await {
                    return Err(ExchangeError::Frame(FrameError::Timeout).into());
                }
                events(TurnEvent::StillRunning { node: auth.audience, waited: sent.elapsed() });
            }
            received => return Ok(received?),
        }
    }
}

/// A failure in a relayer's words. A relayer reports a node as busy also if it cannot reach the node.
fn relayed_reason(code: ErrorCode) -> String {
    match code {
        ErrorCode::Busy => "the relayer cannot reach the node, or has no free slot".to_owned(),
        code => code.to_string(),
    }
}

async fn take_memory(
    context: &AttemptContext<'_>,
    auth: &TurnAuth,
    items: Vec<MemoryItem>,
    events: &mut Events<'_>,
) -> Result<Vec<MemoryItem>, AttemptFailure> {
    check_items(&items).map_err(AttemptFailure::check)?;
    let entry = Entry::OfAttempt(auth.attempt, AttemptChange::Memory(items.clone()));
    context.session.note(entry).await.map_err(journal_failed)?;
    events(TurnEvent::Memory(items.clone()));
    Ok(items)
}

fn journal_failed(error: crate::error::ClientError) -> AttemptFailure {
    AttemptFailure { reason: error.to_string(), ..AttemptFailure::check(ErrorCode::Internal) }.unclear()
}

/// Follows the reply until the turn is committed.
pub(super) async fn follow(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    tail: &mut ReplyTail,
    reply: &mut ArrivingReply,
    events: &mut Events<'_>,
) -> Result<Committed, AttemptFailure> {
    loop {
        let next = next_event(context, auth, tail, reply, events).await?;
        let (event, last) =
            next.ok_or_else(|| AttemptFailure::lost(ErrorCode::StreamTruncated.to_string()))?;
        reply.heard = Instant::now();
        match event {
            ReplyEvent::Committed(committed) => return Ok(*committed),
            event => take_event(context, auth, event, reply, events).await?,
        }
        if last {
            return Err(AttemptFailure::check(ErrorCode::StreamTruncated));
        }
    }
}

/// The next event, and whether it is the last; none if the reply ended early. A silent node is asked whether it still
/// works on the turn.
async fn next_event(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    tail: &mut ReplyTail,
    reply: &mut ArrivingReply,
    events: &mut Events<'_>,
) -> Result<Option<(ReplyEvent, bool)>, AttemptFailure> {
    let deadline = reply.admitted + context.timeouts.reply_to(auth.max_output_tokens);
    loop {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        // Checked apart from the wait, which a node that keeps sending events would never let expire.
        if left.is_zero() {
            let reason = if reply.runs_at.is_some() {
                "the node still works on the turn, and it took too long"
            } else {
                "the reply took too long"
            };
            return Err(AttemptFailure::stalled(reason.to_owned()));
        }
        let patience = reply.patience(context, now).min(left);
        match tail.next(patience).await {
            Err(failure) if failure.status == AttemptStatus::Lost && now.elapsed() >= patience => {}
            next => return next,
        }
        let may_run = reply.may_run(context);
        if !may_run || !context.is_running(auth).await {
            let silent = reply.heard.elapsed().as_millis();
            let reason = format!("the node stalled: it sent nothing for {silent} ms");
            return Err(AttemptFailure { disowned: may_run, ..AttemptFailure::stalled(reason) });
        }
        reply.runs_at = Some(Instant::now());
        events(TurnEvent::StillRunning { node: auth.audience, waited: reply.admitted.elapsed() });
    }
}

/// Checks an event before the commitment, and passes it on.
async fn take_event(
    context: &AttemptContext<'_>,
    auth: &SignedObject<TurnAuth>,
    event: ReplyEvent,
    reply: &mut ArrivingReply,
    events: &mut Events<'_>,
) -> Result<(), AttemptFailure> {
    match event {
        ReplyEvent::Waiting(ahead) => {
            reply.waits(ahead, Instant::now()).map_err(AttemptFailure::check)?;
            if ahead > 0 {
                events(TurnEvent::Waiting(ahead));
            }
        }
        ReplyEvent::Tokens { index, ids, text, logprobs } => {
            reply.push(index, &ids, &text).map_err(AttemptFailure::check)?;
            let reports = reply.reports.take(&ids, logprobs).map_err(AttemptFailure::check)?;
            if !reports.is_empty() {
                events(TurnEvent::Logprobs(reports));
            }
            if !text.is_empty() {
                events(TurnEvent::Text(text));
            }
        }
        ReplyEvent::Progress(note) => {
            reply.check_note(note, auth).map_err(AttemptFailure::check)?;
            if let Some(entry) = reply.unnoted.take() {
                context.session.note(entry).await.map_err(journal_failed)?;
            }
        }
        ReplyEvent::Failed { code, retry_after_ms, reason } => {
            return Err(AttemptFailure::node(code, retry_after_ms).because(&reason));
        }
        // A commitment is the caller's. The store cannot have a turn before it is sealed.
        ReplyEvent::Committed(_) | ReplyEvent::Store(_) | ReplyEvent::Checked(_) => {
            return Err(AttemptFailure::check(ErrorCode::NonCanonical));
        }
    }
    Ok(())
}

impl ReplyTail {
    pub(crate) fn new(context: &AttemptContext<'_>, stream: TurnStream, opener: StreamOpener) -> Self {
        Self { stream, _mesh: context.session_mesh.clone(), opener, speed: None }
    }

    /// The next event and whether it is the last; none when the reply ended before its last chunk.
    pub(crate) async fn next(
        &mut self,
        wait: Duration,
    ) -> Result<Option<(ReplyEvent, bool)>, AttemptFailure> {
        match exchange::receive(&mut self.stream, wait).await? {
            None => Ok(None),
            Some(NodeFrame::Chunk(sealed)) => {
                // A chunk that does not open was changed or moved, or an earlier one was dropped.
                let (opened, last) = self
                    .opener
                    .open(&sealed)
                    .map_err(|_| AttemptFailure::check(ErrorCode::StreamTruncated))?;
                let event = ReplyEvent::from_chunk(&opened).map_err(AttemptFailure::check)?;
                Ok(Some((event, last)))
            }
            // Any carrier of the bytes can write this. The node's own events are sealed by now.
            Some(NodeFrame::Refused { code, .. }) => {
                Err(AttemptFailure::lost(format!("the reply ended with an unsealed refusal: {code}")))
            }
            Some(_) => Err(AttemptFailure::check(ErrorCode::NonCanonical)),
        }
    }

    /// The node's last report on whether the blob is stored; waits at most `wait` in total. A substream that
    /// ends gives no report. With it comes the link of a second commitment, if the node makes one.
    pub(crate) async fn store_state(mut self, wait: Duration) -> (StoreState, Option<SignedBytes>) {
        let (mut report, mut second) = (StoreState::Pending, None);
        let watch = async {
            while let Ok(Some((event, last))) = self.next(wait).await {
                match event {
                    ReplyEvent::Store(state) => {
                        report = state;
                        if matches!(state, StoreState::Stored { .. } | StoreState::GivenUp) {
                            return;
                        }
                    }
                    // The accepted link stays valid, and the client stores its blob.
                    ReplyEvent::Committed(again) => {
                        second = Some(again.link);
                        report = StoreState::GivenUp;
                        return;
                    }
                    _ => {}
                }
                if last {
                    return;
                }
            }
        };
        // At the timeout, the last report is the result.
        let _ = tokio::time::timeout(wait, watch).await;
        (report, second)
    }
}
