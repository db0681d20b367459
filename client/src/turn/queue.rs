//! Waiting messages of a session: displaced turns that are replayed, and new messages behind them.

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, record::Message};

use crate::{
    attempt::Events,
    conflict::ChainSide,
    core::Core,
    error::ClientError,
    event::{DeviceEvent, ReplayedTurn, ResumeOptions, TurnEvent, TurnOutcome},
    index_status::IndexStatus,
    session::{
        open_session::Session,
        state::{Entry, State},
    },
    storage,
    sync::{
        head::{self, HeadStatus, PublishReason},
        reconcile::{MergeMode, MergeOutcome, compare_and_merge},
    },
};

/// The outcome of [`SessionHandle::reconcile`](crate::SessionHandle::reconcile).
#[derive(Debug, Clone)]
pub struct ReconcileReport {
    /// The state of this device's head in the index, after the call.
    pub status: HeadStatus,
    /// Merged turns of other devices.
    pub caught_up: u64,
    /// A fork: the first turn that differs, and whether this device's turns kept their positions.
    pub fork: Option<(u64, bool)>,
    /// Turns that the merge made this device send again, and the most that they cost, in millionths of the
    /// node's unit.
    pub replays: (u64, u64),
    /// Replayed turns of this device.
    pub replayed: Vec<ReplayedTurn>,
    /// State of each head index.
    pub indexes: Vec<IndexStatus>,
}

/// Which waiting messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueFilter {
    /// All, including the pending message.
    All,
    /// Only replays.
    Replays,
}

/// The outcome of sending them.
#[derive(Default)]
pub(crate) struct SendReport {
    replayed: Vec<ReplayedTurn>,
    /// The last new message.
    pub(crate) last: Option<TurnOutcome>,
}

/// The displaced turn that the pending turn replays.
struct PendingReplay {
    from: u64,
    messages: Vec<Message>,
    first_answer: String,
}

/// As [`SessionHandle::reconcile`](crate::SessionHandle::reconcile).
pub(crate) async fn reconcile(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    on_event: impl FnMut(TurnEvent) + Send,
) -> Result<ReconcileReport, ClientError> {
    merge_and_replay(core, session, MergeMode::ResolveForks, options, on_event).await
}

/// As [`SessionHandle::resolve`](crate::SessionHandle::resolve).
pub(crate) async fn resolve(
    core: &Arc<Core>,
    session: &Arc<Session>,
    side: ChainSide,
    options: &ResumeOptions,
    on_event: impl FnMut(TurnEvent) + Send,
) -> Result<ReconcileReport, ClientError> {
    let heads = session.read(|state| state.conflict.as_ref().map(|conflict| conflict.heads));
    let mode = heads.map_or(MergeMode::ResolveForks, |heads| MergeMode::Take(side, heads));
    merge_and_replay(core, session, mode, options, on_event).await
}

async fn merge_and_replay(
    core: &Arc<Core>,
    session: &Arc<Session>,
    mode: MergeMode,
    options: &ResumeOptions,
    mut on_event: impl FnMut(TurnEvent) + Send,
) -> Result<ReconcileReport, ClientError> {
    let _permit = session.begin()?;
    let merged = match Box::pin(compare_and_merge(core, session, mode, Duration::MAX, &mut on_event)).await {
        // The index lost or withholds the record that it took: ours is published above the one it shows.
        Err(ClientError::Protocol(ErrorCode::RollbackDetected)) => {
            on_event(TurnEvent::Devices(DeviceEvent::ShownLess));
            MergeOutcome::unchanged(HeadStatus::Unpublished)
        }
        merged => merged?,
    };
    let sent = Box::pin(send_queued(core, session, options, QueueFilter::Replays, &mut on_event)).await?;
    storage::ensure_head_id(session).await?;
    let published = head::publish_head(core, session, PublishReason::Head).await;
    if let Err(error) = &published {
        // The merge is done; background work offers the rest again.
        let reason = error.to_string();
        on_event(TurnEvent::Devices(DeviceEvent::NotCompared { reason }));
    }
    let MergeOutcome { status, caught_up, fork, replays } = merged;
    let replays = (replays, replays.saturating_mul(core.config.max_price));
    let status = if published.is_ok() && session.read(|state| state.last().is_some()) {
        HeadStatus::Current
    } else {
        status
    };
    let indexes = session.indexes(|view| view.statuses.clone());
    Ok(ReconcileReport { status, caught_up, fork, replays, replayed: sent.replayed, indexes })
}

/// Sends the waiting messages in their order, and finishes the pending turn.
pub(crate) async fn send_queued(
    core: &Arc<Core>,
    session: &Arc<Session>,
    options: &ResumeOptions,
    which: QueueFilter,
    events: &mut Events<'_>,
) -> Result<SendReport, ClientError> {
    // Hint and memory were not meant for replays.
    let quiet = ResumeOptions { hint: None, memory: None, ..options.clone() };
    let mut report = SendReport::default();
    let mut merged_again = false;
    loop {
        let next = session.read(|state| {
            let next = state.next_waiting().filter(|next| which == QueueFilter::All || next.of.is_some());
            next.map(|next| Entry::Replaying {
                number: next.number,
                turn_id: state.next_turn_id(&next.turn.turn_id),
            })
        });
        if let Some(replaying) = next {
            session.record(vec![replaying]).await?;
        }
        let pending = session.read(|state| state.pending.as_ref().map(|_| pending_replay(state)));
        let result = match &pending {
            None => return Ok(report),
            Some(None) if which == QueueFilter::Replays => return Ok(report),
            Some(None) => Box::pin(super::finish_pending(core, session, options, events)).await,
            Some(Some(_)) => Box::pin(super::finish_pending(core, session, &quiet, &mut |_| {})).await,
        };
        match (result, pending) {
            (Ok(outcome), Some(Some(replay))) => {
                let replayed = replay.finish(&outcome);
                events(TurnEvent::Devices(DeviceEvent::Replayed(Box::new(replayed.clone()))));
                report.replayed.push(replayed);
            }
            (Ok(outcome), _) => report.last = Some(outcome),
            // A node or the index revealed a newer head midway.
            (Err(error), _) if error.is_divergence() && options.reconcile && !merged_again => {
                merged_again = true;
                Box::pin(compare_and_merge(core, session, MergeMode::ResolveForks, Duration::MAX, events))
                    .await?;
            }
            (Err(error), _) => return Err(error),
        }
    }
}

impl PendingReplay {
    fn finish(self, outcome: &TurnOutcome) -> ReplayedTurn {
        ReplayedTurn {
            from: self.from,
            to: outcome.seq,
            messages: self.messages,
            first_answer: self.first_answer,
            answer: outcome.text.clone(),
            node: outcome.node,
        }
    }
}

/// The displaced turn that the pending turn replays, if any.
fn pending_replay(state: &State) -> Option<PendingReplay> {
    let displaced = state.pending_displaced()?;
    let record = displaced.turn.record.as_ref()?;
    Some(PendingReplay {
        from: displaced.turn.link.seq,
        messages: state.pending.as_ref()?.turn.messages.clone(),
        first_answer: record.answer().unwrap_or_default().to_owned(),
    })
}
