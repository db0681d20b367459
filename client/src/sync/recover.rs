//! Recovers a session from its root: finds its head in the index, and reads its chain from the store.
//!
//! [`crate::sync::verify`] reads and checks the chain. The command, the relayer and the gateway call this.

use std::ops::RangeInclusive;

use baton_keys::session::SessionRoot;
use baton_proto::{
    ErrorCode, SignedObject,
    chain::VerifiedSegment,
    head::HeadOuter,
    ids::{LinkHash, SessionId},
    link::Link,
    segment::{Segment, blob_salt},
    store::StoreError,
};

use crate::{
    client::Client,
    error::ClientError,
    session::journal::JournalLocation,
    sync::{
        head::FoundHead,
        verify::{Sources, VerifyReport},
    },
};

/// A session recovered from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The session.
    pub session: SessionId,
    /// Unreadable turns at its end: the store does not have their blobs.
    pub lost: Option<RangeInclusive<u64>>,
}

/// How a recovery treats missing newest blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// Recovers nothing.
    Refused,
    /// Recovers the readable turns, and names the others.
    Named,
}

impl Client {
    /// Recovers a session from its root alone: finds the head in the index, reads the chain from the store
    /// and verifies all of it. The store has no receipts, authorisations and acknowledgements, so they stay
    /// unknown. A damaged journal of the session is kept under another name.
    ///
    /// # Errors
    /// - [`ClientError::HeadMissing`], [`ClientError::Deleted`].
    /// - [`ClientError::SessionExists`] when the session is here, as complete as in the index.
    /// - [`ErrorCode::RollbackDetected`] or [`ErrorCode::ForkDetected`] when it is here and the index
    ///   disagrees.
    /// - The chain's errors.
    pub async fn recover(&self, root: &SessionRoot) -> Result<SessionId, ClientError> {
        Ok(self.recover_with(root, Missing::Refused).await?.session)
    }

    /// As [`Client::recover`]. But if neither the store nor a node has the session's newest blobs, it
    /// recovers the turns before them, and names the lost ones. Another device with the lost turns can still
    /// restore them; [`Client::publish_over`] continues without them.
    ///
    /// # Errors
    /// As [`Client::recover`]; the first error if nothing can be read.
    pub async fn recover_available(&self, root: &SessionRoot) -> Result<RecoveryReport, ClientError> {
        self.recover_with(root, Missing::Named).await
    }

    async fn recover_with(
        &self,
        root: &SessionRoot,
        missing: Missing,
    ) -> Result<RecoveryReport, ClientError> {
        let id = root.session_id();
        let whole = |session| RecoveryReport { session, lost: None };
        match self.check_head(id).await {
            Err(ClientError::UnknownSession(_) | ClientError::JournalDamaged { .. }) => {}
            // Another device continued: the longer chain contains the one known here, or reading it finds a
            // fork.
            Err(ClientError::Behind { .. }) => return self.catch_up(id).await.map(whole),
            Ok(_) => return Err(ClientError::SessionExists(id)),
            Err(error) => return Err(error),
        }
        let found = self.resolve(root).await?.ok_or(ClientError::HeadMissing)?;
        if found.inner.tombstone {
            return Err(ClientError::Deleted);
        }
        let (segments, lost) = match self.fetch_chain(root, &found, None).await {
            Err(error) if missing == Missing::Named && is_gone(&error) => {
                let segments = self.fetch_older(root, &found).await.ok_or(error)?;
                let end = segments.last().and_then(|segment| segment.turns.last()).map(|turn| turn.link.seq);
                (segments, end.map(|end| end.saturating_add(1)..=found.outer.seq))
            }
            segments => (segments?, None),
        };
        let now = self.now_ms();
        let header = crate::sync::transfer::new_header(found.outer.n_shards, found.outer.branch, now);
        let mut entries = crate::sync::transfer::entries(root, &segments, &Default::default(), now)?;
        entries.push(found.entry());
        entries.push(crate::session::state::Entry::Leases { devices: found.inner.devices });
        let id = self.create(root.clone(), header, entries, true).await?;
        self.open_session(id).await?.note_look(now, true);
        // A log client is no device: it is new with every request.
        if !matches!(self.inner.journals, JournalLocation::Log(_)) {
            self.spawn_lease(self.open_session(id).await?);
        }
        Ok(RecoveryReport { session: id, lost })
    }

    /// The verified segments up to the newest readable blob of a head, when the head's own blob cannot be
    /// read.
    async fn fetch_older(&self, root: &SessionRoot, found: &FoundHead) -> Option<Vec<VerifiedSegment>> {
        for (index, end) in found.outer.blobs.iter().enumerate().skip(1) {
            let sources = Sources { session: None, own_first: false, last: None };
            let Ok(bytes) = self.fetch_segment(&end.blob, &sources).await else { continue };
            let Ok((seq, link_hash)) = end_of_blob(root, end.segment, &bytes.bytes) else { continue };
            let blobs = found.outer.blobs.get(index..)?.to_vec();
            let outer = HeadOuter { seq, link_hash, blobs, ..found.outer.clone() };
            if let Ok(segments) =
                self.fetch_verified(root, &outer, &sources, &mut VerifyReport::default()).await
            {
                return Some(segments);
            }
        }
        None
    }
}

/// Whether bytes are gone, as opposed to an unavailable store.
fn is_gone(error: &ClientError) -> bool {
    match error {
        ClientError::Store(error) => *error == StoreError::NotFound,
        ClientError::Protocol(code) => *code == ErrorCode::BlobHashMismatch,
        _ => false,
    }
}

/// Position and link hash of the last turn in a blob, whose digest a signed head names.
fn end_of_blob(root: &SessionRoot, number: u64, bytes: &[u8]) -> Result<(u64, LinkHash), ErrorCode> {
    let key = root.blob_key(number, &blob_salt(bytes)?);
    let segment = Segment::open(bytes, &key, &root.session_id(), number)?;
    let last = segment.entries.last().ok_or(ErrorCode::BadSequence)?;
    let link = SignedObject::<Link>::verify(last.link.clone())?;
    Ok((link.seq, link.link_hash()))
}
