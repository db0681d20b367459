//! Renewal of stored blobs before they expire. Walrus's HTTP interface cannot extend a blob, so a renewal is
//! a PUT of the same bytes, rebuilt from this client's own text. It reads nothing from the store, and also
//! restores an expired blob.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use baton_proto::{ids::SessionId, store::StoreError};

use crate::{
    client::Client,
    error::ClientError,
    session::{
        lifetime::{self, BlobLifetime},
        open_session::Session,
        state::{Entry, StorageTerms},
    },
};

/// Pause between two background tries of a session's renewal: a due blob still has days.
const RETRY_MS: u64 = 60 * 60 * 1000;

/// The outcome of [`Client::renew`].
#[derive(Debug, Default)]
pub struct RenewReport {
    /// Turns whose blobs were bought again.
    pub renewed: Vec<u64>,
    /// The turn whose blob the store lacked, although its node had called it stored; it is restored.
    pub put_back: Option<u64>,
    /// Whether the head index lacked this device's head, and has it again.
    pub published: bool,
    /// Turns whose blobs could not be bought, with the errors; they stay due.
    pub failed: Vec<(u64, ClientError)>,
    /// All blobs that the session needs, with their current lifetimes.
    pub blobs: Vec<BlobLifetime>,
}

impl Client {
    /// Lifetimes of the blobs that a session needs, oldest first.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn lifetimes(&self, id: SessionId) -> Result<Vec<BlobLifetime>, ClientError> {
        let session = self.open_session(id).await?;
        Ok(self.lifetimes_of(&session))
    }

    /// Buys those of a session's blobs again that are due, or may expire `within` that time. A failure does
    /// not stop the others; each is one PUT and may cost money. Also checks that the store has the last
    /// turn's blob and the index this device's head, and restores missing ones. Nothing else maintains a
    /// session at rest.
    ///
    /// A renewal whose answer was lost, or that the end of the process cut off, may have been paid. Such a
    /// blob is not due again for an eighth of an epoch. Dropping this future midway counts as the end of the
    /// process.
    ///
    /// # Errors
    /// As opening the session.
    pub async fn renew(&self, id: SessionId, within: Option<Duration>) -> Result<RenewReport, ClientError> {
        let session = self.open_session(id).await?;
        let horizon = within.map(|within| {
            self.now_ms().saturating_add(u64::try_from(within.as_millis()).unwrap_or(u64::MAX))
        });
        let mut report = RenewReport::default();
        match self.confirm_last(&session).await {
            Ok(put_back) => report.put_back = put_back,
            Err(error) => report.failed.extend(session.read(|state| Some((state.last()?.0.link.seq, error)))),
        }
        report.published = self.publish_missing(&session).await;
        for blob in self.lifetimes_of(&session) {
            let wanted =
                blob.due || horizon.is_some_and(|horizon| blob.stored && blob.kept_until_ms < horizon);
            if !wanted {
                continue;
            }
            match self.renew_blob(&session, &blob).await {
                Ok(()) => report.renewed.push(blob.seq),
                Err(error) => report.failed.push((blob.seq, error)),
            }
        }
        report.blobs = self.lifetimes_of(&session);
        Ok(report)
    }

    /// Renews due blobs in the background, if configured; an hour after a failure at the earliest.
    pub(crate) fn spawn_renewal(&self, session: &Arc<Session>) {
        if !self.inner.config.renew {
            return;
        }
        let (now_ms, terms) = (self.now_ms(), self.terms());
        let signals = session.read(|state| state.signals.clone());
        let tried_ms = signals.renewal_tried_ms.load(Ordering::Relaxed);
        let lately = tried_ms != 0 && now_ms.saturating_sub(tried_ms) < RETRY_MS;
        if lately || !session.any_due(terms, now_ms) {
            return;
        }
        signals.renewal_tried_ms.store(now_ms, Ordering::Relaxed);
        let (client, session) = (self.clone(), session.clone());
        self.spawn(async move {
            match client.renew(session.id, None).await {
                Ok(report) => {
                    for (seq, error) in report.failed {
                        tracing::warn!(seq, %error, "a blob was not renewed");
                    }
                }
                Err(error) => tracing::warn!(%error, "a session's blobs were not renewed"),
            }
        });
    }

    async fn renew_blob(&self, session: &Arc<Session>, seen: &BlobLifetime) -> Result<(), ClientError> {
        let seq = seen.seq;
        let signals = session.read(|state| state.signals.clone());
        let _permit = signals.puts.acquire().await.map_err(|_| ClientError::TaskEnded)?;
        let now = self.lifetimes_of(session).into_iter().find(|blob| blob.seq == seq);
        // Another task may have renewed it, or another turn may have replaced it.
        if now.is_none_or(|now| now.kept_until_ms > seen.kept_until_ms) {
            return Ok(());
        }
        let id = self.ensure_blob_id(session, seq).await?;
        // On disk before the PUT: if this process ends before it knows more, nothing is paid twice for a
        // while.
        let doubt = |since_ms| vec![Entry::RenewalDoubt { seq, since_ms }];
        session.record(doubt(Some(self.now_ms()))).await?;
        match self.put(session, seq, id).await {
            Ok(stored_blob) if stored_blob.end_epoch.is_some() => {
                session.record(stored_blob.entries(seq)).await
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

    pub(crate) fn lifetimes_of(&self, session: &Session) -> Vec<BlobLifetime> {
        let (terms, now_ms) = (self.terms(), self.now_ms());
        session.read(|state| lifetime::lifetimes(state, terms, now_ms))
    }

    pub(crate) fn terms(&self) -> StorageTerms {
        let config = &self.inner.config;
        StorageTerms {
            epoch: config.epoch,
            open_epochs: config.storage.open_epochs,
            closed_epochs: config.storage.closed_epochs,
        }
    }
}
