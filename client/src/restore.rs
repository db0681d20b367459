//! Sessions that come to this device: recovered from the index and the store by their root, or imported from
//! an export.

use std::{ops::RangeInclusive, sync::Arc};

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
    background::{check_head, open, spawn_background_work},
    core::Core,
    error::ClientError,
    session::{journal::JournalLocation, state::Entry},
    sync::{
        head::{self, FoundHead},
        reconcile,
        transfer::{self, parse, verified_entries},
        verify::{self, Sources, VerifyReport},
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

/// As [`Client::recover`](crate::Client::recover).
pub(crate) async fn recover(core: &Arc<Core>, root: &SessionRoot) -> Result<SessionId, ClientError> {
    Ok(recover_with(core, root, Missing::Refused).await?.session)
}

/// As [`Client::recover_available`](crate::Client::recover_available).
pub(crate) async fn recover_available(
    core: &Arc<Core>,
    root: &SessionRoot,
) -> Result<RecoveryReport, ClientError> {
    recover_with(core, root, Missing::Named).await
}

async fn recover_with(
    core: &Arc<Core>,
    root: &SessionRoot,
    missing: Missing,
) -> Result<RecoveryReport, ClientError> {
    let id = root.session_id();
    match open(core, id).await {
        Err(ClientError::UnknownSession(_) | ClientError::JournalDamaged { .. }) => {}
        Err(error) => return Err(error),
        Ok(session) => match check_head(core, &session).await {
            // Another device continued: the longer chain contains the one known here, or reading it finds a
            // fork.
            Err(ClientError::Behind { .. }) => {
                reconcile::catch_up(core, &session).await?;
                return Ok(RecoveryReport { session: id, lost: None });
            }
            Ok(_) => return Err(ClientError::SessionExists(id)),
            Err(error) => return Err(error),
        },
    }
    let found = head::resolve(core, root).await?.ok_or(ClientError::HeadMissing)?;
    if found.inner.tombstone {
        return Err(ClientError::Deleted);
    }
    let (segments, lost) = match verify::fetch_chain(core, root, &found, None).await {
        Err(error) if missing == Missing::Named && is_gone(&error) => {
            let segments = fetch_older(core, root, &found).await.ok_or(error)?;
            let end = segments.last().and_then(|segment| segment.turns.last()).map(|turn| turn.link.seq);
            (segments, end.map(|end| end.saturating_add(1)..=found.outer.seq))
        }
        segments => (segments?, None),
    };
    let now = core.now_ms();
    let header = transfer::new_header(found.outer.n_shards, found.outer.branch, now);
    let mut entries = transfer::entries(root, &segments, &Default::default(), now)?;
    entries.push(found.entry());
    entries.push(Entry::Leases { devices: found.inner.devices });
    let session = core.create(root.clone(), header, entries, true).await?;
    session.indexes(|view| view.note_look(now, true));
    // A log client is no device: it is new with every request.
    if !matches!(core.journals, JournalLocation::Log(_)) {
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
    let checked = {
        let root = root.clone();
        crate::stack_wipe::spawn_blocking(move || verified_entries(&root, &export, now))
    };
    let (header, entries) = checked.await.map_err(|_| ClientError::TaskEnded)??;
    let session = core.create(root, header, entries, true).await?;
    // Its blobs may have expired, and its head may not be published from here.
    spawn_background_work(core, session.clone());
    Ok(session.id)
}

/// The verified segments up to the newest readable blob of a head, when the head's own blob cannot be
/// read.
async fn fetch_older(
    core: &Arc<Core>,
    root: &SessionRoot,
    found: &FoundHead,
) -> Option<Vec<VerifiedSegment>> {
    for (index, end) in found.outer.blobs.iter().enumerate().skip(1) {
        let sources = Sources { session: None, own_first: false, last: None };
        let Ok(bytes) = verify::fetch_segment(core, &end.blob, &sources).await else { continue };
        let Ok((seq, link_hash)) = end_of_blob(root, end.segment, &bytes.bytes) else { continue };
        let blobs = found.outer.blobs.get(index..)?.to_vec();
        let outer = HeadOuter { seq, link_hash, blobs, ..found.outer.clone() };
        if let Ok(segments) =
            verify::fetch_verified(core, root, &outer, &sources, &mut VerifyReport::default()).await
        {
            return Some(segments);
        }
    }
    None
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
