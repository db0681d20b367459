//! The end of a turn, from both sides.
//!
//! The node seals record, receipt, link and blob. The client rebuilds all of them byte for byte before it
//! accepts.

use baton_keys::{
    SecretSigningKey,
    session::{BlobKey, RecordKey, SessionRoot},
};

use crate::{
    codec,
    error::ErrorCode,
    ids::{BlobDigest, NodeId, SessionId},
    limits::{MAX_LINK_LEAD_MS, VERSION},
    link::{BlobRef, Link, blob_digest},
    memory::MemoryItem,
    receipt::{Receipt, commit_input, commit_memory, commit_output},
    record::{FinishReason, Message, Record, RecordKind, SealedRecord},
    segment::{Entry, Segment},
    signed::{SignedBytes, SignedObject},
    turn::{Grant, Sampling, TurnAuth},
    wire::Committed,
};

/// The position that a turn is appended at.
#[derive(Debug, Clone, Copy)]
pub struct ChainPosition<'a> {
    /// The segment, without the new entry.
    pub base: &'a Segment,
    /// The previous turn's blob.
    pub prev_blob: Option<BlobRef>,
}

/// A turn sealed and signed by a node.
#[derive(Debug, Clone)]
pub struct SealedTurn {
    /// The link.
    pub link: SignedObject<Link>,
    /// The receipt.
    pub receipt: SignedObject<Receipt>,
    /// The new blob.
    pub blob: Vec<u8>,
    /// Its digest.
    pub blob_digest: BlobDigest,
    /// Whether it is the last blob of its segment.
    pub closes_segment: bool,
    /// Why the answer ended.
    pub finish: FinishReason,
}

impl SealedTurn {
    /// The message to the client.
    #[must_use]
    pub fn committed(&self) -> Committed {
        Committed {
            link: self.link.bytes().clone(),
            receipt: self.receipt.bytes().clone(),
            blob_digest: self.blob_digest,
            blob_length: u32::try_from(self.blob.len()).expect("a blob is at most 2 MiB and a little"),
            finish: self.finish,
        }
    }
}

/// Seals and signs a turn with the granted keys. The order matters: record, receipt (signed), link (names both, signed), blob.
///
/// # Errors
/// As [`Record::check`]: a node never signs a turn that every reader would refuse.
/// [`ErrorCode::FrameTooLarge`] when the record does not fit, [`ErrorCode::BlobTooLarge`].
pub fn seal_turn(
    auth: &SignedObject<TurnAuth>,
    position: ChainPosition<'_>,
    grant: &Grant,
    record: &Record,
    receipt: Receipt,
    node: &SecretSigningKey,
) -> Result<SealedTurn, ErrorCode> {
    record.check(auth.seq)?;
    let (record_key, blob_key) = (grant.record_key.record_key(), grant.blob_key.blob_key());
    let mut link = unsealed_link(auth, position, node.node_id(), receipt.time_ms)?;
    let sealed = record.seal(&record_key, &link.record_identity())?;
    let receipt = SignedObject::sign(receipt, node);
    link.record_hash = sealed.hash();
    link.record_length = u32::try_from(sealed.0.len()).map_err(|_| ErrorCode::FrameTooLarge)?;
    link.receipt_hash = receipt.receipt_hash();
    let link = SignedObject::sign(link, node);
    let (segment, blob) = append(position.base, &link, sealed, &record_key, &blob_key)?;
    Ok(SealedTurn {
        link,
        receipt,
        blob_digest: blob_digest(&blob),
        blob,
        closes_segment: segment.is_closed(),
        finish: record.finish,
    })
}

/// The link of a turn without its hashes.
fn unsealed_link(
    auth: &SignedObject<TurnAuth>,
    position: ChainPosition<'_>,
    author: NodeId,
    time_ms: u64,
) -> Result<Link, ErrorCode> {
    Ok(Link {
        version: VERSION,
        session_id: auth.session_id,
        seq: auth.seq,
        segment: position.base.segment,
        index: u8::try_from(position.base.entries.len()).map_err(|_| ErrorCode::BadSequence)?,
        turn_id: auth.turn_id,
        attempt: auth.attempt,
        prev_link: auth.prev_link,
        prev_blob: position.prev_blob,
        record_hash: crate::ids::RecordHash([0; 32]),
        record_length: 0,
        auth_hash: auth.auth_hash(),
        receipt_hash: crate::ids::ReceiptHash([0; 32]),
        author,
        time_ms,
    })
}

/// Whether a turn with this record will close its segment. A node needs it for the price in the receipt,
/// before it seals: hashes do not change a length.
///
/// # Errors
/// [`ErrorCode::FrameTooLarge`] when the record does not fit.
pub fn closes_segment(
    auth: &SignedObject<TurnAuth>,
    position: ChainPosition<'_>,
    record: &Record,
) -> Result<bool, ErrorCode> {
    let link = unsealed_link(auth, position, auth.audience, 0)?;
    let body = codec::encode(&link).len();
    Ok(position.base.closes_with(Entry::encoded_len_of(body, record.sealed_len()?)))
}

fn append(
    base: &Segment,
    link: &SignedObject<Link>,
    record: SealedRecord,
    record_key: &RecordKey,
    blob_key: &BlobKey,
) -> Result<(Segment, Vec<u8>), ErrorCode> {
    let mut segment = base.clone();
    segment.entries.push(Entry { link: link.bytes().clone(), record });
    let blob = segment.seal(blob_key, &record_key.blob_salt())?;
    Ok((segment, blob))
}

/// The client's request, against which it checks the result.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedTurn<'a> {
    /// The authorisation that the client signed.
    pub auth: &'a SignedObject<TurnAuth>,
    /// The position that the turn is appended at.
    pub position: ChainPosition<'a>,
    /// The kind of the new record.
    pub kind: RecordKind,
    /// The first seq that the record replaces.
    pub supersedes_from: Option<u64>,
    /// Pinned system text.
    pub system: &'a [Message],
    /// The turn's new messages.
    pub messages: &'a [Message],
    /// The requested sampling settings.
    pub sampling: &'a Sampling,
    /// The memory items that a relayer says it added, best first.
    pub memory: &'a [MemoryItem],
}

/// A turn that the client rebuilt and accepts.
#[derive(Debug, Clone)]
pub struct AcceptedTurn {
    /// The link.
    pub link: SignedObject<Link>,
    /// The receipt.
    pub receipt: SignedObject<Receipt>,
    /// The turn's text.
    pub record: Record,
    /// The segment with the new turn.
    pub segment: Segment,
    /// The blob, rebuilt.
    pub blob: Vec<u8>,
    /// Its digest.
    pub blob_digest: BlobDigest,
}

/// Rebuilds a turn from the client's own data; accepts it only if every byte is as the node signed it.
///
/// # Errors
/// - [`ErrorCode::BadNodeSignature`].
/// - [`ErrorCode::ReceiptMismatch`] when link or receipt belong to another turn, or when the link's time lies
///   before the order's or after `now_ms`, by more than clocks may differ.
/// - [`ErrorCode::BlobMismatch`] when record or blob differ from those rebuilt from the client's own text.
///   Also when the record breaks a limit (the answer is too long, say), as no reader would take it.
pub fn accept_turn(
    root: &SessionRoot,
    expected: &ExpectedTurn<'_>,
    committed: &Committed,
    answer: &str,
    now_ms: u64,
) -> Result<AcceptedTurn, ErrorCode> {
    let link = SignedObject::<Link>::verify(committed.link.clone())?;
    let receipt = SignedObject::<Receipt>::verify(committed.receipt.clone())?;
    check_link(&link, &receipt, expected, now_ms)?;
    let record =
        Record::of_turn(expected.kind, expected.supersedes_from, expected.messages, answer, committed.finish);
    let identity = link.record_identity();
    let record_key = root.record_key(&identity);
    check_receipt(&receipt, &record_key, expected, answer, committed.finish)?;
    let sealed = record
        .check(identity.seq)
        .and_then(|()| record.seal(&record_key, &identity))
        .map_err(|_| ErrorCode::BlobMismatch)?;
    if sealed.hash() != link.record_hash || sealed.0.len() != link.record_length as usize {
        return Err(ErrorCode::BlobMismatch);
    }
    let blob_key = root.blob_key(link.segment, &record_key.blob_salt());
    let (segment, blob) = append(expected.position.base, &link, sealed, &record_key, &blob_key)?;
    let digest = blob_digest(&blob);
    if digest != committed.blob_digest || blob.len() != committed.blob_length as usize {
        return Err(ErrorCode::BlobMismatch);
    }
    Ok(AcceptedTurn { link, receipt, record, segment, blob, blob_digest: digest })
}

fn check_link(
    link: &SignedObject<Link>,
    receipt: &SignedObject<Receipt>,
    expected: &ExpectedTurn<'_>,
    now_ms: u64,
) -> Result<(), ErrorCode> {
    let auth = expected.auth;
    let ours = link.session_id == auth.session_id
        && link.seq == auth.seq
        && link.segment == expected.position.base.segment
        && usize::from(link.index) == expected.position.base.entries.len()
        && link.turn_id == auth.turn_id
        && link.attempt == auth.attempt
        && link.prev_link == auth.prev_link
        && link.prev_blob == expected.position.prev_blob
        && link.author == auth.audience
        && link.auth_hash == auth.auth_hash()
        && link.receipt_hash == receipt.receipt_hash()
        && link.is_timely(auth.issued_ms, now_ms.saturating_add(MAX_LINK_LEAD_MS));
    if ours { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
}

fn check_receipt(
    receipt: &Receipt,
    key: &RecordKey,
    expected: &ExpectedTurn<'_>,
    answer: &str,
    finish: FinishReason,
) -> Result<(), ErrorCode> {
    let auth = expected.auth;
    let items = expected.memory.get(..usize::from(receipt.memory_items));
    let memory = items.map(|items| commit_memory(key, items));
    let ours = receipt.session_id == auth.session_id
        && receipt.seq == auth.seq
        && receipt.turn_id == auth.turn_id
        && receipt.attempt == auth.attempt
        && receipt.auth_hash == auth.auth_hash()
        && receipt.node == auth.audience
        && receipt.seed == expected.sampling.seed
        && receipt.window_from <= auth.seq
        && receipt.claims_fit(auth);
    let commitments = receipt.commitments.input
        == commit_input(key, expected.system, receipt.window_from, expected.messages)
        && receipt.commitments.output == commit_output(key, answer, finish)
        && memory == Some(receipt.commitments.memory);
    if ours && commitments && receipt.hash_fits_empty_answer(key) {
        Ok(())
    } else {
        Err(ErrorCode::ReceiptMismatch)
    }
}

/// Checks a receipt that came with a link. It needs no session key, so anyone can do it offline.
///
/// # Errors
/// [`ErrorCode::BadNodeSignature`], [`ErrorCode::ReceiptMismatch`].
pub fn check_receipt_of_link(
    link: &SignedObject<Link>,
    receipt: SignedBytes,
) -> Result<SignedObject<Receipt>, ErrorCode> {
    let receipt = SignedObject::<Receipt>::verify(receipt)?;
    let same = |session: SessionId, node: NodeId| session == link.session_id && node == link.author;
    let fits = same(receipt.session_id, receipt.node)
        && receipt.seq == link.seq
        && receipt.turn_id == link.turn_id
        && receipt.attempt == link.attempt
        && receipt.auth_hash == link.auth_hash
        && receipt.receipt_hash() == link.receipt_hash;
    if fits { Ok(receipt) } else { Err(ErrorCode::ReceiptMismatch) }
}
