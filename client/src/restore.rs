//! Sessions that come to this device: recovered from the index and the store by their root, or imported from
//! an export.

use std::{ops::RangeInclusive, sync::Arc};

use baton_keys::session::{RecordIdentity, SessionRoot};
use baton_proto::{
    ErrorCode, SignedObject,
    chain::VerifiedSegment,
    head::HeadOuter,
    ids::{LinkHash, SessionId},
    link::Link,
    segment::{Segment, blob_salt},
};

use crate::{
    background::{check_head, open, spawn_background_work},
    core::Core,
    error::{ClientError, log_failure},
    session::{
        journal::JournalLocation,
        state::{Entry, TurnsBefore},
    },
    sync::{
        head::{self, FoundHead},
        reconcile,
        transfer::{self, parse, verified_entries},
        verify::{self, BlobSources, VerifyReport, is_gone},
    },
};

/// A session recovered from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The session.
    pub session: SessionId,
    /// Unreadable turns, oldest first: the store does not have their blobs. The session here consists of the
    /// newest readable turns. Readable turns before lost ones are in [`SessionHandle::branches`](crate::SessionHandle::branches).
    pub lost: Vec<RangeInclusive<u64>>,
}

/// As [`Client::recover`](crate::Client::recover).
pub(crate) async fn recover(core: &Arc<Core>, root: &SessionRoot) -> Result<SessionId, ClientError> {
    Ok(recover_with(core, root, false).await?.session)
}

/// As [`Client::recover_available`](crate::Client::recover_available).
pub(crate) async fn recover_available(
    core: &Arc<Core>,
    root: &SessionRoot,
) -> Result<RecoveryReport, ClientError> {
    recover_with(core, root, true).await
}

/// Recovers a session; with lost blobs only if `allows_gaps`.
async fn recover_with(
    core: &Arc<Core>,
    root: &SessionRoot,
    allows_gaps: bool,
) -> Result<RecoveryReport, ClientError> {
    let id = root.session_id();
    match open(core, id, false).await {
        Err(ClientError::UnknownSession(_) | ClientError::JournalDamaged { .. }) => {}
        Err(error) => return Err(error),
        Ok(session) => match check_head(core, &session).await {
            // Another device continued.
            Err(ClientError::Behind { .. }) => {
                reconcile::reconcile(core, &session, |_| {}).await?;
                return Ok(RecoveryReport { session: id, lost: Vec::new() });
            }
            Ok(_) => return Err(ClientError::SessionExists(id)),
            Err(error) => return Err(error),
        },
    }
    let heads = head::resolve_all(core, root).await?;
    let (found, older) = heads.split_first().ok_or(ClientError::HeadMissing)?;
    if heads.iter().any(|head| head.inner.tombstone) {
        return Err(ClientError::Deleted);
    }
    let read = match verify::fetch_chain(core, root, found, None).await {
        Err(error) if allows_gaps && is_gone(&error) => {
            read_available(core, root, found, older).await?.ok_or(error)?
        }
        segments => ReadableChain { newest: segments?, before_gaps: Vec::new() },
    };
    let lost = read.lost(found.outer.seq);
    let now = core.now_ms();
    let header = transfer::new_header(found.outer.n_shards, found.outer.branch, now);
    let mut entries = read.entries(root, &found.outer, now)?;
    entries.push(found.entry());
    entries.push(Entry::Leases { devices: found.inner.devices.clone() });
    let session = core.create(root.clone(), header, entries).await?;
    session.indexes(|view| view.note_look(now, true));
    // An index may show the chain of a device that lost a fork, or never heard of it.
    let merged = Box::pin(reconcile::merge_all(core, &session, older, &mut |_| {})).await;
    log_failure(merged, "the chain of another head record was not merged");
    reconcile::keep_branches_of(core, &session, &heads, &mut |_| {}).await;
    // A log client is no device: it is new with every request.
    if !matches!(core.journals.location, JournalLocation::Log(_)) {
        head::spawn_lease(core, session);
    }
    Ok(RecoveryReport { session: id, lost })
}

/// As [`Client::import`](crate::Client::import).
pub(crate) async fn import(core: &Arc<Core>, text: &str) -> Result<SessionId, ClientError> {
    let export = parse(text)?;
    let root = export.root.as_ref().ok_or_else(|| {
        ClientError::Export("it has no root; export it with --with-root to move a session".to_owned())
    })?;
    let root = SessionRoot::from_bytes(*root.expose());
    let now = core.now_ms();
    let own = root.clone();
    let checked = crate::stack_wipe::blocking(move || verified_entries(&own, &export, now));
    let (header, entries) = checked.await??;
    let session = core.create(root, header, entries).await?;
    // Its blobs may have expired, and its head may not be published from here.
    spawn_background_work(core, session.clone());
    Ok(session.id)
}

/// The readable parts of a session whose store lacks blobs.
struct ReadableChain {
    /// The newest part, oldest segment first: never empty.
    newest: Vec<VerifiedSegment>,
    /// The parts before it, newest first, each before a gap.
    before_gaps: Vec<Vec<VerifiedSegment>>,
}

impl ReadableChain {
    /// The unreadable turns up to this one, oldest first.
    fn lost(&self, last: u64) -> Vec<RangeInclusive<u64>> {
        let (mut lost, mut next) = (Vec::new(), 0);
        for part in self.before_gaps.iter().rev().chain([&self.newest]) {
            let turns = || part.iter().flat_map(|segment| &segment.turns).map(|turn| turn.link.seq);
            let (Some(first), Some(end)) = (turns().next(), turns().next_back()) else { continue };
            if next < first {
                lost.push(next..=first - 1);
            }
            next = end.saturating_add(1);
        }
        if next <= last {
            lost.push(next..=last);
        }
        lost
    }

    /// The entries of a session with these turns.
    fn entries(&self, root: &SessionRoot, head: &HeadOuter, now_ms: u64) -> Result<Vec<Entry>, ClientError> {
        let mut entries = Vec::new();
        let first = self.newest.iter().flat_map(|segment| &segment.turns).next();
        if let Some(first) = first.filter(|first| first.link.seq > 0) {
            let before = head.blobs.iter().filter(|end| end.segment < first.link.segment);
            entries.push(Entry::Before(Box::new(TurnsBefore {
                seq: first.link.seq,
                prev_link: first.link.prev_link,
                blobs: before.copied().collect(),
                omitted: None,
            })));
        }
        for part in self.before_gaps.iter().rev() {
            entries.push(Entry::Branch { head: None });
            let turns = part.iter().flat_map(|segment| &segment.segment.entries);
            entries.extend(turns.map(|turn| Entry::BranchTurn(Box::new(turn.clone()))));
        }
        entries.extend(transfer::entries(root, &self.newest, &Default::default(), now_ms)?);
        Ok(entries)
    }
}

/// The readable parts of a head's chain: the newest part, and the parts before its gaps as far as the head
/// names their blobs. If the newest blob is gone, its predecessor may still be named by an earlier head
/// that an index shows.
async fn read_available(
    core: &Arc<Core>,
    root: &SessionRoot,
    found: &FoundHead,
    older: &[FoundHead],
) -> Result<Option<ReadableChain>, ClientError> {
    let last = found.last_identity(root).map(|identity| (root, identity));
    let mut parts = Vec::new();
    parts.extend(read_part(core, root, &found.outer, last).await?);
    let open = found.outer.blobs.first().map(|end| end.segment);
    for head in older.iter().filter(|head| head.outer.blobs.first().map(|end| end.segment) == open) {
        if parts.is_empty() && head.outer.seq < found.outer.seq {
            let last = head.last_identity(root).map(|identity| (root, identity));
            parts.extend(read_part(core, root, &head.outer, last).await?);
        }
    }
    for (index, end) in found.outer.blobs.iter().enumerate().skip(1) {
        let read_from = parts.last().and_then(|part: &Vec<VerifiedSegment>| part.first());
        if read_from.is_some_and(|first| end.segment >= first.segment.segment) {
            continue;
        }
        let Ok(bytes) = verify::fetch_segment(core, &end.blob, &store_alone(None)).await else { continue };
        let Ok((seq, link_hash)) = end_of_blob(root, end.segment, &bytes.bytes) else { continue };
        let blobs = found.outer.blobs.get(index..).unwrap_or_default().to_vec();
        let outer = HeadOuter { seq, link_hash, blobs, ..found.outer.clone() };
        parts.extend(read_part(core, root, &outer, None).await?);
    }
    let mut parts = parts.into_iter();
    Ok(parts.next().map(|newest| ReadableChain { newest, before_gaps: parts.collect() }))
}

/// The verified segments from a head back to a gap or to the genesis, oldest first; none if its own blob is
/// gone.
async fn read_part(
    core: &Arc<Core>,
    root: &SessionRoot,
    outer: &HeadOuter,
    last: Option<(&SessionRoot, RecordIdentity)>,
) -> Result<Option<Vec<VerifiedSegment>>, ClientError> {
    let mut report = VerifyReport::default();
    let (segments, _) = verify::fetch_readable(core, root, outer, &store_alone(last), &mut report).await?;
    Ok((!segments.is_empty()).then_some(segments))
}

/// The store and the author of the last turn.
fn store_alone(last: Option<(&SessionRoot, RecordIdentity)>) -> BlobSources<'_> {
    BlobSources { session: None, unavailable: None, own_first: false, last, from: 0 }
}

/// Position and link hash of the last turn in a blob, whose digest a signed head names.
fn end_of_blob(root: &SessionRoot, number: u64, bytes: &[u8]) -> Result<(u64, LinkHash), ErrorCode> {
    let key = root.blob_key(number, &blob_salt(bytes)?);
    let segment = Segment::open(bytes, &key, &root.session_id(), number)?;
    let last = segment.entries.last().ok_or(ErrorCode::BadSequence)?;
    let link = SignedObject::<Link>::verify(last.link.clone())?;
    Ok((link.seq, link.link_hash()))
}
