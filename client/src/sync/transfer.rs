//! Sessions as files: an export that anyone can verify, and the import of an export with its root.

use std::{collections::BTreeMap, sync::Arc};

use baton_keys::session::SessionRoot;
use baton_proto::{
    ErrorCode, SignedBytes,
    chain::{SessionReader, VerifiedSegment, rebuild_blob},
    codec,
    export::{self, Export, TurnProofs},
    head::{HeadOuter, SegmentRef},
    ids::BlobId,
    limits::{MAX_READ_BLOBS, MAX_SIGNED_BYTES},
    link::{BlobRef, BranchPoint, blob_digest},
    record::Message,
};
use baton_walrus_client::ShardCount;
use zeroize::Zeroizing;

use crate::{
    core::new_device,
    error::ClientError,
    session::{
        open_session::Session,
        state::{Entry, Proof, SessionHeader, State, StoredBlob, TurnChange, TurnEntry},
    },
    sync::verify,
};

/// Largest export to write or read: some thousand turns.
pub const MAX_EXPORT_BYTES: usize = 256 * 1024 * 1024;

/// Proofs by turn.
pub(crate) type Proofs = BTreeMap<u64, TurnProofs>;

/// As [`SessionHandle::export`](crate::SessionHandle::export).
pub(crate) async fn export(
    session: &Arc<Session>,
    with_root: bool,
) -> Result<Zeroizing<String>, ClientError> {
    let segments = verify::own_segments(session).await?;
    let built = session
        .read(|state| export::build(&state.root, &state.genesis(), with_root, &segments, &proofs(state)))?;
    let text =
        serde_json::to_string_pretty(&built).map_err(|error| ClientError::Export(error.to_string()))?;
    check_size(Zeroizing::new(text), MAX_EXPORT_BYTES)
}

/// Refuses to write an export that is too large to read.
fn check_size(text: Zeroizing<String>, limit: usize) -> Result<Zeroizing<String>, ClientError> {
    if text.len() > limit {
        return Err(ClientError::ExportTooLarge { bytes: text.len(), limit });
    }
    Ok(text)
}

/// Parses an export.
///
/// # Errors
/// [`ClientError::Export`].
pub fn parse(text: &str) -> Result<Export, ClientError> {
    if text.len() > MAX_EXPORT_BYTES {
        return Err(ClientError::Export(format!("it is larger than {MAX_EXPORT_BYTES} bytes")));
    }
    serde_json::from_str(text).map_err(|error| ClientError::Export(error.to_string()))
}

/// Verifies an export from its own content, including the Walrus IDs of closed segments or of all. Blocking.
///
/// # Errors
/// The code that names the first violation.
pub fn verify_export(export: &Export, full: bool) -> Result<export::ExportReport, ErrorCode> {
    let shards = ShardCount::new(export.n_shards).map_err(|_| ErrorCode::BadGenesis)?;
    export::verify_each_blob(export, &mut |blob| match blob.blob_id {
        Some(id)
            if (full || blob.closes_segment)
                && baton_walrus_client::blob_id(blob.bytes, shards) != Ok(id) =>
        {
            Err(ErrorCode::BlobIdMismatch)
        }
        _ => Ok(()),
    })
}

fn proofs(state: &State) -> Proofs {
    let turns = state.history.iter().zip(&state.meta);
    let proof = |meta: &crate::session::state::TurnMeta| TurnProofs {
        auth: meta.auth.as_ref().map(|auth| auth.bytes().clone()),
        receipt: meta.receipt.as_ref().map(|receipt| receipt.bytes().clone()),
        ack: meta.ack.as_ref().map(|ack| ack.bytes().clone()),
        system: meta.system.as_ref().map(|system| system.to_vec()),
        sampling: meta.asked.as_ref().map(|(sampling, _)| sampling.clone()),
    };
    turns.map(|(turn, meta)| (turn.link.seq, proof(meta))).collect()
}

/// Verifies an export and converts it to a journal's entries.
pub(crate) fn verified_entries(
    root: &SessionRoot,
    export: &Export,
    now_ms: u64,
) -> Result<(SessionHeader, Vec<Entry>), ClientError> {
    verify_export(export, true)?;
    let genesis = export.genesis();
    let mut blobs: Vec<SegmentRef> = Vec::new();
    for segment in export.segments.iter().rev().take(MAX_READ_BLOBS) {
        let length = u32::try_from(segment.blob.len()).map_err(|_| ErrorCode::BlobTooLarge)?;
        let blob = BlobRef { blob_id: segment.blob_id, digest: blob_digest(&segment.blob), length };
        blobs.push(SegmentRef { segment: segment.segment, blob });
    }
    let outer = HeadOuter {
        n_shards: export.n_shards,
        branch: genesis.branch,
        seq: export.head.seq,
        link_hash: export.head.link_hash,
        blobs,
    };
    let mut reader = SessionReader::new(root, &outer)?;
    for segment in export.segments.iter().rev() {
        reader.provide(&segment.blob)?;
    }
    let segments = reader.finish()?;
    let mut proofs = Proofs::new();
    for turn in &export.turns {
        let decode = |bytes: &Option<Vec<u8>>| -> Result<Option<SignedBytes>, ErrorCode> {
            bytes.as_ref().map(|bytes| codec::decode(bytes, MAX_SIGNED_BYTES + 72)).transpose()
        };
        let proof = TurnProofs {
            auth: decode(&turn.auth)?,
            receipt: decode(&turn.receipt)?,
            ack: decode(&turn.ack)?,
            system: turn.system.clone(),
            sampling: turn.sampling.clone(),
        };
        proofs.insert(turn.seq, proof);
    }
    let header = new_header(export.n_shards, genesis.branch, now_ms);
    Ok((header, entries(root, &segments, &proofs, now_ms)?))
}

/// The opening of a session that was created elsewhere.
pub(crate) fn new_header(n_shards: u16, branch: Option<BranchPoint>, now_ms: u64) -> SessionHeader {
    SessionHeader {
        n_shards,
        branch,
        device_id: new_device(),
        created_ms: now_ms,
        system: Vec::new(),
        project: None,
    }
}

/// The entries of a session with these turns. Segments read from elsewhere count as stored; a later check
/// restores missing ones.
pub(crate) fn entries(
    root: &SessionRoot,
    segments: &[VerifiedSegment],
    proofs: &Proofs,
    now_ms: u64,
) -> Result<Vec<Entry>, ClientError> {
    let mut entries = Vec::new();
    let mut system: Vec<Message> = Vec::new();
    for segment in segments {
        let mut last: Option<(u64, BlobId)> = None;
        for (index, turn) in segment.turns.iter().enumerate() {
            let link = &turn.link;
            let known = proofs.get(&link.seq);
            if let Some(pinned) = known.and_then(|proof| proof.system.as_ref())
                && *pinned != system
            {
                system.clone_from(pinned);
                entries.push(Entry::System(system.clone()));
            }
            let proof = known.and_then(|proof| {
                let (auth, receipt) = (proof.auth.clone()?, proof.receipt.clone()?);
                Some(Proof { auth, receipt, ack: proof.ack.clone() })
            });
            let bytes = rebuild_blob(root, &segment.segment, link, index + 1)?;
            let entry = segment.segment.entries.get(index).ok_or(ErrorCode::BadSequence)?.clone();
            entries.push(Entry::Turn(Box::new(TurnEntry {
                entry,
                blob_digest: blob_digest(&bytes),
                blob_length: u32::try_from(bytes.len()).map_err(|_| ErrorCode::BlobTooLarge)?,
                accepted_ms: now_ms,
                proof,
                ordered: None,
                memory: Vec::new(),
                tokens: Vec::new(),
            })));
            last = Some((link.seq, segment.blob.blob_id));
        }
        if let Some((seq, id)) = last {
            entries.push(Entry::OfTurn(seq, TurnChange::BlobId(id)));
            entries.push(Entry::OfTurn(seq, TurnChange::Stored(StoredBlob::default())));
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_could_not_be_read_again_is_not_written() {
        let text = || Zeroizing::new("four".to_owned());
        assert_eq!(check_size(text(), 4).unwrap(), text());
        let refused = check_size(text(), 3).unwrap_err();
        assert!(matches!(refused, ClientError::ExportTooLarge { bytes: 4, limit: 3 }));
    }
}
