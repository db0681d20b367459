//! Walks a session's chain with its root, to verify it against the store, recover it from its head, or gather
//! it for an export. This module fetches; the chain's own reader decides validity.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::{SessionReader, VerifiedSegment, rebuild_blob},
    head::HeadOuter,
    ids::{LinkHash, SessionId},
    limits::MAX_BLOB_BYTES,
    link::{BlobRef, Link, blob_digest},
    segment::{Segment, blob_salt},
    store::StoreError,
    wire::NodeFrame,
};
use baton_walrus_client::ShardCount;

use crate::{
    client::{Client, shards},
    error::ClientError,
    head::FoundHead,
    journal::Keeper,
    session::Session,
    settle::fetch_blob,
};

/// The result of [`Client::verify`]. Without problems, every turn's link, node signature, record and position
/// was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Turns checked.
    pub turns: u64,
    /// Segments checked.
    pub segments: u64,
    /// Blobs whose BLAKE3 was compared, in-segment ones rebuilt.
    pub blobs_checked: u64,
    /// Blobs whose Walrus ID was computed and compared.
    pub ids_checked: u64,
    /// Segments whose bytes came from the store.
    pub from_store: u64,
    /// Segments that the store lacked, or had wrong, checked from this client's own copy.
    pub from_own: u64,
    /// Receipts checked against their links.
    pub receipts_checked: u64,
    /// Turns without a receipt, as after a recovery from the root.
    pub receipts_missing: u64,
    /// The problems found.
    pub problems: Vec<Problem>,
    /// Last turns of the segments that the store lacks or has wrong, oldest first; the input of
    /// [`Client::put_back_blobs`].
    pub not_stored: Vec<u64>,
}

impl VerifyReport {
    /// Whether no problem was found. A blob missing in the store counts in `from_own` and `not_stored`, and
    /// is no problem of the chain.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A session recovered from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
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

/// How long a verification right after a turn waits for the store to have the turn's blob.
pub const STORING_GRACE: Duration = Duration::from_secs(5);

/// An object that differs from its signed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// Its turn.
    pub seq: u64,
    /// The kind of problem.
    pub code: ErrorCode,
}

/// Sources of a session's bytes besides the store.
struct Sources<'a> {
    session: Option<&'a Arc<Session>>,
    /// Whether this client's own copy is as good as the store's: not if the store is being checked.
    own_first: bool,
    /// The last turn, whose author may have it.
    last: Option<(&'a SessionRoot, RecordIdentity)>,
}

/// A fetched segment.
struct Found {
    bytes: Vec<u8>,
    own: bool,
    /// The store had other bytes under the ID.
    wrong_in_store: bool,
}

impl Client {
    /// Verifies a session. Checks every link, signature and record, every blob's BLAKE3 (in-segment ones are
    /// rebuilt), and the Walrus IDs of closed segments; with `full` of every blob. Reads segments from the
    /// store, or from this client's own copy if the store lacks them.
    ///
    /// # Errors
    /// The chain's errors when a segment does not verify at all ([`ClientError::Protocol`]); single wrong
    /// blobs, IDs and receipts are in the report.
    pub async fn verify(&self, id: SessionId, full: bool) -> Result<VerifyReport, ClientError> {
        let session = self.opened(id).await?;
        self.ensure_head_id(&session).await?;
        let mut report = VerifyReport::default();
        let (root, outer, shards) = session
            .read(|state| Ok::<_, ClientError>((state.root.clone(), state.head_outer(), shards(state)?)))?;
        let Some(outer) = outer else { return Ok(report) };
        let sources = Sources { session: Some(&session), own_first: false, last: None };
        let segments = self.walk(&root, &outer, &sources, &mut report).await?;
        for segment in &segments {
            let Some(seq) = segment.turns.last().map(|turn| turn.link.seq) else { continue };
            if !report.not_stored.contains(&seq) {
                self.note_confirmed(&session, seq).await;
            }
        }
        let checked = crate::wiped::spawn_blocking(move || check_ids(&root, &segments, shards, full, report));
        let mut report = checked.await.map_err(|_| ClientError::TaskEnded)?;
        session.read(|state| check_receipts(state, &mut report));
        Ok(report)
    }

    /// As [`Client::verify`], after waiting at most [`STORING_GRACE`] for the last turn to be stored: a blob
    /// on its way is not a lost one.
    ///
    /// # Errors
    /// As [`Client::verify`].
    pub async fn verify_when_stored(&self, id: SessionId, full: bool) -> Result<VerifyReport, ClientError> {
        self.wait_settled(id, STORING_GRACE).await?;
        self.verify(id, full).await
    }

    /// Recovers a session from its root alone: finds the head in the index, walks the chain in the store and
    /// verifies all of it. The store has no receipts, authorisations and acknowledgements, so they stay
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
    pub async fn recover_available(&self, root: &SessionRoot) -> Result<Recovered, ClientError> {
        self.recover_with(root, Missing::Named).await
    }

    async fn recover_with(&self, root: &SessionRoot, missing: Missing) -> Result<Recovered, ClientError> {
        let id = root.session_id();
        let whole = |session| Recovered { session, lost: None };
        match self.check_head(id).await {
            Err(ClientError::UnknownSession(_) | ClientError::JournalDamaged { .. }) => {}
            // Another device continued: the longer chain contains the one known here, or the walk finds a
            // fork.
            Err(ClientError::Behind { .. }) => return self.take_over(id).await.map(whole),
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
        let opened = crate::transfer::opened(found.outer.n_shards, found.outer.branch, now);
        let mut entries = crate::transfer::entries(root, &segments, &Default::default(), now)?;
        entries.push(found.entry());
        entries.push(crate::state::Entry::Leases { devices: found.inner.devices });
        let id = self.create(root.clone(), opened, entries, true).await?;
        self.opened(id).await?.looked(now, true);
        // A guest is no device: it is new with every request.
        if !matches!(self.inner.keeper, Keeper::Log(_)) {
            self.spawn_lease(self.opened(id).await?);
        }
        Ok(Recovered { session: id, lost })
    }

    /// The verified segments up to the newest readable blob of a head, when the head's own blob cannot be
    /// read.
    async fn fetch_older(&self, root: &SessionRoot, found: &FoundHead) -> Option<Vec<VerifiedSegment>> {
        for (index, end) in found.outer.blobs.iter().enumerate().skip(1) {
            let sources = Sources { session: None, own_first: false, last: None };
            let Ok(bytes) = self.fetch(&end.blob, &sources).await else { continue };
            let Ok((seq, link_hash)) = end_of_blob(root, end.segment, &bytes.bytes) else { continue };
            let blobs = found.outer.blobs.get(index..)?.to_vec();
            let outer = HeadOuter { seq, link_hash, blobs, ..found.outer.clone() };
            if let Ok(segments) = self.walk(root, &outer, &sources, &mut VerifyReport::default()).await {
                return Some(segments);
            }
        }
        None
    }

    /// Puts the blobs of these turns into the store again from this client's own copy, without a check: for
    /// the `not_stored` of [`Client::verify`].
    ///
    /// # Errors
    /// [`ClientError::Store`], the chain's for a turn that is not here, and as opening the session.
    pub async fn put_back_blobs(&self, id: SessionId, turns: &[u64]) -> Result<(), ClientError> {
        let session = self.opened(id).await?;
        for seq in turns {
            let id = session.read(|state| state.blob_ref(*seq)).ok_or(ErrorCode::BlobIdMismatch)?.blob_id;
            self.put_back(&session, *seq, id).await?;
        }
        Ok(())
    }

    /// The verified segments of a head's chain, oldest first. Sources are the store, the author of its last
    /// turn, and this client's own copy of the turns shared with a session here.
    pub(crate) async fn fetch_chain(
        &self,
        root: &SessionRoot,
        found: &FoundHead,
        session: Option<&Arc<Session>>,
    ) -> Result<Vec<VerifiedSegment>, ClientError> {
        let last = found.last_identity(root).map(|identity| (root, identity));
        let sources = Sources { session, own_first: true, last };
        self.walk(root, &found.outer, &sources, &mut VerifyReport::default()).await
    }

    /// The verified segments of a session, oldest first.
    pub(crate) async fn own_segments(
        &self,
        session: &Arc<Session>,
    ) -> Result<Vec<VerifiedSegment>, ClientError> {
        self.ensure_head_id(session).await?;
        let session = session.clone();
        let walked = crate::wiped::spawn_blocking(move || {
            session.read(|state| {
                let outer = state.head_outer().ok_or(ErrorCode::BadSequence)?;
                let mut reader = SessionReader::new(&state.root, &outer)?;
                for end in state.segment_ends(usize::MAX) {
                    reader.provide(&state.rebuild(end)?)?;
                }
                reader.finish()
            })
        });
        Ok(walked.await.map_err(|_| ClientError::TaskEnded)??)
    }

    /// Walks from a head to the genesis.
    async fn walk(
        &self,
        root: &SessionRoot,
        outer: &HeadOuter,
        sources: &Sources<'_>,
        report: &mut VerifyReport,
    ) -> Result<Vec<VerifiedSegment>, ClientError> {
        let mut reader = SessionReader::new(root, outer)?;
        let (mut wrong, mut not_stored) = (Vec::new(), Vec::new());
        while let Some(need) = reader.need() {
            let found = self.fetch(&need, sources).await?;
            if found.own {
                report.from_own += 1;
                not_stored.push(need.digest);
            } else {
                report.from_store += 1;
            }
            if found.wrong_in_store {
                wrong.push(need.digest);
            }
            // Opening and rebuilding a segment takes milliseconds of CPU at the largest sizes.
            let provided =
                crate::wiped::spawn_blocking(move || reader.provide(&found.bytes).map(|()| reader));
            reader = provided.await.map_err(|_| ClientError::TaskEnded)??;
        }
        let segments = reader.finish()?;
        for segment in &segments {
            let Some(seq) = segment.turns.last().map(|turn| turn.link.seq) else { continue };
            if wrong.contains(&segment.blob.digest) {
                report.problems.push(Problem { seq, code: ErrorCode::BlobHashMismatch });
            }
            if not_stored.contains(&segment.blob.digest) {
                report.not_stored.push(seq);
            }
        }
        report.segments = segments.len() as u64;
        report.turns = segments.iter().map(|segment| segment.turns.len() as u64).sum();
        report.blobs_checked = report.turns;
        Ok(segments)
    }

    /// The bytes as signed: from the store, this client's own copy, or the last turn's author.
    async fn fetch(&self, need: &BlobRef, sources: &Sources<'_>) -> Result<Found, ClientError> {
        let own = || {
            let session = sources.session?;
            session.read(|state| {
                let index = state.meta.iter().position(|meta| meta.digest == need.digest)?;
                state.rebuild(state.first_seq() + index as u64).ok()
            })
        };
        if sources.own_first
            && let Some(bytes) = own()
        {
            return Ok(Found { bytes, own: true, wrong_in_store: false });
        }
        let stored = self.inner.config.store.get_checked(need.blob_id, MAX_BLOB_BYTES, need.digest).await;
        let mut wrong_in_store = false;
        let failure = match stored {
            Ok(bytes) if need.check(&bytes).is_ok() => {
                return Ok(Found { bytes, own: false, wrong_in_store: false });
            }
            Ok(_) | Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => {
                wrong_in_store = true;
                ClientError::Protocol(ErrorCode::BlobHashMismatch)
            }
            Err(error) => error.into(),
        };
        tracing::warn!(error = %failure, "a segment cannot be read from the store");
        if let Some(bytes) = own() {
            return Ok(Found { bytes, own: true, wrong_in_store });
        }
        if let Some((root, last)) = &sources.last
            && let Ok(NodeFrame::Blob(bytes)) =
                self.ask(last.author, &fetch_blob(root, last, need.digest)).await
            && blob_digest(&bytes) == need.digest
        {
            return Ok(Found { bytes, own: true, wrong_in_store });
        }
        Err(failure)
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

/// Computes Walrus IDs and compares them with the IDs in links; the head's blob with the ID known here.
fn check_ids(
    root: &SessionRoot,
    segments: &[VerifiedSegment],
    shards: ShardCount,
    full: bool,
    mut report: VerifyReport,
) -> VerifyReport {
    let mut check = |seq: u64, bytes: &[u8], named: baton_proto::ids::BlobId| {
        report.ids_checked += 1;
        if baton_walrus_client::blob_id(bytes, shards) != Ok(named) {
            report.problems.push(Problem { seq, code: ErrorCode::BlobIdMismatch });
        }
    };
    for segment in segments {
        let total = segment.turns.len();
        for (index, turn) in segment.turns.iter().enumerate() {
            let is_last = index + 1 == total;
            let wanted = full || (is_last && segment.segment.is_closed());
            // In a segment the next turn's link names the blob; its last blob is the one it was read from.
            let named = match segment.turns.get(index + 1) {
                Some(next) => next.link.prev_blob.map(|blob| blob.blob_id),
                None => Some(segment.blob.blob_id),
            };
            if let (true, Some(named)) = (wanted, named)
                && let Ok(bytes) = rebuild_blob(root, &segment.segment, &turn.link, index + 1)
            {
                check(turn.link.seq, &bytes, named);
            }
        }
    }
    report
}

fn check_receipts(state: &crate::state::State, report: &mut VerifyReport) {
    for (turn, meta) in state.history.iter().zip(&state.meta) {
        let Some(receipt) = &meta.receipt else {
            report.receipts_missing += 1;
            continue;
        };
        report.receipts_checked += 1;
        if let Err(code) = baton_proto::commit::check_receipt_of_link(&turn.link, receipt.bytes().clone()) {
            report.problems.push(Problem { seq: turn.link.seq, code });
        }
    }
}
