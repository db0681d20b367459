//! Renewal of stored blobs before they expire. Walrus's HTTP interface cannot extend a blob, so a renewal is
//! a PUT of the same bytes, rebuilt from this client's own text. It reads nothing from the store, and also
//! restores an expired blob.

use std::{sync::Arc, time::Duration};

use baton_proto::store::StoreError;

use crate::{
    background::{self, repair},
    core::Core,
    error::{ClientError, log_failure},
    session::{
        lifetime::BlobLifetime,
        open_session::Session,
        state::{Entry, TurnChange},
    },
    storage,
    sync::head,
};

/// Pause between two background tries of a session's renewal: a due blob still has days.
const RETRY_MS: u64 = 60 * 60 * 1000;

/// The outcome of [`SessionHandle::renew`](crate::SessionHandle::renew).
#[derive(Debug, Default)]
pub struct RenewReport {
    /// Turns whose blobs were bought again.
    pub renewed: Vec<u64>,
    /// Turns whose blobs the store lacked, although they had been called stored; they are restored.
    pub put_back: Vec<u64>,
    /// Turns whose blobs no store had confirmed; the store has them now.
    pub stored: Vec<u64>,
    /// Turns whose blobs their nodes still have this time to store; a renewal after it stores them.
    pub waiting: Vec<(u64, Duration)>,
    /// Whether the head index lacked this device's head, and has it again.
    pub published: bool,
    /// Turns whose blobs could not be bought, with the errors; they stay due.
    pub failed: Vec<(u64, ClientError)>,
    /// All blobs that the session needs, with their current lifetimes.
    pub blobs: Vec<BlobLifetime>,
}

/// As [`SessionHandle::renew`](crate::SessionHandle::renew).
pub(crate) async fn renew(
    core: &Arc<Core>,
    session: &Arc<Session>,
    within: Option<Duration>,
) -> Result<RenewReport, ClientError> {
    storage::check_answer(core).await?;
    let mut report = RenewReport::default();
    for (seq, wait) in background::unstored(core, session) {
        // One try for each: the user waits.
        if let Err(error) = background::try_store(core, session, seq, wait.is_zero()).await {
            report.failed.push((seq, error));
            // The store is down, for the other blobs too.
            break;
        }
        report.stored.extend(session.read(|state| (!state.unstored.contains(&seq)).then_some(seq)));
    }
    let within_ms = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    let horizon = within_ms.map(|within_ms| core.now_ms().saturating_add(within_ms));
    let (put_back, failed) = repair::confirm_due(core, session).await;
    report.put_back = put_back;
    if let Some(error) = failed {
        report.failed.extend(session.read(|state| Some((state.last()?.0.link.seq, error))));
    }
    report.published = head::publish_missing(core, session).await;
    for blob in core.lifetimes_of(session) {
        let wanted = blob.due || horizon.is_some_and(|horizon| blob.stored && blob.kept_until_ms < horizon);
        if !wanted {
            continue;
        }
        match renew_blob(core, session, &blob).await {
            Ok(()) => report.renewed.push(blob.seq),
            Err(error) => report.failed.push((blob.seq, error)),
        }
    }
    for branch in session.read(|state| state.branch_heads(&[])) {
        match storage::keep_branch(core, session, &branch).await {
            Ok(is_new) => report.put_back.extend(is_new.then_some(branch.seq)),
            Err(error) => report.failed.push((branch.seq, error)),
        }
    }
    report.waiting = background::unstored(core, session);
    report.waiting.retain(|(_, wait)| !wait.is_zero());
    report.blobs = core.lifetimes_of(session);
    Ok(report)
}

/// Renews due blobs in the background, if configured; an hour after a failure at the earliest.
pub(crate) fn spawn_renewal(core: &Arc<Core>, session: &Arc<Session>) {
    if !core.config.renew || !session.begin_renewal(core.terms(), core.now_ms(), RETRY_MS) {
        return;
    }
    let (shared, session) = (core.clone(), session.clone());
    core.spawn(async move {
        log_failure(session.load_all().await, "the early turns of a session were not read");
        let renewed = renew(&shared, &session, None).await;
        for (seq, error) in renewed.iter().flat_map(|report| &report.failed) {
            tracing::warn!(seq, %error, "a blob was not renewed");
        }
        log_failure(renewed, "the blobs of a session were not renewed");
    });
}

async fn renew_blob(
    core: &Arc<Core>,
    session: &Arc<Session>,
    seen: &BlobLifetime,
) -> Result<(), ClientError> {
    let seq = seen.seq;
    let _permit = session.puts.lock().await;
    let now = core.lifetimes_of(session).into_iter().find(|blob| blob.seq == seq);
    // Another task may have renewed it, or another turn may have replaced it.
    if now.is_none_or(|now| now.kept_until_ms > seen.kept_until_ms) {
        return Ok(());
    }
    let id = storage::ensure_blob_id(session, seq).await?;
    // On disk before the PUT: if this process ends before it knows more, nothing is paid twice for a
    // while.
    let doubt = |since_ms| vec![Entry::OfTurn(seq, TurnChange::RenewalDoubt(since_ms))];
    session.record(doubt(Some(core.now_ms()))).await?;
    match storage::put(core, session, seq, id).await {
        Ok(stored) if stored.end_epoch.is_some() => {
            session.record(vec![Entry::OfTurn(seq, TurnChange::Stored(stored))]).await
        }
        // A blob found in place of a lost answer is the old one, and proves nothing about the new PUT.
        Ok(_) => {
            let reason = "the store did not say until when the blob is kept".to_owned();
            Err(StoreError::OutcomeUnknown { reason }.into())
        }
        Err(ClientError::Store(error @ StoreError::OutcomeUnknown { .. })) => Err(error.into()),
        Err(error) => {
            session.record(doubt(None)).await?;
            Err(error)
        }
    }
}
