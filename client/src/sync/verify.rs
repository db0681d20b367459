//! Verifies a session against the store, and fetches the verified chain for [`crate::restore`], a merge or an
//! export. This module fetches; the chain's own reader decides validity.

use std::{sync::Arc, time::Duration};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    ErrorCode,
    chain::{SessionReader, VerifiedSegment, rebuild_blob},
    head::HeadOuter,
    limits::MAX_BLOB_BYTES,
    link::{BlobRef, blob_digest},
    store::StoreError,
    wire::NodeFrame,
};
use baton_walrus_client::ShardCount;

use crate::{
    attempt::resolve::{self, fetch_blob},
    core::Core,
    error::ClientError,
    session::{open_session::Session, state::State},
    storage::{self, shards},
    sync::head::FoundHead,
};

/// The result of [`SessionHandle::verify`](crate::SessionHandle::verify). Without problems, every turn's link, node signature, record and position
/// was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
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
    /// [`SessionHandle::put_back_blobs`](crate::SessionHandle::put_back_blobs).
    pub not_stored: Vec<u64>,
    /// Why the store was not asked for its copies: it does not answer.
    #[serde(skip)]
    pub unavailable: Option<StoreError>,
}

impl VerifyReport {
    /// Whether no problem was found. A blob missing in the store counts in `from_own` and `not_stored`, and
    /// is no problem of the chain.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// How long a verification right after a turn waits for the store to have the turn's blob.
pub const STORING_GRACE: Duration = Duration::from_secs(5);

/// An object that differs from its signed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Its turn.
    pub seq: u64,
    /// The kind of problem.
    pub code: ErrorCode,
}

/// Sources of a session's bytes besides the store.
pub(crate) struct BlobSources<'a> {
    pub(crate) session: Option<&'a Arc<Session>>,
    /// Why the store is not asked, if it does not answer.
    pub(crate) unavailable: Option<StoreError>,
    /// Whether this client's own copy is as good as the store's: not if the store is being checked.
    pub(crate) own_first: bool,
    /// The last turn, whose author may have it.
    pub(crate) last: Option<(&'a SessionRoot, RecordIdentity)>,
    /// The first wanted turn: 0, or that of a session without its beginning.
    pub(crate) from: u64,
}

/// A fetched segment.
pub(crate) struct FetchedSegment {
    pub(crate) bytes: Vec<u8>,
    own: bool,
    /// The store had other bytes under the ID.
    wrong_in_store: bool,
}

/// As [`SessionHandle::verify`](crate::SessionHandle::verify).
pub(crate) async fn verify(
    core: &Arc<Core>,
    session: &Arc<Session>,
    full: bool,
) -> Result<VerifyReport, ClientError> {
    storage::ensure_head_id(session).await?;
    let mut report = VerifyReport::default();
    let (root, outer, shards, from) = session.read(|state| {
        Ok::<_, ClientError>((state.root.clone(), state.head_outer(), shards(state)?, state.first_seq()))
    })?;
    let Some(outer) = outer else { return Ok(report) };
    report.unavailable = storage::check_answer(core).await.err();
    let unavailable = report.unavailable.clone();
    let sources = BlobSources { session: Some(session), unavailable, own_first: false, last: None, from };
    let segments = fetch_verified(core, &root, &outer, &sources, &mut report).await?;
    for segment in &segments {
        let Some(seq) = segment.turns.last().map(|turn| turn.link.seq) else { continue };
        if !report.not_stored.contains(&seq) {
            storage::note_confirmed(core, session, seq).await;
        }
    }
    let checked = crate::stack_wipe::blocking(move || check_ids(&root, &segments, shards, full, report));
    let mut report = checked.await?;
    session.read(|state| check_receipts(state, &mut report));
    Ok(report)
}

/// As [`SessionHandle::put_back_blobs`](crate::SessionHandle::put_back_blobs).
pub(crate) async fn put_back_blobs(
    core: &Arc<Core>,
    session: &Arc<Session>,
    turns: &[u64],
) -> Result<(), ClientError> {
    for seq in turns {
        let id = session.read(|state| state.blob_ref(*seq)).ok_or(ErrorCode::BlobIdMismatch)?.blob_id;
        storage::put_back(core, session, *seq, id).await?;
    }
    Ok(())
}

/// The verified segments of a head's chain, oldest first. Sources are the store, the author of its last
/// turn, and this client's own copy of the turns shared with a session here.
pub(crate) async fn fetch_chain(
    core: &Arc<Core>,
    root: &SessionRoot,
    found: &FoundHead,
    session: Option<&Arc<Session>>,
) -> Result<Vec<VerifiedSegment>, ClientError> {
    let last = found.last_identity(root).map(|identity| (root, identity));
    let from = session.map_or(0, |session| session.read(State::first_seq));
    let unavailable = storage::check_answer(core).await.err();
    let sources = BlobSources { session, unavailable, own_first: true, last, from };
    fetch_verified(core, root, &found.outer, &sources, &mut VerifyReport::default()).await
}

/// The verified segments of a session, oldest first.
pub(crate) async fn own_segments(session: &Arc<Session>) -> Result<Vec<VerifiedSegment>, ClientError> {
    storage::ensure_head_id(session).await?;
    let session = session.clone();
    let read = crate::stack_wipe::blocking(move || {
        session.read(|state| {
            let last = state.next_seq().checked_sub(1).ok_or(ErrorCode::BadSequence)?;
            let outer = state.head_outer_at(last).ok_or(ErrorCode::BadSequence)?;
            let mut reader = SessionReader::new(&state.root, &outer)?;
            for end in state.segment_ends_until(last, usize::MAX) {
                reader.provide(&state.rebuild(end)?)?;
            }
            reader.finish()
        })
    });
    Ok(read.await??)
}

/// Fetches and verifies the segments from a head back to the first wanted turn; returns them oldest first.
pub(crate) async fn fetch_verified(
    core: &Arc<Core>,
    root: &SessionRoot,
    outer: &HeadOuter,
    sources: &BlobSources<'_>,
    report: &mut VerifyReport,
) -> Result<Vec<VerifiedSegment>, ClientError> {
    match fetch_readable(core, root, outer, sources, report).await? {
        (segments, None) => Ok(segments),
        (_, Some(gone)) => Err(gone),
    }
}

/// As [`fetch_verified`], but ends before the newest segment whose bytes are gone, with the reason.
pub(crate) async fn fetch_readable(
    core: &Arc<Core>,
    root: &SessionRoot,
    outer: &HeadOuter,
    sources: &BlobSources<'_>,
    report: &mut VerifyReport,
) -> Result<(Vec<VerifiedSegment>, Option<ClientError>), ClientError> {
    let mut reader = SessionReader::new(root, outer)?;
    let mut gone = None;
    let (mut wrong, mut not_stored) = (Vec::new(), Vec::new());
    while let Some(need) = reader.need() {
        if reader.next_end().is_some_and(|end| end < sources.from) {
            break;
        }
        let found = match fetch_segment(core, &need, sources).await {
            Ok(found) => found,
            Err(error) if is_gone(&error) => {
                gone = Some(error);
                break;
            }
            Err(error) => return Err(error),
        };
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
        let provided = crate::stack_wipe::blocking(move || reader.provide(&found.bytes).map(|()| reader));
        reader = provided.await??;
    }
    let segments = reader.finish_partial();
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
    Ok((segments, gone))
}

/// Whether bytes are gone, as opposed to an unavailable store.
pub(crate) fn is_gone(error: &ClientError) -> bool {
    match error {
        ClientError::Store(error) => *error == StoreError::NotFound,
        ClientError::Protocol(code) => *code == ErrorCode::BlobHashMismatch,
        _ => false,
    }
}

/// The bytes as signed: from the store, this client's own copy, or the last turn's author.
pub(crate) async fn fetch_segment(
    core: &Arc<Core>,
    need: &BlobRef,
    sources: &BlobSources<'_>,
) -> Result<FetchedSegment, ClientError> {
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
        return Ok(FetchedSegment { bytes, own: true, wrong_in_store: false });
    }
    let stored = match &sources.unavailable {
        Some(error) => Err(error.clone()),
        None => core.config.store.get_checked(need.blob_id, MAX_BLOB_BYTES, need.digest).await,
    };
    let mut wrong_in_store = false;
    let failure = match stored {
        Ok(bytes) if need.check(&bytes).is_ok() => {
            return Ok(FetchedSegment { bytes, own: false, wrong_in_store: false });
        }
        Ok(_) | Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => {
            wrong_in_store = true;
            ClientError::Protocol(ErrorCode::BlobHashMismatch)
        }
        Err(error) => error.into(),
    };
    tracing::warn!(error = %failure, "a segment cannot be read from the store");
    if let Some(bytes) = own() {
        return Ok(FetchedSegment { bytes, own: true, wrong_in_store });
    }
    if let Some((root, last)) = &sources.last
        && let Ok(NodeFrame::Blob(bytes)) =
            resolve::ask(core, last.session_id, last.author, &fetch_blob(root, last, need.digest)).await
        && blob_digest(&bytes) == need.digest
    {
        return Ok(FetchedSegment { bytes, own: true, wrong_in_store });
    }
    Err(failure)
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

fn check_receipts(state: &State, report: &mut VerifyReport) {
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
