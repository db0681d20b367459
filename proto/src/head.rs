//! Head records: the end of a session's chain, found by root on another device.
//!
//! Their keys and their place in an index change every week, so that a granted place is of use for a while
//! alone.

use baton_keys::{
    OpenError,
    contexts::{HEAD, SignatureLabel},
    session::{HeadPartKey, SessionRoot, head_index_key},
};
use serde::{Deserialize, Serialize};

use crate::{
    codec,
    error::ErrorCode,
    ids::{DeviceId, HeadIndexKey, LinkHash, NodeId, PublicKey, TurnId},
    limits::{
        HEAD_INNER_BLOCK, HEAD_OUTER_BLOCK, HEAD_PERIOD_MS, HEAD_RECORD_VERSION, MAX_BRANCHES,
        MAX_CLOCK_SKEW_MS, MAX_DEVICES, MAX_HEAD_BYTES, MAX_HEAD_LIFETIME_MS, MAX_HEAD_PERIODS,
        MAX_READ_BLOBS,
    },
    link::{BlobRef, BranchPoint},
    signed::{Signable, SignedObject},
};

/// The signed record as an index stores it. The index, and any validator, learns neither the session id nor
/// the blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadRecord {
    /// Format version, 3.
    pub version: u8,
    /// The period's head public key, which signs; the index key is its hash.
    pub head_key: PublicKey,
    /// Rises with every publication: the time in milliseconds, or the last sequence plus one if that is
    /// greater. So it does not count turns. It decides the period.
    pub sequence: u64,
    /// When it was issued, in milliseconds since the Unix epoch.
    pub issued_ms: u64,
    /// When the index may drop it.
    pub expires_ms: u64,
    /// [`HeadOuter`], padded to a multiple of 1 KiB and sealed under `KDF("head-locate", head secret of the period)`.
    #[serde(with = "serde_bytes")]
    pub outer: Vec<u8>,
    /// [`HeadInner`], padded to a multiple of 512 bytes and sealed under `KDF("head-inner", R)`.
    #[serde(with = "serde_bytes")]
    pub inner: Vec<u8>,
}

/// A blob and the segment it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// Segment number.
    pub segment: u64,
    /// Its latest blob.
    pub blob: BlobRef,
}

/// The part for the holders of the period's locate key: enough to fetch the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadOuter {
    /// Shard count of the session's blob IDs.
    pub n_shards: u16,
    /// The parent, if the session is a branch.
    pub branch: Option<BranchPoint>,
    /// The last turn.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// Blobs, newest first: the last turn's, then the closed segments before it, at most nine.
    pub blobs: Vec<SegmentRef>,
}

/// A device that may write the session for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLease {
    /// The device.
    pub device: DeviceId,
    /// When the lease ends, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// The end of a branch: turns that a fork left beside the session's chain. Each turn's link names the blob before it, so
/// the last blob leads to all turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchHead {
    /// The last turn.
    pub seq: u64,
    /// Its link.
    pub link_hash: LinkHash,
    /// Its id.
    pub turn_id: TurnId,
    /// Its attempt.
    pub attempt: u32,
    /// The node that served it.
    pub author: NodeId,
    /// Its blob.
    pub end: SegmentRef,
}

/// The part for the client's own devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadInner {
    /// The last turn.
    pub turn_id: TurnId,
    /// Its attempt.
    pub attempt: u32,
    /// The node that served it.
    pub author: NodeId,
    /// Devices that may write.
    pub devices: Vec<DeviceLease>,
    /// The newest branches that forks left, oldest first.
    pub branches: Vec<BranchHead>,
    /// Whether the session was deleted.
    pub tombstone: bool,
}

impl Signable for HeadRecord {
    const LABEL: SignatureLabel = HEAD;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;
    const MAX_BYTES: usize = MAX_HEAD_BYTES;
    const VERSION: u8 = HEAD_RECORD_VERSION;

    fn signer(&self) -> PublicKey {
        self.head_key
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let lifetime = self.expires_ms.checked_sub(self.issued_ms);
        match lifetime {
            Some(lifetime) if lifetime <= MAX_HEAD_LIFETIME_MS => Ok(()),
            _ => Err(ErrorCode::Expired),
        }
    }
}

/// The period of a time, or of a head record's sequence: whole weeks since the Unix epoch.
#[must_use]
pub fn head_period(unix_ms: u64) -> u64 {
    unix_ms / HEAD_PERIOD_MS
}

/// A place in the indexes where a session's head record may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPlace {
    /// The period.
    pub period: u64,
    /// The index key of the period.
    pub key: HeadIndexKey,
}

/// The places in which a head record of a session may lie now, newest period first: from the present period,
/// and the next one where the clock may be behind it, back to that of `since_ms`. No record lives for longer
/// than [`MAX_HEAD_LIFETIME_MS`], so there are at most [`MAX_HEAD_PERIODS`] places, and at least one.
#[must_use]
pub fn head_places(root: &SessionRoot, since_ms: u64, now_ms: u64) -> Vec<HeadPlace> {
    let latest = head_period(now_ms.saturating_add(MAX_CLOCK_SKEW_MS));
    let first = head_period(since_ms.max(now_ms.saturating_sub(MAX_HEAD_LIFETIME_MS))).min(latest);
    let place = |period| HeadPlace { period, key: root.head_secret(period).index_key() };
    (first..=latest).rev().take(MAX_HEAD_PERIODS).map(place).collect()
}

impl HeadRecord {
    /// Builds and signs a head record under the keys of its sequence's period.
    #[must_use]
    pub fn seal(
        root: &SessionRoot,
        outer: &HeadOuter,
        inner: &HeadInner,
        sequence: u64,
        issued_ms: u64,
        expires_ms: u64,
    ) -> SignedObject<Self> {
        let secret = root.head_secret(head_period(sequence));
        let signing = secret.signing_key();
        let head_key = signing.public_key();
        let record = Self {
            version: HEAD_RECORD_VERSION,
            head_key,
            sequence,
            issued_ms,
            expires_ms,
            outer: secret
                .locate_key()
                .seal(&head_key, &codec::pad_block(&codec::encode(outer), HEAD_OUTER_BLOCK)),
            inner: root
                .head_inner_key()
                .seal(&head_key, &codec::pad_block(&codec::encode(inner), HEAD_INNER_BLOCK)),
        };
        SignedObject::sign(record, &signing)
    }

    /// The key that indexes the record.
    #[must_use]
    pub fn index_key(&self) -> HeadIndexKey {
        head_index_key(&self.head_key)
    }

    /// The period in whose place the record belongs.
    #[must_use]
    pub fn period(&self) -> u64 {
        head_period(self.sequence)
    }

    /// Opens the outer part with the locate key of the record's period.
    ///
    /// # Errors
    /// [`ErrorCode::PayloadRejected`] when the record belongs to another session or period, and the codes of
    /// the codec.
    pub fn open_outer(&self, key: &HeadPartKey) -> Result<HeadOuter, ErrorCode> {
        let opened = key.open(&self.head_key, &self.outer).map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let outer: HeadOuter = codec::decode(codec::unpad_block(&opened, HEAD_OUTER_BLOCK)?, MAX_HEAD_BYTES)?;
        let descending = outer.blobs.windows(2).all(|pair| matches!(pair, [a, b] if a.segment > b.segment));
        if outer.blobs.is_empty() || outer.blobs.len() > MAX_READ_BLOBS || !descending {
            return Err(ErrorCode::BadSequence);
        }
        Ok(outer)
    }

    /// Opens the inner part.
    ///
    /// # Errors
    /// As [`HeadRecord::open_outer`].
    pub fn open_inner(&self, root: &SessionRoot) -> Result<HeadInner, ErrorCode> {
        let opened = root
            .head_inner_key()
            .open(&self.head_key, &self.inner)
            .map_err(|OpenError| ErrorCode::PayloadRejected)?;
        let inner: HeadInner = codec::decode(codec::unpad_block(&opened, HEAD_INNER_BLOCK)?, MAX_HEAD_BYTES)?;
        let too_many = inner.devices.len() > MAX_DEVICES || inner.branches.len() > MAX_BRANCHES;
        if too_many { Err(ErrorCode::FrameTooLarge) } else { Ok(inner) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlobDigest, BlobId};

    const NOW: u64 = 2_950 * HEAD_PERIOD_MS + HEAD_PERIOD_MS / 2;

    fn periods(since_ms: u64, now_ms: u64) -> Vec<u64> {
        let root = SessionRoot::from_bytes([7; 32]);
        head_places(&root, since_ms, now_ms).iter().map(|place| place.period).collect()
    }

    #[test]
    fn places_run_from_the_present_period_back_to_the_first_one_asked_for() {
        assert_eq!(periods(NOW, NOW), [2_950]);
        assert_eq!(periods(NOW - 2 * HEAD_PERIOD_MS, NOW), [2_950, 2_949, 2_948]);
        // A device whose clock is ahead may have begun the next period.
        let end = 2_951 * HEAD_PERIOD_MS - 1;
        assert_eq!(periods(end, end), [2_951, 2_950]);
        assert_eq!(periods(NOW + 9 * HEAD_PERIOD_MS, NOW), [2_950], "a time to come is none");
        assert_eq!(periods(0, 0), [0]);
        assert_eq!(periods(u64::MAX, u64::MAX).len(), 1);
    }

    #[test]
    fn no_lookup_asks_for_more_periods_than_a_record_lives() {
        for now in [NOW, 2_951 * HEAD_PERIOD_MS - 1, 2_951 * HEAD_PERIOD_MS] {
            let all = periods(0, now);
            assert!((58..=MAX_HEAD_PERIODS).contains(&all.len()), "{}", all.len());
            let oldest = all.last().copied().unwrap();
            assert!(oldest * HEAD_PERIOD_MS <= now - MAX_HEAD_LIFETIME_MS);
        }
    }

    #[test]
    fn a_record_with_the_most_of_everything_is_within_its_limit() {
        let root = SessionRoot::from_bytes([7; 32]);
        let blob = BlobRef { blob_id: BlobId([1; 32]), digest: BlobDigest([2; 32]), length: u32::MAX };
        let (link_hash, turn_id, author) = (LinkHash([3; 32]), TurnId([4; 16]), NodeId([5; 32]));
        let end = |segment| SegmentRef { segment, blob };
        let outer = HeadOuter {
            n_shards: u16::MAX,
            branch: Some(BranchPoint { session_id: root.session_id(), link_hash }),
            seq: u64::MAX,
            link_hash,
            blobs: (0..MAX_READ_BLOBS as u64).map(|back| end(u64::MAX - back)).collect(),
        };
        let branch =
            BranchHead { seq: u64::MAX, link_hash, turn_id, attempt: u32::MAX, author, end: end(u64::MAX) };
        let inner = HeadInner {
            turn_id,
            attempt: u32::MAX,
            author,
            devices: vec![DeviceLease { device: DeviceId([6; 16]), expires_ms: u64::MAX }; MAX_DEVICES],
            branches: vec![branch; MAX_BRANCHES],
            tombstone: true,
        };
        let record = HeadRecord::seal(&root, &outer, &inner, NOW, NOW, NOW + 1);
        assert!(record.encode().len() <= MAX_HEAD_BYTES, "{}", record.encode().len());
        assert_eq!(record.open_inner(&root).unwrap(), inner);
        let one_more = HeadInner { branches: vec![branch; MAX_BRANCHES + 1], ..inner };
        let record = HeadRecord::seal(&root, &outer, &one_more, NOW, NOW, NOW + 1);
        assert_eq!(record.open_inner(&root), Err(ErrorCode::FrameTooLarge));
    }

    #[test]
    fn the_places_of_two_periods_or_two_sessions_have_nothing_in_common() {
        let (root, other) = (SessionRoot::from_bytes([7; 32]), SessionRoot::from_bytes([8; 32]));
        let secrets = [root.head_secret(1), root.head_secret(2), other.head_secret(1)];
        for (position, one) in secrets.iter().enumerate() {
            for two in &secrets[position + 1..] {
                assert_ne!(one.index_key(), two.index_key());
                assert_ne!(one.signing_key().public_key(), two.signing_key().public_key());
                assert_ne!(one.locate_key().expose(), two.locate_key().expose());
            }
        }
    }
}
