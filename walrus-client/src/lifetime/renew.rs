//! Stores blobs again before they end.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use baton_proto::{ids::BlobId, store::StoreError};
use serde::Serialize;

use super::ledger::{Ledger, LedgerEntry, Trouble, blob_id_text};
use crate::http_store::{HttpStore, PutBody, ReadOptions, WriteOptions};

/// Saves the ledger before each PUT that may have to be paid. It blocks briefly.
#[derive(Clone)]
pub struct Checkpoint(Arc<WriteLedger>);

type WriteLedger = dyn Fn(&Ledger) -> io::Result<()> + Send + Sync;

impl Checkpoint {
    /// Wraps a function.
    pub fn new(function: impl Fn(&Ledger) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Checkpoint")
    }
}

/// Options of renewals.
#[derive(Debug, Clone)]
pub struct RenewOptions {
    /// Lifetime in epochs from the present one.
    pub epochs: u32,
    /// Largest blob read back from the store, in bytes.
    pub limit: u64,
    /// The time for reading one blob, and for storing it; the store's own when not set.
    pub deadline: Option<Duration>,
    /// Whether to pay again for a blob whose last renewal may have been stored. HTTP cannot tell, so the
    /// alternative is to let it end. Permanent blobs are always retried, since a publisher does not buy them
    /// twice.
    pub retry_uncertain: bool,
    /// The ledger's clock: Unix time in milliseconds.
    pub now_ms: fn() -> u64,
    /// Called before each PUT, once the ledger marks the blob as uncertain. After a crash in between, the
    /// next process finds the saved ledger. If it fails, nothing is sent.
    pub checkpoint: Option<Checkpoint>,
}

impl RenewOptions {
    /// For this many epochs, with a limit on blobs that are read, and never paying twice.
    #[must_use]
    pub fn new(epochs: u32, limit: u64) -> Self {
        Self {
            epochs,
            limit,
            deadline: None,
            retry_uncertain: false,
            now_ms: system_now_ms,
            checkpoint: None,
        }
    }
}

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RenewalEnded {
    /// It lives until this epoch, if the publisher said.
    Renewed {
        /// The first epoch without it.
        end_epoch: Option<u64>,
    },
    /// It was not stored again.
    Failed {
        /// The reason.
        reason: String,
        /// Whether a later try may help.
        retryable: bool,
    },
    /// It was sent, now or earlier, but may not have been stored.
    Uncertain {
        /// The reason.
        reason: String,
    },
    /// Every reachable aggregator said that it lacks the blob, and the caller had no bytes.
    Lost,
}

/// The renewal of one blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Renewal {
    /// The blob.
    #[serde(serialize_with = "blob_id_text::serialize")]
    pub blob_id: BlobId,
    /// The result.
    pub ended: RenewalEnded,
}

impl HttpStore {
    /// Renews these blobs in sequence, and notes each result in the ledger. `supply` returns the bytes that
    /// the caller has; other blobs are read from the store and verified. Blobs outside the ledger are
    /// ignored.
    ///
    /// Each blob is stored with the persistence and owner in the ledger. Only the ledger's owner may call
    /// this, since it pays.
    ///
    /// Cancel safe: during a PUT, the ledger marks its blob as uncertain until the answer arrives.
    pub async fn renew(
        &self,
        ledger: &mut Ledger,
        blobs: &[BlobId],
        options: &RenewOptions,
        supply: impl Fn(BlobId) -> Option<PutBody>,
    ) -> Vec<Renewal> {
        let mut renewals = Vec::new();
        for id in blobs {
            let Some(blob) = ledger.get(*id).cloned() else { continue };
            let body = supply(*id);
            let ended = self.renew_one(ledger, &blob, options, body).await;
            let at_ms = (options.now_ms)();
            let trouble = match &ended {
                RenewalEnded::Renewed { .. } => None,
                RenewalEnded::Failed { reason, .. } => {
                    Some(Trouble::Failed { reason: reason.clone(), at_ms })
                }
                RenewalEnded::Uncertain { reason } => {
                    Some(Trouble::Uncertain { reason: reason.clone(), at_ms })
                }
                RenewalEnded::Lost => Some(Trouble::Lost { at_ms }),
            };
            ledger.note(*id, trouble);
            renewals.push(Renewal { blob_id: *id, ended });
        }
        renewals
    }

    async fn renew_one(
        &self,
        ledger: &mut Ledger,
        blob: &LedgerEntry,
        options: &RenewOptions,
        body: Option<PutBody>,
    ) -> RenewalEnded {
        let id = blob.blob_id;
        if let Some(Trouble::Uncertain { reason, .. }) = &blob.trouble
            && !options.retry_uncertain
            && !blob.permanent
        {
            return RenewalEnded::Uncertain { reason: reason.clone() };
        }
        let body = match body {
            // Other bytes would be stored and paid before the error was noticed.
            Some(body) => match self.id_of(&body).await {
                Ok(found) if found == id => body,
                Ok(_) => return failed(&StoreError::WrongContent),
                Err(error) => return failed(&error),
            },
            None => match self.read_back(id, options).await {
                Ok(bytes) => bytes.into(),
                Err(StoreError::NotFound) => return RenewalEnded::Lost,
                Err(error) => return failed(&error),
            },
        };
        let write = WriteOptions {
            permanent: blob.permanent,
            owner: blob.owner,
            // After a lost answer, a search works for a lost blob as for a new one.
            renewal: !matches!(blob.trouble, Some(Trouble::Lost { .. })),
            deadline: options.deadline,
            ..WriteOptions::new(options.epochs)
        };
        let interrupted = Trouble::Uncertain { reason: "interrupted".to_owned(), at_ms: (options.now_ms)() };
        ledger.note(id, Some(interrupted));
        if let Some(Checkpoint(write)) = &options.checkpoint
            && let Err(error) = write(ledger)
        {
            let reason = format!("the ledger cannot be written: {error}");
            return RenewalEnded::Failed { reason, retryable: true };
        }
        match self.store_with_id(body, id, &write).await {
            Ok(stored) => match ledger.record(&stored, &write, (options.now_ms)()) {
                Ok(()) => RenewalEnded::Renewed { end_epoch: stored.end_epoch },
                Err(error) => RenewalEnded::Failed { reason: error.to_string(), retryable: false },
            },
            Err(StoreError::OutcomeUnknown { reason }) => RenewalEnded::Uncertain { reason },
            Err(error) => failed(&error),
        }
    }

    async fn read_back(&self, id: BlobId, options: &RenewOptions) -> Result<Vec<u8>, StoreError> {
        let read = ReadOptions { deadline: options.deadline, ..ReadOptions::new(options.limit) };
        self.read(id, &read).await
    }
}

fn failed(error: &StoreError) -> RenewalEnded {
    RenewalEnded::Failed { reason: error.to_string(), retryable: error.is_retryable() }
}

fn system_now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
