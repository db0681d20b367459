//! The entries of a session's journal, and their bytes.
//!
//! [`super::State`] applies them. A new kind of entry goes to the end of [`Entry`]: its place is its code on the disk.

use std::time::Duration;

use baton_proto::{
    ErrorCode, SignedBytes, SignedObject, codec,
    head::{BranchHead, DeviceLease, SegmentRef},
    ids::{BlobDigest, BlobId, DeviceId, LinkHash, TurnId},
    limits::MAX_OBJECT_BYTES,
    link::{BranchPoint, Link},
    memory::MemoryItem,
    note::TurnNote,
    receipt::{OfferTerms, ProgressNote, Receipt},
    record::{Message, RecordKind},
    segment,
    turn::{Sampling, StoragePolicy, TurnAuth},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// How a session was created here.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SessionHeader {
    pub(crate) n_shards: u16,
    pub(crate) branch: Option<BranchPoint>,
    pub(crate) device_id: DeviceId,
    pub(crate) created_ms: u64,
    pub(crate) system: Vec<Message>,
    /// The project of a gateway's key; none for sessions of the home's owner.
    pub(crate) project: Option<String>,
}

/// A pending turn, as the user requested it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PendingTurn {
    pub(crate) turn_id: TurnId,
    pub(crate) kind: RecordKind,
    pub(crate) supersedes_from: Option<u64>,
    pub(crate) messages: Vec<Message>,
    pub(crate) sampling: Sampling,
    pub(crate) max_output_tokens: u32,
    /// The model that the request named.
    pub(crate) model: Option<String>,
    pub(crate) begun_ms: u64,
}

/// An attempt at a turn, journaled before it is sent.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct AttemptEntry {
    pub(crate) attempt: u32,
    pub(crate) auth: SignedBytes,
    /// The terms that the node's receipt is held to.
    pub(crate) terms: OrderTerms,
}

/// The terms of an order: the chosen node's offer, and the ordered storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderTerms {
    pub(crate) offer: OfferTerms,
    pub(crate) storage: StoragePolicy,
}

/// A rebuilt and accepted turn, or a turn recovered from the store.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct TurnEntry {
    /// The signed link and the sealed record, as in the blob. The record's text is only here.
    pub(crate) entry: segment::Entry,
    pub(crate) blob_digest: BlobDigest,
    pub(crate) blob_length: u32,
    pub(crate) accepted_ms: u64,
    /// Absent in a session recovered from its root.
    pub(crate) proof: Option<Proof>,
    /// The storage of its blob that its author was ordered; unknown for a turn of another device.
    pub(crate) ordered: Option<StoragePolicy>,
    pub(crate) memory: Vec<MemoryItem>,
    /// The tokens of the answer, for checks of it; empty if they are unknown.
    pub(crate) tokens: Vec<u32>,
}

/// Objects about a turn that both sides signed and that the blobs do not hold.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Proof {
    pub(crate) auth: SignedBytes,
    pub(crate) receipt: SignedBytes,
    pub(crate) ack: Option<SignedBytes>,
}

/// One entry of a journal.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// Always the first; also before the first turn, with another number of shards.
    Opened(SessionHeader),
    /// Before all turns: the turns that are not here.
    Before(Box<TurnsBefore>),
    /// The pinned system text changed.
    System(Vec<Message>),
    /// The user's title of the session; none for the beginning of the first message.
    Title(Option<String>),
    /// A JSON schema that later turns name by its hash.
    Schema(String),
    /// A turn is pending.
    Pending(PendingTurn),
    /// An attempt is about to be sent.
    Attempt(AttemptEntry),
    /// More about an attempt at the pending turn, by its number.
    OfAttempt(u32, AttemptChange),
    /// The pending turn was abandoned.
    Abandoned,
    /// The pending turn was accepted, or a turn recovered.
    Turn(Box<TurnEntry>),
    /// More about a turn, by its position.
    OfTurn(u64, TurnChange),
    /// A head record was published, or found at recovery.
    Head(PublishedHead),
    /// A published head record that these indexes have not accepted yet.
    HeadUnconfirmed { record: Vec<u8>, names: Vec<String> },
    /// Other devices that may write the session, as the head index reported.
    Leases { devices: Vec<DeviceLease> },
    /// The turns from this one on leave the chain and become a branch. The turns that take their place follow.
    Rebase { at: u64 },
    /// A branch of another chain's turns begins: its end, or none for turns before a gap of the chain that a recovery
    /// found.
    Branch { head: Option<BranchHead> },
    /// The next turn of the branch that began last.
    BranchTurn(Box<segment::Entry>),
    /// Number of incomplete bytes at the journal's end when it was opened: turns may be missing. 0 after a
    /// comparison with the head index.
    TornEnd { bytes: u64 },
    /// The head index showed that another device deleted the session.
    DeletedElsewhere,
}

/// News of an attempt at the pending turn.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum AttemptChange {
    /// Its text goes on with this; display only.
    Received(String),
    /// Items that a relayer said it added.
    Memory(Vec<MemoryItem>),
    /// The signed progress of its node, which failed.
    Note(SignedBytes),
    /// Its node reported that it signed nothing. Or the client found its reply wrong, and no longer trusts the author
    /// about it.
    Ended { is_wrong: bool },
}

/// News of a turn.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum TurnChange {
    /// The Walrus ID of its blob was computed.
    BlobId(BlobId),
    /// The author has the acknowledgement; or it no longer knows the turn, so that the acknowledgement is useless.
    Acked { is_moot: bool },
    /// The store has its blob.
    Stored(StoredBlob),
    /// The store does not have its blob after all.
    Lost,
    /// Its blob is about to be bought again at this time. Whether it was is unknown until [`TurnChange::Stored`] names a
    /// purchase, or the same change without a time follows.
    RenewalDoubt(Option<u64>),
    /// A second link that its author signed for it.
    SignedTwice(SignedBytes),
}

/// A blob in the store, as far as this client heard of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredBlob {
    /// First epoch in which it is gone, if the store said.
    pub(crate) end_epoch: Option<u64>,
    /// The terms of the PUT; none if another party paid, or the store did not say.
    pub(crate) paid: Option<Purchase>,
    /// When the store showed it to this client, in milliseconds since the Unix epoch.
    pub(crate) confirmed_ms: Option<u64>,
}

/// The turns before the first turn that is here.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct TurnsBefore {
    /// The first turn that is here.
    pub(crate) seq: u64,
    /// The hash that its link continues.
    pub(crate) prev_link: LinkHash,
    /// Blobs of earlier segments, newest first, as a recovered head names them.
    pub(crate) blobs: Vec<SegmentRef>,
    /// Facts about turns that the journal has and its snapshot leaves out; none in a journal or a log.
    pub(crate) omitted: Option<OmittedTurns>,
}

/// Facts about the turns that a snapshot leaves out. It also leaves out the signed objects of most others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OmittedTurns {
    /// Number of those that no later turn replaces.
    pub(crate) effective: u64,
    /// The title that their messages give.
    pub(crate) title: String,
    /// Until when all of their stored blobs are kept at least.
    pub(crate) kept_until_ms: Option<u64>,
    /// When background work needs them, in milliseconds since the Unix epoch.
    pub(crate) needed_ms: u64,
    /// The terms by which these times were computed.
    pub(crate) terms: StorageTerms,
}

/// Length of an epoch, and epochs for which blobs are stored if a blob's own number is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageTerms {
    pub(crate) epoch: Duration,
    pub(crate) open_epochs: u32,
    pub(crate) closed_epochs: u32,
}

impl StorageTerms {
    /// Length of an epoch in milliseconds.
    pub(crate) fn epoch_ms(self) -> u64 {
        u64::try_from(self.epoch.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The last head record known to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedHead {
    pub(crate) sequence: u64,
    pub(crate) seq: u64,
    pub(crate) link_hash: LinkHash,
}

/// The terms of a paid PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Purchase {
    /// Its time, in milliseconds since the Unix epoch.
    pub(crate) stored_ms: u64,
    /// Epochs, including the PUT's own.
    pub(crate) epochs: u32,
}

impl Entry {
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        codec::encode_secret(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ErrorCode> {
        codec::decode(bytes, MAX_OBJECT_BYTES)
    }

    /// Verifies all signatures in the entry. An entry is sealed in the journal only after this, so a replay trusts
    /// them: only this device has the key of the seal.
    pub(crate) fn verify_signatures(&self) -> Result<(), ErrorCode> {
        let link = |bytes: &SignedBytes| SignedObject::<Link>::verify(bytes.clone()).map(drop);
        match self {
            Self::Attempt(entry) => SignedObject::<TurnAuth>::verify(entry.auth.clone()).map(drop),
            Self::OfAttempt(_, AttemptChange::Note(note)) => {
                SignedObject::<ProgressNote>::verify(note.clone()).map(drop)
            }
            Self::Turn(turn) => {
                link(&turn.entry.link)?;
                let Some(proof) = &turn.proof else { return Ok(()) };
                SignedObject::<TurnAuth>::verify(proof.auth.clone())?;
                SignedObject::<Receipt>::verify(proof.receipt.clone())?;
                proof.ack.clone().map(SignedObject::<TurnNote>::verify).transpose().map(drop)
            }
            Self::BranchTurn(entry) => link(&entry.link),
            Self::OfTurn(_, TurnChange::SignedTwice(bytes)) => link(bytes),
            _ => Ok(()),
        }
    }

    /// Whether the entry only notes what this device computed or saw, so that a reader can do without it.
    pub(crate) fn is_observation(&self) -> bool {
        match self {
            Self::OfTurn(_, TurnChange::BlobId(_))
            | Self::Leases { .. }
            | Self::TornEnd { .. }
            | Self::DeletedElsewhere => true,
            Self::OfTurn(_, TurnChange::Stored(blob)) => blob.paid.is_none(),
            _ => false,
        }
    }

    /// When the session was used for this entry: a turn or its opening; milliseconds since the Unix epoch.
    pub(crate) fn used_ms(&self) -> Option<u64> {
        match self {
            Self::Turn(turn) => Some(turn.accepted_ms),
            Self::Opened(header) => Some(header.created_ms),
            _ => None,
        }
    }

    /// Whether a session must be on the disk for this entry: others know of it, or it must not be lost, as a
    /// message.
    pub(crate) fn needs_file(&self) -> bool {
        !matches!(
            self,
            Self::Opened(_) | Self::System(_) | Self::Abandoned | Self::Schema(_) | Self::Title(_)
        )
    }

    /// The turn that the entry is about, if any.
    pub(crate) fn seq(&self) -> Option<u64> {
        match self {
            Self::Turn(turn) => SignedObject::<Link>::peek(&turn.entry.link).ok().map(|link| link.seq),
            Self::OfTurn(seq, _) => Some(*seq),
            _ => None,
        }
    }
}
