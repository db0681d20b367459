//! Verification of a session's chain, without I/O.
//!
//! A reader names the blobs that it needs. The caller fetches them and hands over their bytes. The reader
//! ends with a verified history or a named error.
//!
//! - [`WindowReader`] serves the node. The client grants it the keys of a window, which ends at the signed
//!   head.
//! - [`SessionReader`] serves the client. It has the root and reads back to the genesis.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, PoisonError},
};

use baton_keys::{contexts::LINK_HASH, session::SessionRoot};

use crate::{
    error::ErrorCode,
    head::HeadOuter,
    ids::{FetchProof, LinkHash, NodeId, SessionId},
    limits::MAX_BLOB_BYTES,
    link::{BlobRef, Genesis, Link, blob_digest},
    record::{Record, RecordKind},
    segment::{Segment, blob_salt, is_closed},
    signed::{SignedBytes, SignedObject},
    turn::{Grant, ReadRecord, TurnAuth},
};

/// The verified position and hash at which a run of links must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    /// The last turn's position.
    pub seq: u64,
    /// The last link's hash.
    pub link_hash: LinkHash,
}

/// Most hashes in [`VerifiedLinks`]: the windows of some 450 sessions, in about 5 MiB.
pub const MAX_VERIFIED_LINKS: usize = 1 << 16;

/// Hashes of links whose signatures were verified lately, the oldest forgotten first: at most
/// [`MAX_VERIFIED_LINKS`].
///
/// Every turn of a session verifies its whole window again, and a signature costs more than all else about a link.
/// A link's hash covers its signature, so a known hash proves the signature.
#[derive(Debug, Default)]
pub struct VerifiedLinks(Mutex<LinkHashes>);

#[derive(Debug, Default)]
struct LinkHashes {
    known: HashSet<[u8; 32]>,
    oldest_first: VecDeque<[u8; 32]>,
}

impl VerifiedLinks {
    /// Decodes and checks a link; verifies its signature unless this very link was verified before.
    fn verify(&self, bytes: SignedBytes) -> Result<SignedObject<Link>, ErrorCode> {
        let hash = bytes.hash(LINK_HASH);
        let is_known = self.lock().known.contains(&hash);
        if is_known {
            return SignedObject::of_verified(bytes);
        }
        let link = SignedObject::verify(bytes)?;
        self.lock().insert(hash);
        Ok(link)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LinkHashes> {
        // Each change is whole before it can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkHashes {
    fn insert(&mut self, hash: [u8; 32]) {
        if !self.known.insert(hash) {
            return;
        }
        self.oldest_first.push_back(hash);
        if self.oldest_first.len() > MAX_VERIFIED_LINKS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// Checks every link and record of a segment, and that it ends where it must.
///
/// # Errors
/// [`ErrorCode::BadNodeSignature`], [`ErrorCode::BadSequence`], [`ErrorCode::BadGenesis`],
/// [`ErrorCode::ChainBroken`], [`ErrorCode::RecordHashMismatch`], [`ErrorCode::HeadMismatch`], and the codes
/// of the codec.
pub fn verify_segment(
    segment: &Segment,
    genesis: &Genesis,
    end: &ChainEnd,
) -> Result<Vec<SignedObject<Link>>, ErrorCode> {
    verify_links(segment, genesis, end, SignedObject::verify)
}

fn verify_links(
    segment: &Segment,
    genesis: &Genesis,
    end: &ChainEnd,
    verify: impl Fn(SignedBytes) -> Result<SignedObject<Link>, ErrorCode>,
) -> Result<Vec<SignedObject<Link>>, ErrorCode> {
    let mut links: Vec<SignedObject<Link>> = Vec::with_capacity(segment.entries.len());
    let mut encoded = crate::segment::SEGMENT_HEADER_LEN;
    for (index, entry) in segment.entries.iter().enumerate() {
        if index > 0 && is_closed(index, encoded) {
            return Err(ErrorCode::BadSequence);
        }
        encoded += entry.encoded_len();
        let link = verify(entry.link.clone())?;
        let placed = link.session_id == segment.session_id
            && link.segment == segment.segment
            && usize::from(link.index) == index;
        if !placed {
            return Err(ErrorCode::BadSequence);
        }
        match links.last() {
            Some(previous) => check_follows(&link, previous)?,
            None => check_first(&link, genesis)?,
        }
        let record = &entry.record;
        if link.record_hash != record.hash() || link.record_length as usize != record.0.len() {
            return Err(ErrorCode::RecordHashMismatch);
        }
        links.push(link);
    }
    let last = links.last().ok_or(ErrorCode::BadSequence)?;
    if last.link_hash() == end.link_hash && last.seq == end.seq {
        Ok(links)
    } else {
        Err(ErrorCode::HeadMismatch)
    }
}

fn check_follows(link: &Link, previous: &SignedObject<Link>) -> Result<(), ErrorCode> {
    if previous.seq.checked_add(1) != Some(link.seq) {
        return Err(ErrorCode::BadSequence);
    }
    if link.prev_link == previous.link_hash() { Ok(()) } else { Err(ErrorCode::ChainBroken) }
}

/// Checks the first link of a segment. Segment 0, and no other, starts at seq 0, where the link continues the
/// genesis.
fn check_first(link: &Link, genesis: &Genesis) -> Result<(), ErrorCode> {
    match (link.seq, link.segment) {
        (0, 0) if link.prev_link == genesis.link_hash() => Ok(()),
        (0, _) | (_, 0) => Err(ErrorCode::BadGenesis),
        _ => Ok(()),
    }
}

/// Checks that the closed segment `older` precedes the verified link `first`; returns where `older` must end.
fn end_before(first: &Link, older: &Segment) -> Result<ChainEnd, ErrorCode> {
    let seq = first.seq.checked_sub(1).ok_or(ErrorCode::BadSequence)?;
    if older.segment.checked_add(1) != Some(first.segment) || !older.is_closed() {
        return Err(ErrorCode::BadSequence);
    }
    Ok(ChainEnd { seq, link_hash: first.prev_link })
}

/// Below the head's segment, a link that does not fit means a broken chain.
fn broken_below_head(error: ErrorCode) -> ErrorCode {
    if error == ErrorCode::HeadMismatch { ErrorCode::ChainBroken } else { error }
}

/// One verified turn.
#[derive(Clone, Debug)]
pub struct HistoryTurn {
    /// Its link.
    pub link: SignedObject<Link>,
    /// Its text, if the key is known.
    pub record: Option<Record>,
}

/// A blob that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The position in the grant, returned together with the bytes.
    pub index: usize,
    /// The blob.
    pub blob: BlobRef,
    /// The node that wrote it, if the client names it.
    pub author: Option<NodeId>,
    /// The proof that entitles this node to fetch it from another node.
    pub proof: FetchProof,
}

/// Verifies the window that a grant opens.
#[derive(Debug)]
pub struct WindowReader {
    session_id: SessionId,
    genesis: Genesis,
    end: Option<ChainEnd>,
    needs: Vec<Need>,
    segments: Vec<Option<Segment>>,
    grant: Grant,
}

/// A verified window.
#[derive(Debug)]
pub struct Window {
    /// Verified turns, oldest first. A turn without a granted key has no record.
    pub turns: Vec<HistoryTurn>,
    /// The segment to which the new turn is appended, with its earlier entries verbatim.
    pub base: Segment,
    /// The previous turn's blob, which the new link names; none at seq 0.
    pub prev_blob: Option<BlobRef>,
}

impl WindowReader {
    /// A reader for the turn of `auth`; the caller has checked the payload against it. `located` is the
    /// opened head record when the request has no locator.
    ///
    /// # Errors
    /// [`ErrorCode::BlobUnavailable`] when a blob has no locator and no head was found.
    /// [`ErrorCode::HeadMismatch`] when the head found is not the signed head. [`ErrorCode::BlobTooLarge`].
    pub fn new(auth: &TurnAuth, grant: Grant, located: Option<&HeadOuter>) -> Result<Self, ErrorCode> {
        if let Some(outer) = located
            && (outer.link_hash != auth.prev_link || Some(outer.seq) != auth.seq.checked_sub(1))
        {
            return Err(ErrorCode::HeadMismatch);
        }
        let mut needs = Vec::with_capacity(grant.blobs.len());
        for (index, granted) in grant.blobs.iter().enumerate() {
            let found = || {
                let blobs = &located?.blobs;
                blobs.iter().find(|found| found.segment == granted.segment).map(|found| found.blob)
            };
            let blob = granted.blob.or_else(found).ok_or(ErrorCode::BlobUnavailable)?;
            if blob.length as usize > MAX_BLOB_BYTES {
                return Err(ErrorCode::BlobTooLarge);
            }
            let proof = FetchProof(granted.key.blob_key().fetch_proof(&blob.digest.0));
            needs.push(Need { index, blob, author: granted.author, proof });
        }
        let end = auth.seq.checked_sub(1).map(|seq| ChainEnd { seq, link_hash: auth.prev_link });
        let segments = needs.iter().map(|_| None).collect();
        Ok(Self { session_id: auth.session_id, genesis: auth.genesis(), end, needs, segments, grant })
    }

    /// The blobs still missing; the caller may fetch them in parallel and provide them in any order.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        let missing = |need: &&Need| self.segments.get(need.index).is_some_and(Option::is_none);
        self.needs.iter().filter(missing).copied().collect()
    }

    /// Takes the bytes of a blob, from any source. After an error the need remains, and the caller may try
    /// another source. Only `need.index` counts: the reader compares the bytes with its own copy of the need.
    ///
    /// # Errors
    /// [`ErrorCode::BlobHashMismatch`] for bytes other than the signed bytes. [`ErrorCode::PayloadRejected`]
    /// and the codes of the codec when the right bytes do not open.
    pub fn provide(&mut self, need: &Need, bytes: &[u8]) -> Result<(), ErrorCode> {
        let own = self.needs.get(need.index).ok_or(ErrorCode::PayloadRejected)?;
        own.blob.check(bytes)?;
        let granted = self.grant.blobs.get(need.index).ok_or(ErrorCode::PayloadRejected)?;
        let opened = Segment::open(bytes, &granted.key.blob_key(), &self.session_id, granted.segment)?;
        if let Some(slot) = self.segments.get_mut(need.index) {
            *slot = Some(opened);
        }
        Ok(())
    }

    /// Verifies the whole window when all blobs are there.
    ///
    /// # Errors
    /// [`ErrorCode::BlobUnavailable`] when blobs are missing, and as [`verify_segment`].
    pub fn finish(self) -> Result<Window, ErrorCode> {
        self.finish_with(&VerifiedLinks::default())
    }

    /// As [`WindowReader::finish`]; skips the signatures of links that `verified` knows, and adds the others to it.
    ///
    /// # Errors
    /// As [`WindowReader::finish`].
    pub fn finish_with(self, verified: &VerifiedLinks) -> Result<Window, ErrorCode> {
        let segments: Vec<Segment> =
            self.segments.into_iter().collect::<Option<_>>().ok_or(ErrorCode::BlobUnavailable)?;
        let Some(end) = self.end else {
            let base = Segment::empty(self.session_id, 0);
            check_position(&self.grant, &base)?;
            return Ok(Window { turns: Vec::new(), base, prev_blob: None });
        };
        let mut newest_first = Vec::with_capacity(segments.len());
        let mut end = end;
        let mut expected_blob: Option<BlobRef> = None;
        for (position, segment) in segments.iter().enumerate() {
            let at_head = position == 0;
            if let (Some(expected), Some(need)) = (expected_blob, self.needs.get(position))
                && expected != need.blob
            {
                return Err(ErrorCode::ChainBroken);
            }
            let links = verify_links(segment, &self.genesis, &end, |bytes| verified.verify(bytes))
                .map_err(|error| if at_head { error } else { broken_below_head(error) })?;
            if let (Some(first), Some(older)) = (links.first(), segments.get(position + 1)) {
                end = end_before(first, older)?;
                expected_blob = first.prev_blob;
            }
            newest_first.push(links);
        }
        let turns = open_records(&segments, newest_first, &self.grant.records)?;
        let base = base_after(segments.into_iter().next().ok_or(ErrorCode::BlobUnavailable)?);
        check_position(&self.grant, &base)?;
        Ok(Window { turns, base, prev_blob: self.needs.first().map(|need| need.blob) })
    }
}

/// The segment that takes the turn after this head.
#[must_use]
pub fn base_after(head: Segment) -> Segment {
    if head.is_closed() { Segment::empty(head.session_id, head.segment + 1) } else { head }
}

fn check_position(grant: &Grant, base: &Segment) -> Result<(), ErrorCode> {
    if grant.segment == base.segment && usize::from(grant.index) == base.entries.len() {
        Ok(())
    } else {
        Err(ErrorCode::BadSequence)
    }
}

fn open_records(
    newest_first: &[Segment],
    links: Vec<Vec<SignedObject<Link>>>,
    keys: &[ReadRecord],
) -> Result<Vec<HistoryTurn>, ErrorCode> {
    let mut turns = Vec::new();
    for (segment, links) in newest_first.iter().zip(links).rev() {
        for (entry, link) in segment.entries.iter().zip(links) {
            let key = keys.binary_search_by_key(&link.seq, |read| read.seq).ok();
            let record = match key.and_then(|found| keys.get(found)) {
                Some(read) => Some(entry.record.open(&read.key.record_key(), &link.record_identity())?),
                None => None,
            };
            turns.push(HistoryTurn { link, record });
        }
    }
    Ok(turns)
}

/// Positions of the effective turns: no later edit, summary or tombstone supersedes them. Tombstones hold no
/// text and never count.
///
/// `supersedes_from = f` replaces the effective turns from `f` on by the new record. A superseded record
/// supersedes nothing. An edit of an edit therefore names the same seq as the first edit. If it named the
/// first edit's own seq, it would restore the turns that the first edit replaced.
#[must_use]
pub fn effective(turns: &[HistoryTurn]) -> Vec<usize> {
    let newest_first = effective_newest_first(turns.iter().enumerate().rev());
    let mut kept: Vec<usize> = newest_first.map(|(position, _)| position).collect();
    kept.reverse();
    kept
}

/// As [`effective`], for turns with their positions, newest first.
///
/// Lazy: whether a turn counts depends on later turns alone, so it reads only as far back as the caller asks.
pub fn effective_newest_first<'a>(
    newest_first: impl Iterator<Item = (usize, &'a HistoryTurn)>,
) -> impl Iterator<Item = (usize, &'a HistoryTurn)> {
    let mut superseded_from = u64::MAX;
    newest_first.filter(move |(_, turn)| {
        let Some(record) = turn.record.as_ref() else { return false };
        if turn.link.seq >= superseded_from {
            return false;
        }
        // A superseding record counts only if no later record supersedes it.
        if let Some(from) = record.supersedes_from {
            superseded_from = superseded_from.min(from);
        }
        record.kind != RecordKind::Tombstone
    })
}

/// Reads a whole session back from its head, with the root.
#[derive(Debug)]
pub struct SessionReader {
    root: SessionRoot,
    genesis: Genesis,
    next: Option<(BlobRef, u64, ChainEnd)>,
    at_head: bool,
    newest_first: Vec<VerifiedSegment>,
}

/// A verified segment with the blob that carried it.
#[derive(Clone, Debug)]
pub struct VerifiedSegment {
    /// The segment.
    pub segment: Segment,
    /// Its latest blob.
    pub blob: BlobRef,
    /// Its turns with their text.
    pub turns: Vec<HistoryTurn>,
}

impl SessionReader {
    /// A reader from an opened head.
    ///
    /// # Errors
    /// [`ErrorCode::BadSequence`] when the head names no blob.
    pub fn new(root: &SessionRoot, head: &HeadOuter) -> Result<Self, ErrorCode> {
        let latest = head.blobs.first().ok_or(ErrorCode::BadSequence)?;
        let end = ChainEnd { seq: head.seq, link_hash: head.link_hash };
        let genesis = Genesis {
            session_key: root.signing_key().public_key(),
            n_shards: head.n_shards,
            branch: head.branch,
        };
        Ok(Self {
            root: root.clone(),
            genesis,
            next: Some((latest.blob, latest.segment, end)),
            at_head: true,
            newest_first: Vec::new(),
        })
    }

    /// The blob needed next; none after the genesis.
    #[must_use]
    pub fn need(&self) -> Option<BlobRef> {
        self.next.map(|(blob, _, _)| blob)
    }

    /// The last turn of the blob needed next; none after the genesis.
    #[must_use]
    pub fn next_end(&self) -> Option<u64> {
        self.next.map(|(_, _, end)| end.seq)
    }

    /// Takes the bytes of the blob needed next. Verifies its segment and all earlier blobs of that segment.
    /// After an error the need remains.
    ///
    /// # Errors
    /// As [`WindowReader::provide`] and [`verify_segment`]. Also [`ErrorCode::BlobHashMismatch`] when a
    /// rebuilt earlier blob of the segment differs from the blob that the next link names.
    pub fn provide(&mut self, bytes: &[u8]) -> Result<(), ErrorCode> {
        let Some((blob, number, end)) = self.next else { return Err(ErrorCode::BadSequence) };
        if blob.length as usize > MAX_BLOB_BYTES {
            return Err(ErrorCode::BlobTooLarge);
        }
        blob.check(bytes)?;
        let key = self.root.blob_key(number, &blob_salt(bytes)?);
        let segment = Segment::open(bytes, &key, &self.root.session_id(), number)?;
        if !self.at_head && !segment.is_closed() {
            return Err(ErrorCode::BadSequence);
        }
        let links = verify_segment(&segment, &self.genesis, &end)
            .map_err(|error| if self.at_head { error } else { broken_below_head(error) })?;
        check_rebuilt(&self.root, &segment, &links)?;
        let first = links.first().ok_or(ErrorCode::BadSequence)?;
        let next = match (first.prev_blob, first.segment.checked_sub(1), first.seq.checked_sub(1)) {
            (Some(blob), Some(number), Some(seq)) => {
                Some((blob, number, ChainEnd { seq, link_hash: first.prev_link }))
            }
            _ => None,
        };
        let mut turns = Vec::with_capacity(links.len());
        for (entry, link) in segment.entries.iter().zip(links) {
            let identity = link.record_identity();
            let record = entry.record.open(&self.root.record_key(&identity), &identity)?;
            turns.push(HistoryTurn { link, record: Some(record) });
        }
        (self.next, self.at_head) = (next, false);
        self.newest_first.push(VerifiedSegment { segment, blob, turns });
        Ok(())
    }

    /// The verified segments so far, oldest first: all of them before the genesis is reached, too.
    #[must_use]
    pub fn finish_partial(mut self) -> Vec<VerifiedSegment> {
        self.newest_first.reverse();
        self.newest_first
    }

    /// The verified session, oldest segment first, when no blob is missing.
    ///
    /// # Errors
    /// [`ErrorCode::BlobUnavailable`] when the reader has not reached the genesis.
    pub fn finish(self) -> Result<Vec<VerifiedSegment>, ErrorCode> {
        if self.next.is_some() {
            return Err(ErrorCode::BlobUnavailable);
        }
        Ok(self.finish_partial())
    }
}

/// Rebuilds the blob as it was after the first `turns` entries of a segment.
///
/// # Errors
/// [`ErrorCode::BadSequence`] when the segment has fewer entries, and as [`Segment::seal`].
pub fn rebuild_blob(
    root: &SessionRoot,
    segment: &Segment,
    last: &Link,
    turns: usize,
) -> Result<Vec<u8>, ErrorCode> {
    let entries = segment.entries.get(..turns).ok_or(ErrorCode::BadSequence)?.to_vec();
    let salt = root.record_key(&last.record_identity()).blob_salt();
    let prefix = Segment { entries, ..Segment::empty(segment.session_id, segment.segment) };
    prefix.seal(&root.blob_key(segment.segment, &salt), &salt)
}

/// Each link inside a segment names the previous blob. The holder of the root rebuilds that blob and
/// compares.
fn check_rebuilt(
    root: &SessionRoot,
    segment: &Segment,
    links: &[SignedObject<Link>],
) -> Result<(), ErrorCode> {
    for (position, pair) in links.windows(2).enumerate() {
        let [previous, link] = pair else { continue };
        let rebuilt = rebuild_blob(root, segment, previous, position + 1)?;
        let named = link.prev_blob.ok_or(ErrorCode::BadGenesis)?;
        if named.digest != blob_digest(&rebuilt) || named.length as usize != rebuilt.len() {
            return Err(ErrorCode::BlobHashMismatch);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use baton_keys::SecretSigningKey;

    use super::*;
    use crate::{
        ids::{AuthHash, ReceiptHash, RecordHash, TurnId},
        limits::VERSION,
        signed::SignatureBytes,
    };

    fn link(seq: u64) -> SignedBytes {
        let node = SecretSigningKey::from_seed(&[2; 32]);
        let link = Link {
            version: VERSION,
            session_id: SessionId([1; 32]),
            seq,
            segment: 0,
            index: 0,
            turn_id: TurnId([3; 16]),
            attempt: 0,
            prev_link: LinkHash([0; 32]),
            prev_blob: None,
            record_hash: RecordHash([0; 32]),
            record_length: 0,
            auth_hash: AuthHash([4; 32]),
            receipt_hash: ReceiptHash([5; 32]),
            author: node.node_id(),
            time_ms: 0,
        };
        SignedObject::sign(link, &node).bytes().clone()
    }

    #[test]
    fn a_known_link_is_known_with_its_own_signature_alone() {
        let (verified, honest) = (VerifiedLinks::default(), link(0));
        for _ in 0..2 {
            assert_eq!(verified.verify(honest.clone()).unwrap().bytes(), &honest);
        }
        let SignatureBytes(mut signature) = honest.signature;
        signature[0] ^= 1;
        let forged = SignedBytes { signature: SignatureBytes(signature), ..honest };
        for _ in 0..2 {
            assert_eq!(verified.verify(forged.clone()).unwrap_err(), ErrorCode::BadNodeSignature);
        }
        assert_eq!(verified.lock().known.len(), 1);
        // Its hash alone makes the difference: the signature is not looked at again.
        verified.lock().insert(forged.hash(LINK_HASH));
        assert!(verified.verify(forged).is_ok());
    }

    #[test]
    fn no_more_links_are_known_than_the_limit_and_the_oldest_go() {
        let mut hashes = LinkHashes::default();
        let hash = |number: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&(number as u64).to_le_bytes());
            hash
        };
        for number in 0..MAX_VERIFIED_LINKS + 10 {
            hashes.insert(hash(number));
            hashes.insert(hash(number));
        }
        assert_eq!((hashes.known.len(), hashes.oldest_first.len()), (MAX_VERIFIED_LINKS, MAX_VERIFIED_LINKS));
        assert!(!hashes.known.contains(&hash(9)) && hashes.known.contains(&hash(10)));
    }
}
