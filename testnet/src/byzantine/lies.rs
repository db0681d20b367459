//! The lies of scripted nodes by behaviour, with the clients' error codes for each.

use baton_proto::ErrorCode;
use serde::Serialize;

use super::{Act, AttemptKey, FakeNode, Lie};

/// The behaviour of a byzantine node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Stops midway and holds the reply open.
    Stall,
    /// Ends the reply early, or omits a part.
    Truncate,
    /// Makes two contradictory statements about one turn.
    Equivocate,
    /// Signs false statements, or uses another signer.
    Forge,
    /// Appends the turn to a history other than the client's.
    WrongHistory,
    /// Sends bytes that are no protocol message.
    Garbage,
    /// Calls blobs stored without storing them.
    FalseStore,
}

impl Behaviour {
    /// All behaviours.
    pub const ALL: [Self; 7] = [
        Self::Stall,
        Self::Truncate,
        Self::Equivocate,
        Self::Forge,
        Self::WrongHistory,
        Self::Garbage,
        Self::FalseStore,
    ];
}

/// A kind of lie.
#[derive(Clone, Copy, Debug)]
pub struct LieKind {
    /// The action of the node.
    pub act: Act,
    /// The behaviour that it belongs to.
    pub behaviour: Behaviour,
    /// The client's error codes for it; none if the client accepts the turn as first committed.
    pub codes: &'static [ErrorCode],
}

const fn lie(act: Act, behaviour: Behaviour, codes: &'static [ErrorCode]) -> LieKind {
    LieKind { act, behaviour, codes }
}

/// All lies. A forged link or receipt differs from that in the blob, so a client may find the blob wrong first.
pub const LIES: [LieKind; 28] = {
    use Behaviour::{Equivocate, FalseStore, Forge, Garbage, Stall, Truncate, WrongHistory};
    use ErrorCode::{
        BadGenesis, BadNodeSignature, BlobMismatch, HeadMismatch, NonCanonical, ReceiptMismatch,
        StreamTruncated,
    };
    [
        lie(Act::Hang, Stall, &[StreamTruncated]),
        lie(Act::StopBeforeLink, Stall, &[StreamTruncated]),
        lie(Act::Truncate, Truncate, &[StreamTruncated]),
        lie(Act::FinalWithoutLink, Truncate, &[StreamTruncated]),
        lie(Act::SkipChunk, Truncate, &[StreamTruncated]),
        lie(Act::SkipToken, Truncate, &[StreamTruncated, ReceiptMismatch]),
        lie(Act::ShortenAnswer, Truncate, &[ReceiptMismatch]),
        lie(Act::PoisonAndEnd, Truncate, &[StreamTruncated]),
        lie(Act::WrongText, Equivocate, &[BlobMismatch]),
        lie(Act::CommitTwice, Equivocate, &[]),
        lie(Act::BadLinkSignature, Forge, &[BadNodeSignature]),
        lie(Act::BadReceiptSignature, Forge, &[BadNodeSignature]),
        lie(Act::WrongReceipt, Forge, &[ReceiptMismatch]),
        lie(Act::Overcount, Forge, &[ReceiptMismatch, BlobMismatch]),
        lie(Act::OtherAuthor, Forge, &[ReceiptMismatch]),
        lie(Act::ForgedNote, Forge, &[BadNodeSignature]),
        lie(Act::OtherTime, Forge, &[ReceiptMismatch]),
        lie(Act::OtherPrevLink, WrongHistory, &[ReceiptMismatch]),
        lie(Act::OtherPrevBlob, WrongHistory, &[ReceiptMismatch, BlobMismatch]),
        lie(Act::OtherSequence, WrongHistory, &[ReceiptMismatch, BadGenesis]),
        lie(Act::AlteredHistory, WrongHistory, &[BlobMismatch, ReceiptMismatch]),
        lie(Act::AlteredQuestion, WrongHistory, &[BlobMismatch]),
        lie(Act::Refuse(HeadMismatch), WrongHistory, &[HeadMismatch]),
        lie(Act::RandomFrame, Garbage, &[NonCanonical]),
        lie(Act::StrayFrame, Garbage, &[NonCanonical]),
        lie(Act::RandomChunk, Garbage, &[StreamTruncated]),
        lie(Act::GarbageInChunk, Garbage, &[NonCanonical]),
        // The turn is accepted; two looks at the store show the lie.
        lie(Act::ClaimStored, FalseStore, &[]),
    ]
};

/// The acts of a node without end: its behaviours in turn, from one of them on, and the lies of each in turn.
pub fn acts(behaviours: &[Behaviour], begin: usize) -> impl Iterator<Item = Act> {
    let count = behaviours.len();
    (begin..).map_while(move |number| {
        let behaviour = behaviours.get(number.checked_rem(count)?)?;
        let lies: Vec<_> = LIES.iter().filter(|lie| lie.behaviour == *behaviour).collect();
        lies.get((number / count).checked_rem(lies.len())?).map(|lie| lie.act)
    })
}

/// The lie in an attempt, if one of these nodes told any.
#[must_use]
pub fn lie_of(liars: &[FakeNode], key: &AttemptKey) -> Option<Lie> {
    liars.iter().find_map(|node| node.seen(|seen| seen.lies.get(key).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_comes_to_every_lie_of_its_behaviours() {
        let chosen = acts(&Behaviour::ALL, 0).take(Behaviour::ALL.len() * LIES.len());
        let chosen: std::collections::HashSet<Act> = chosen.collect();
        assert_eq!(chosen.len(), LIES.len());
        assert_eq!(acts(&[Behaviour::Forge], 3).next(), Some(Act::Overcount));
        assert_eq!(acts(&[], 0).next(), None);
    }
}
