//! The lies of scripted nodes, with the clients' error codes for each.

use baton_proto::ErrorCode;

use super::{Act, AttemptKey, FakeNode, Lie};

/// A kind of lie.
#[derive(Clone, Copy, Debug)]
pub struct LieKind {
    /// The action of the node.
    pub act: Act,
    /// The client's error codes for it; none if the client accepts the turn as first committed.
    pub codes: &'static [ErrorCode],
}

const fn lie(act: Act, codes: &'static [ErrorCode]) -> LieKind {
    LieKind { act, codes }
}

/// All lies. A forged link or receipt differs from that in the blob, so a client may find the blob wrong first.
pub const LIES: [LieKind; 28] = {
    use ErrorCode::{
        BadGenesis, BadNodeSignature, BlobMismatch, HeadMismatch, NonCanonical, ReceiptMismatch,
        StreamTruncated,
    };
    [
        // Stops midway and holds the reply open.
        lie(Act::Hang, &[StreamTruncated]),
        lie(Act::StopBeforeLink, &[StreamTruncated]),
        // Ends the reply early, or omits a part.
        lie(Act::Truncate, &[StreamTruncated]),
        lie(Act::FinalWithoutLink, &[StreamTruncated]),
        lie(Act::SkipChunk, &[StreamTruncated]),
        lie(Act::SkipToken, &[StreamTruncated, ReceiptMismatch]),
        lie(Act::ShortenAnswer, &[ReceiptMismatch]),
        lie(Act::PoisonAndEnd, &[StreamTruncated]),
        // Makes two contradictory statements about one turn.
        lie(Act::WrongText, &[BlobMismatch]),
        lie(Act::CommitTwice, &[]),
        // Signs false statements, or uses another signer.
        lie(Act::BadLinkSignature, &[BadNodeSignature]),
        lie(Act::BadReceiptSignature, &[BadNodeSignature]),
        lie(Act::WrongReceipt, &[ReceiptMismatch]),
        lie(Act::Overcount, &[ReceiptMismatch, BlobMismatch]),
        lie(Act::OtherAuthor, &[ReceiptMismatch]),
        lie(Act::ForgedNote, &[BadNodeSignature]),
        lie(Act::OtherTime, &[ReceiptMismatch]),
        // Appends the turn to a history other than the client's.
        lie(Act::OtherPrevLink, &[ReceiptMismatch]),
        lie(Act::OtherPrevBlob, &[ReceiptMismatch, BlobMismatch]),
        lie(Act::OtherSequence, &[ReceiptMismatch, BadGenesis]),
        lie(Act::AlteredHistory, &[BlobMismatch, ReceiptMismatch]),
        lie(Act::AlteredQuestion, &[BlobMismatch]),
        lie(Act::Refuse(HeadMismatch), &[HeadMismatch]),
        // Sends bytes that are no protocol message.
        lie(Act::RandomFrame, &[NonCanonical]),
        lie(Act::StrayFrame, &[NonCanonical]),
        lie(Act::RandomChunk, &[StreamTruncated]),
        lie(Act::GarbageInChunk, &[NonCanonical]),
        // Calls blobs stored without storing them. The turn is accepted; two looks at the store show the lie.
        lie(Act::ClaimStored, &[]),
    ]
};

/// The lie in an attempt, if one of these nodes told any.
#[must_use]
pub fn lie_of(liars: &[FakeNode], key: &AttemptKey) -> Option<Lie> {
    liars.iter().find_map(|node| node.seen(|seen| seen.lies.get(key).copied()))
}
