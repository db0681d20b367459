//! Verification of an exported session, from its own content alone.

use baton_keys::session::{BlobKey, RecordKey, SessionRoot, session_id};

use crate::{
    chain::{ChainEnd, verify_segment},
    commit::check_receipt_of_link,
    error::ErrorCode,
    ids::{BlobId, LinkHash},
    limits::{MAX_SIGNED_BYTES, MAX_TURN_MS},
    link::{BlobRef, Genesis, Link, blob_digest},
    note::TurnNote,
    receipt::{Receipt, commit_input, commit_output},
    record::{Message, Record, SealedRecord},
    segment::{Segment, blob_salt},
    signed::{SignedBytes, SignedObject},
    turn::{Sampling, TurnAuth},
};

use super::{EXPORT_FORMAT, Export, ExportSegment, ExportStatement, ExportTurn};

/// Shard counts of Walrus networks, within which blob IDs are defined.
const N_SHARDS: std::ops::RangeInclusive<u16> = 4..=2048;

/// The coverage of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// The end of the chain.
    pub head: LinkHash,
    /// Turns with checked link, node signature, record and position.
    pub turns: u64,
    /// Segments.
    pub segments: u64,
    /// Authorisations checked.
    pub auths_checked: u64,
    /// Receipts checked, with their commitment to the answer.
    pub receipts_checked: u64,
    /// Receipts whose commitment to the input was checked too.
    pub inputs_checked: u64,
    /// Acknowledgements checked.
    pub acks_checked: u64,
}

/// A blob of the session, rebuilt and equal to the blob that the chain names.
#[derive(Clone, Copy, Debug)]
pub struct SeenBlob<'a> {
    /// The turn that completed it.
    pub seq: u64,
    /// Its ID, as the next link or the export names it.
    pub blob_id: Option<BlobId>,
    /// Whether it closed its segment.
    pub closes_segment: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Verifies everything in an export:
///
/// - the client's statement about the head
/// - seals, keys, links, records, genesis
/// - every blob, rebuilt
/// - authorisations, receipts with their commitments, acknowledgements
/// - with a root: that all keys derive from it
///
/// Walrus IDs are compared with those in the chain, not computed; see [`verify_each_blob`] for that.
///
/// # Errors
/// The code that names the first violation.
pub fn verify(export: &Export) -> Result<ExportReport, ErrorCode> {
    verify_each_blob(export, &mut |_| Ok(()))
}

/// As [`verify`], and passes every rebuilt blob to `see`, which may compute its Walrus ID.
///
/// # Errors
/// As [`verify`], and the errors of `see`.
pub fn verify_each_blob(
    export: &Export,
    see: &mut dyn FnMut(&SeenBlob<'_>) -> Result<(), ErrorCode>,
) -> Result<ExportReport, ErrorCode> {
    walk(export, see, &mut |_| {})
}

/// As [`verify`], and returns the opened turns, oldest first.
///
/// # Errors
/// As [`verify`].
pub fn open(export: &Export) -> Result<Vec<OpenTurn>, ErrorCode> {
    let mut turns = Vec::new();
    walk(export, &mut |_| Ok(()), &mut |turn| turns.push(turn))?;
    Ok(turns)
}

/// One turn of a verified export.
#[derive(Clone, Debug)]
pub struct OpenTurn {
    /// Its link.
    pub link: SignedObject<Link>,
    /// Its text.
    pub record: Record,
    /// The key of its record and of all commitments about it.
    pub record_key: RecordKey,
    /// The authorisation, if the export has it.
    pub auth: Option<SignedObject<TurnAuth>>,
    /// The receipt, if the export has it.
    pub receipt: Option<SignedObject<Receipt>>,
    /// The pinned system text, if the export has it.
    pub system: Option<Vec<Message>>,
    /// Its sampling settings, if the export has them.
    pub sampling: Option<Sampling>,
}

fn walk(
    export: &Export,
    see: &mut dyn FnMut(&SeenBlob<'_>) -> Result<(), ErrorCode>,
    keep: &mut dyn FnMut(OpenTurn),
) -> Result<ExportReport, ErrorCode> {
    if export.format != EXPORT_FORMAT {
        return Err(ErrorCode::UnsupportedVersion);
    }
    if session_id(&export.session_key) != export.session_id {
        return Err(ErrorCode::SessionIdMismatch);
    }
    if !N_SHARDS.contains(&export.n_shards) {
        return Err(ErrorCode::BadGenesis);
    }
    check_statement(export)?;
    let root = check_root(export)?;
    let segments = check_chain(export)?;
    let mut report = ExportReport {
        head: export.head.link_hash,
        turns: 0,
        segments: 0,
        auths_checked: 0,
        receipts_checked: 0,
        inputs_checked: 0,
        acks_checked: 0,
    };
    let mut turns = export.turns.iter();
    for (position, (segment, links)) in segments.iter().enumerate() {
        let after = segments.get(position + 1).and_then(|(_, links)| links.first());
        let exported = export.segments.get(position).ok_or(ErrorCode::BadSequence)?;
        for (index, link) in links.iter().enumerate() {
            let turn = turns.next().ok_or(ErrorCode::BadSequence)?;
            if turn.seq != link.seq {
                return Err(ErrorCode::BadSequence);
            }
            let record = segment.entries.get(index).map(|entry| &entry.record);
            let checked = CheckedTurn {
                export,
                turn,
                link,
                record: open_record(turn, link, record.ok_or(ErrorCode::BadSequence)?)?,
                record_key: RecordKey::from_bytes(*turn.record_key.expose()),
            };
            checked.derives_from(root.as_ref())?;
            let is_last = index + 1 == links.len();
            let named = links.get(index + 1).or(after).and_then(|next| next.prev_blob);
            let blob = checked.rebuild(segment, index + 1)?;
            checked.is_named_blob(&blob, named, is_last.then_some(exported))?;
            let closes_segment = is_last && segment.is_closed();
            // The next link's word is signed, the export's own is not.
            let named = named.map(|named| named.blob_id);
            let blob_id = named.or(is_last.then_some(exported.blob_id)).or(turn.blob_id);
            see(&SeenBlob { seq: link.seq, blob_id, closes_segment, bytes: &blob })?;
            keep(checked.proofs(&blob, &mut report)?);
            report.turns += 1;
        }
        report.segments += 1;
    }
    if turns.next().is_some() { Err(ErrorCode::BadSequence) } else { Ok(report) }
}

/// Checks that the session's own key signed the head: without that, anyone could have made the whole chain.
fn check_statement(export: &Export) -> Result<(), ErrorCode> {
    let statement = SignedObject::<ExportStatement>::verify_encoded(&export.head.statement)?;
    let meant = statement.session_id == export.session_id
        && statement.session_key == export.session_key
        && statement.seq == export.head.seq
        && statement.link_hash == export.head.link_hash;
    if meant { Ok(()) } else { Err(ErrorCode::HeadMismatch) }
}

fn check_root(export: &Export) -> Result<Option<SessionRoot>, ErrorCode> {
    let Some(root) = &export.root else { return Ok(None) };
    let root = SessionRoot::from_bytes(*root.expose());
    if root.signing_key().public_key() == export.session_key {
        Ok(Some(root))
    } else {
        Err(ErrorCode::SessionIdMismatch)
    }
}

type SegmentWithLinks = (Segment, Vec<SignedObject<Link>>);

/// Verifies the segments from the head back to the genesis; returns them oldest first.
fn check_chain(export: &Export) -> Result<Vec<SegmentWithLinks>, ErrorCode> {
    let genesis = export.genesis();
    let mut end = ChainEnd { seq: export.head.seq, link_hash: export.head.link_hash };
    let mut newest_first: Vec<SegmentWithLinks> = Vec::with_capacity(export.segments.len());
    for (position, exported) in export.segments.iter().enumerate().rev() {
        if exported.segment != position as u64 {
            return Err(ErrorCode::BadSequence);
        }
        let segment = export.open_segment(exported)?;
        let at_head = newest_first.is_empty();
        if !at_head && !segment.is_closed() {
            return Err(ErrorCode::BadSequence);
        }
        let links = verify_segment(&segment, &genesis, &end).map_err(|error| match error {
            ErrorCode::HeadMismatch if !at_head => ErrorCode::ChainBroken,
            other => other,
        })?;
        let first = links.first().ok_or(ErrorCode::BadSequence)?;
        match first.seq.checked_sub(1) {
            Some(seq) => end = ChainEnd { seq, link_hash: first.prev_link },
            // Only segment 0 starts at the genesis, and the loop ends there.
            None if position == 0 => {}
            None => return Err(ErrorCode::BadGenesis),
        }
        newest_first.push((segment, links));
    }
    let starts_at_genesis =
        newest_first.last().and_then(|(_, links)| links.first()).is_some_and(|link| link.seq == 0);
    newest_first.reverse();
    if starts_at_genesis { Ok(newest_first) } else { Err(ErrorCode::BadGenesis) }
}

fn open_record(turn: &ExportTurn, link: &Link, sealed: &SealedRecord) -> Result<Record, ErrorCode> {
    sealed.open(&RecordKey::from_bytes(*turn.record_key.expose()), &link.record_identity())
}

/// One turn with verified link and record.
struct CheckedTurn<'a> {
    export: &'a Export,
    turn: &'a ExportTurn,
    link: &'a SignedObject<Link>,
    record: Record,
    record_key: RecordKey,
}

impl CheckedTurn<'_> {
    fn derives_from(&self, root: Option<&SessionRoot>) -> Result<(), ErrorCode> {
        let Some(root) = root else { return Ok(()) };
        let record_key = root.record_key(&self.link.record_identity());
        let blob_key = root.blob_key(self.link.segment, &record_key.blob_salt());
        let same =
            record_key == self.record_key && blob_key == BlobKey::from_bytes(*self.turn.blob_key.expose());
        if same { Ok(()) } else { Err(ErrorCode::PayloadRejected) }
    }

    /// The blob as this turn completed it.
    fn rebuild(&self, segment: &Segment, turns: usize) -> Result<Vec<u8>, ErrorCode> {
        let entries = segment.entries.get(..turns).ok_or(ErrorCode::BadSequence)?.to_vec();
        let prefix = Segment { entries, ..Segment::empty(segment.session_id, segment.segment) };
        prefix.seal(&BlobKey::from_bytes(*self.turn.blob_key.expose()), &self.record_key.blob_salt())
    }

    /// Checks that the rebuilt blob is the blob that the next link names and, at a segment's end, the
    /// exported blob.
    fn is_named_blob(
        &self,
        blob: &[u8],
        named: Option<BlobRef>,
        exported: Option<&ExportSegment>,
    ) -> Result<(), ErrorCode> {
        if let Some(named) = named {
            named.check(blob)?;
            if self.turn.blob_id.is_some_and(|id| id != named.blob_id) {
                return Err(ErrorCode::BlobIdMismatch);
            }
        }
        let Some(exported) = exported else { return Ok(()) };
        let same = exported.blob == blob && blob_salt(&exported.blob)? == self.record_key.blob_salt();
        if !same || exported.blob_key != self.turn.blob_key {
            return Err(ErrorCode::BlobMismatch);
        }
        let known = named.map(|named| named.blob_id).or(self.turn.blob_id);
        if known.is_some_and(|id| id != exported.blob_id) { Err(ErrorCode::BlobIdMismatch) } else { Ok(()) }
    }

    fn proofs(self, blob: &[u8], report: &mut ExportReport) -> Result<OpenTurn, ErrorCode> {
        let auth = self.turn.auth.as_ref().map(|auth| self.check_auth(auth)).transpose()?;
        let system = self.turn.system.clone();
        let receipt = self.turn.receipt.as_ref().map(|receipt| {
            let bytes: SignedBytes = crate::codec::decode(receipt, MAX_SIGNED_BYTES + 72)?;
            check_receipt(self.link, &self.record, &self.record_key, system.as_deref(), bytes)
        });
        let receipt = receipt.transpose()?;
        if let (Some(auth), Some(receipt)) = (&auth, &receipt)
            && !receipt.claims_fit(auth)
        {
            return Err(ErrorCode::ReceiptMismatch);
        }
        if let Some(ack) = &self.turn.ack {
            self.check_ack(ack, blob)?;
            report.acks_checked += 1;
        }
        report.auths_checked += u64::from(auth.is_some());
        report.receipts_checked += u64::from(receipt.is_some());
        report.inputs_checked += u64::from(receipt.is_some() && system.is_some());
        let sampling = self.turn.sampling.clone();
        if let Some(sampling) = &sampling {
            check_sampling(sampling, &self.record_key, receipt.as_deref(), auth.as_deref())?;
        }
        Ok(OpenTurn {
            system,
            link: self.link.clone(),
            record: self.record,
            record_key: self.record_key,
            auth,
            receipt,
            sampling,
        })
    }

    fn check_auth(&self, encoded: &[u8]) -> Result<SignedObject<TurnAuth>, ErrorCode> {
        let auth = SignedObject::<TurnAuth>::verify_encoded(encoded)?;
        check_auth(self.link, &self.export.genesis(), &auth)?;
        Ok(auth)
    }

    fn check_ack(&self, encoded: &[u8], blob: &[u8]) -> Result<(), ErrorCode> {
        let ack = SignedObject::<TurnNote>::verify_encoded(encoded)?;
        if ack.accepts(self.link, blob_digest(blob)) { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
    }
}

/// Checks that a verified authorisation ordered the turn of a link.
fn check_auth(link: &Link, genesis: &Genesis, auth: &SignedObject<TurnAuth>) -> Result<(), ErrorCode> {
    let meant = auth.auth_hash() == link.auth_hash
        && auth.session_id == link.session_id
        && auth.seq == link.seq
        && auth.turn_id == link.turn_id
        && auth.attempt == link.attempt
        && auth.prev_link == link.prev_link
        // The client may have left it to the node to locate the blob.
        && (auth.prev_blob.is_none() || auth.prev_blob == link.prev_blob)
        && auth.audience == link.author
        && auth.genesis() == *genesis
        && link.is_timely(auth.issued_ms, auth.expires_ms.saturating_add(MAX_TURN_MS));
    if meant { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
}

/// Verifies a receipt, and checks its commitments to the turn: to the answer, and to the input if the system text is
/// known.
fn check_receipt(
    link: &SignedObject<Link>,
    record: &Record,
    record_key: &RecordKey,
    system: Option<&[Message]>,
    bytes: SignedBytes,
) -> Result<SignedObject<Receipt>, ErrorCode> {
    let receipt = check_receipt_of_link(link, bytes)?;
    // The commitment covers the answer's text alone, so it may carry nothing else.
    let (answer, new) = match record.messages.split_last() {
        Some((last, new)) if last.name.is_none() && last.call_id.is_none() => {
            (record.answer().ok_or(ErrorCode::ReceiptMismatch)?, new)
        }
        _ => return Err(ErrorCode::ReceiptMismatch),
    };
    let sound = receipt.commitments.output == commit_output(record_key, answer, record.finish)
        && receipt.commitments.memory.is_some() == (receipt.memory_items > 0)
        && receipt.window_from <= receipt.seq
        && receipt.hash_fits_empty_answer(record_key)
        && system.is_none_or(|system| {
            receipt.commitments.input == commit_input(record_key, system, receipt.window_from, new)
        });
    if sound { Ok(receipt) } else { Err(ErrorCode::ReceiptMismatch) }
}

/// Checks sampling settings against the receipt and the authorisation of their turn.
fn check_sampling(
    sampling: &Sampling,
    record_key: &RecordKey,
    receipt: Option<&Receipt>,
    auth: Option<&TurnAuth>,
) -> Result<(), ErrorCode> {
    let digest = sampling.digest(record_key);
    let sound = receipt.is_none_or(|receipt| receipt.sampling == digest && receipt.seed == sampling.seed)
        && auth.is_none_or(|auth| auth.sampling == digest);
    if sound { Ok(()) } else { Err(ErrorCode::ReceiptMismatch) }
}
