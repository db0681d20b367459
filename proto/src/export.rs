//! An exported session: a structure for JSON, complete for an offline verifier.
//!
//! The client builds it. Anyone with the export checks it, here with [`verify`] or in another language from
//! `docs/PROTOCOL.md`. It holds the keys of all its turns, so it is as secret as the conversation. It never
//! holds the session's signing key, and holds the root only on request. This module does no I/O.

use std::collections::BTreeMap;

use baton_keys::{
    contexts::{EXPORT_HEAD, SignatureLabel},
    session::SessionRoot,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{
    chain::VerifiedSegment,
    codec,
    error::ErrorCode,
    ids::{BlobId, LinkHash, PublicKey, SessionId},
    limits::VERSION,
    link::{BranchPoint, Genesis},
    memory::MemoryItem,
    note::{check_session, signed_by_session},
    record::Message,
    segment::{Segment, blob_salt},
    signed::{Signable, SignedBytes, SignedObject},
    turn::Sampling,
};

mod check;
pub(crate) mod text;

pub use check::{ExportReport, OpenTurn, SeenBlob, open, verify, verify_each_blob};

/// The `format` of an export of this version.
pub const EXPORT_FORMAT: &str = "baton-export-v2";
/// The `format` of evidence against a node: of links that it signed twice, or of a
/// [`Contradiction`](crate::contradiction::Contradiction). The other fields tell the two apart.
pub const EVIDENCE_FORMAT: &str = "baton-evidence-v3";

/// An exported session. In JSON every field but [`ExportTurn::sampling`] is present, `null` when empty;
/// unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// [`EXPORT_FORMAT`].
    pub format: String,
    /// The session (hex).
    #[serde(with = "text")]
    pub session_id: SessionId,
    /// Its public key (hex).
    #[serde(with = "text")]
    pub session_key: PublicKey,
    /// Shard count of the session's blob IDs, bound by the genesis.
    pub n_shards: u16,
    /// The parent, if the session is a branch.
    #[serde(deserialize_with = "text::present")]
    pub branch: Option<ExportBranch>,
    /// The end of the chain. The client signs it, and says nothing of later turns: a reader with a later head
    /// compares.
    pub head: ExportHead,
    /// The root secret (hex), if requested: its holder can write the session.
    #[serde(deserialize_with = "text::present")]
    pub root: Option<ExportKey>,
    /// The last blob of each segment, oldest first.
    pub segments: Vec<ExportSegment>,
    /// Every turn, oldest first.
    pub turns: Vec<ExportTurn>,
}

/// The parent of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportBranch {
    /// The parent session (hex).
    #[serde(with = "text")]
    pub session_id: SessionId,
    /// The last link shared with it (hex).
    #[serde(with = "text")]
    pub link_hash: LinkHash,
}

/// The end of the exported chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportHead {
    /// The last turn's position.
    pub seq: u64,
    /// The last link's hash (hex).
    #[serde(with = "text")]
    pub link_hash: LinkHash,
    /// The encoded, signed [`ExportStatement`] (base64): the client ordered the turns up to this link.
    #[serde(with = "text::base64")]
    pub statement: Vec<u8>,
}

/// The client's statement that a chain up to a link is its session.
///
/// A node signs links, but anyone may be a node: without the statement, an export proves nothing of its client.
/// It says nothing of later turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatement {
    /// Format version, 1.
    pub version: u8,
    /// The session.
    pub session_id: SessionId,
    /// The session's public key, which signs.
    pub session_key: PublicKey,
    /// The last turn's position.
    pub seq: u64,
    /// The last link's hash, which binds all turns before it.
    pub link_hash: LinkHash,
}

signed_by_session!(ExportStatement, EXPORT_HEAD);

/// One segment, by its last blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportSegment {
    /// Segment number, from 0.
    pub segment: u64,
    /// The blob's bytes as stored (base64).
    #[serde(with = "text::base64")]
    pub blob: Vec<u8>,
    /// The blob's Walrus ID (URL-safe base64). The next segment signs it; the last segment's ID is unsigned.
    #[serde(with = "text")]
    pub blob_id: BlobId,
    /// Opens the blob (hex).
    pub blob_key: ExportKey,
}

/// One turn: its keys, and the statements that node and client signed about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportTurn {
    /// Position in the chain, from 0.
    pub seq: u64,
    /// Opens the turn's record (hex).
    pub record_key: ExportKey,
    /// Seals the blob that this turn completed, so that a verifier can rebuild it (hex).
    pub blob_key: ExportKey,
    /// Walrus ID of that blob, if known.
    #[serde(with = "text::option")]
    pub blob_id: Option<BlobId>,
    /// The encoded, signed [`TurnAuth`](crate::turn::TurnAuth) (base64), if the client kept it.
    #[serde(with = "text::base64_option")]
    pub auth: Option<Vec<u8>>,
    /// The encoded, signed [`Receipt`](crate::receipt::Receipt) (base64), if the client kept it.
    #[serde(with = "text::base64_option")]
    pub receipt: Option<Vec<u8>>,
    /// The encoded, signed [`TurnNote`](crate::note::TurnNote) of kind Ack (base64), if the client kept it.
    #[serde(with = "text::base64_option")]
    pub ack: Option<Vec<u8>>,
    /// The pinned system text of the turn, if the client kept it. Checking the receipt's input commitment
    /// needs it. An empty list means that there was none; `null` means unknown.
    #[serde(deserialize_with = "text::present")]
    pub system: Option<Vec<Message>>,
    /// The encoded [`Sampling`] of the turn (base64), if the client kept it: a second computation of the turn
    /// needs it. Absent when unknown.
    #[serde(default, with = "text::sampling", skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

/// The memory items of a turn. An export leaves them out, as they come from other conversations.
///
/// A second computation of a turn needs a JSON list of them, beside the export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportMemory {
    /// The turn.
    pub seq: u64,
    /// The items that the node used, in its order.
    pub items: Vec<MemoryItem>,
}

/// A secret key in an export: 64 hex digits in JSON, redacted in `Debug`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct ExportKey([u8; 32]);

impl ExportKey {
    /// Takes the key from bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes. The name makes every use visible in a review.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for ExportKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExportKey(redacted)")
    }
}

impl Serialize for ExportKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(hex::encode(self.0)))
    }
}

impl<'de> Deserialize<'de> for ExportKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let mut bytes = [0u8; 32];
        let parsed = hex::decode_to_slice(text.as_bytes(), &mut bytes).is_ok();
        let key = Self(bytes);
        bytes.zeroize();
        // One text per key: as everywhere in an export, upper-case digits are refused.
        if parsed && *Zeroizing::new(hex::encode(key.0)) == *text {
            Ok(key)
        } else {
            Err(serde::de::Error::custom("a key is 64 lower-case hex digits"))
        }
    }
}

impl Export {
    /// The genesis, which the first link continues.
    #[must_use]
    pub fn genesis(&self) -> Genesis {
        let branch = self
            .branch
            .map(|branch| BranchPoint { session_id: branch.session_id, link_hash: branch.link_hash });
        Genesis { session_key: self.session_key, n_shards: self.n_shards, branch }
    }

    /// Opens the blob of one exported segment.
    fn open_segment(&self, exported: &ExportSegment) -> Result<Segment, ErrorCode> {
        let key = baton_keys::session::BlobKey::from_bytes(*exported.blob_key.expose());
        Segment::open(&exported.blob, &key, &self.session_id, exported.segment)
    }
}

/// The client's own records of a turn, outside the chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnProofs {
    /// The authorisation that the client signed.
    pub auth: Option<SignedBytes>,
    /// The receipt that the node signed.
    pub receipt: Option<SignedBytes>,
    /// Its acknowledgement.
    pub ack: Option<SignedBytes>,
    /// The pinned system text of the turn; empty if there was none.
    pub system: Option<Vec<Message>>,
    /// Its sampling settings.
    pub sampling: Option<Sampling>,
}

/// Builds the export of a verified session.
///
/// [`SessionReader`](crate::chain::SessionReader) returns `segments`, each with its blob. `proofs` holds the
/// client's proofs by seq, as far as it has them. The holder of an export with the root can write the session.
///
/// # Errors
/// [`ErrorCode::BadSequence`] without a turn. [`ErrorCode::BlobHashMismatch`] when a segment, sealed again,
/// gives another blob than the blob it came from.
pub fn build(
    root: &SessionRoot,
    genesis: &Genesis,
    with_root: bool,
    segments: &[VerifiedSegment],
    proofs: &BTreeMap<u64, TurnProofs>,
) -> Result<Export, ErrorCode> {
    let mut exported_segments = Vec::with_capacity(segments.len());
    let mut turns: Vec<ExportTurn> = Vec::new();
    let mut head = None;
    for verified in segments {
        let last = verified.turns.last().ok_or(ErrorCode::BadSequence)?;
        let blob =
            crate::chain::rebuild_blob(root, &verified.segment, &last.link, verified.segment.entries.len())?;
        verified.blob.check(&blob)?;
        for turn in &verified.turns {
            // The next link names this blob's ID.
            if let (Some(before), Some(blob)) = (turns.last_mut(), turn.link.prev_blob) {
                before.blob_id = Some(blob.blob_id);
            }
            turns.push(export_turn(root, &turn.link, proofs.get(&turn.link.seq)));
        }
        if let Some(latest) = turns.last_mut() {
            latest.blob_id = Some(verified.blob.blob_id);
        }
        let number = verified.segment.segment;
        exported_segments.push(ExportSegment {
            segment: number,
            blob_key: ExportKey(*root.blob_key(number, &blob_salt(&blob)?).expose()),
            blob,
            blob_id: verified.blob.blob_id,
        });
        head = Some((last.link.seq, last.link.link_hash()));
    }
    let (seq, link_hash) = head.ok_or(ErrorCode::BadSequence)?;
    let (session_id, Genesis { session_key, n_shards, branch }) = (root.session_id(), *genesis);
    let statement = ExportStatement { version: VERSION, session_id, session_key, seq, link_hash };
    let statement = SignedObject::sign(statement, &root.signing_key()).encode();
    Ok(Export {
        format: EXPORT_FORMAT.to_owned(),
        session_id,
        session_key,
        n_shards,
        branch: branch
            .map(|branch| ExportBranch { session_id: branch.session_id, link_hash: branch.link_hash }),
        head: ExportHead { seq, link_hash, statement },
        root: with_root.then(|| ExportKey(*root.expose())),
        segments: exported_segments,
        turns,
    })
}

fn export_turn(root: &SessionRoot, link: &crate::link::Link, proofs: Option<&TurnProofs>) -> ExportTurn {
    let record_key = root.record_key(&link.record_identity());
    let blob_key = root.blob_key(link.segment, &record_key.blob_salt());
    let encoded = |pick: fn(&TurnProofs) -> Option<&SignedBytes>| proofs.and_then(pick).map(codec::encode);
    ExportTurn {
        seq: link.seq,
        record_key: ExportKey(*record_key.expose()),
        blob_key: ExportKey(*blob_key.expose()),
        blob_id: None,
        auth: encoded(|proofs| proofs.auth.as_ref()),
        receipt: encoded(|proofs| proofs.receipt.as_ref()),
        ack: encoded(|proofs| proofs.ack.as_ref()),
        system: proofs.and_then(|proofs| proofs.system.clone()),
        sampling: proofs.and_then(|proofs| proofs.sampling.clone()),
    }
}
