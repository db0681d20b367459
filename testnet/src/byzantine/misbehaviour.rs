//! The misbehaviours by behaviour, with the clients' error codes for each.

use baton_proto::ErrorCode;
use serde::Serialize;

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

    /// Its misbehaviours.
    #[must_use]
    pub fn misbehaviours(self) -> Vec<Misbehaviour> {
        Misbehaviour::ALL.iter().copied().filter(|misbehaviour| misbehaviour.behaviour() == self).collect()
    }
}

macro_rules! misbehaviours {
    ($($(#[doc = $text:literal])* $name:ident: $behaviour:ident, [$($code:ident),*];)*) => {
        /// A misbehaviour in one turn.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Misbehaviour { $($(#[doc = $text])* $name,)* }

        impl Misbehaviour {
            /// All misbehaviours.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The behaviour that it belongs to.
            #[must_use]
            pub fn behaviour(self) -> Behaviour {
                match self { $(Self::$name => Behaviour::$behaviour,)* }
            }

            /// The client's error codes for it; none if the client accepts the turn as first committed.
            #[must_use]
            pub fn error_codes(self) -> &'static [ErrorCode] {
                match self { $(Self::$name => &[$(ErrorCode::$code),*],)* }
            }
        }
    };
}

misbehaviours! {
    /// Sends half of the tokens, then stalls.
    StopMidAnswer: Stall, [StreamTruncated];
    /// Sends all tokens, but never the link.
    StopBeforeLink: Stall, [StreamTruncated];

    /// Sends half of the tokens, then ends the substream.
    EndMidAnswer: Truncate, [StreamTruncated];
    /// Sets the final flag on a token.
    FinalWithoutLink: Truncate, [StreamTruncated];
    /// Omits a sealed chunk.
    SkipChunk: Truncate, [StreamTruncated];
    /// Omits a token before sealing.
    SkipToken: Truncate, [StreamTruncated, ReceiptMismatch];
    /// Sends half of the tokens, but a link over all of them.
    ShortenAnswer: Truncate, [ReceiptMismatch];
    /// Sends a word that the model did not generate, then ends; a substitute must not continue from it.
    PoisonAndEnd: Truncate, [StreamTruncated];

    /// Streams one answer, and signs another.
    SignOtherText: Equivocate, [ReceiptMismatch];
    /// Streams one answer and breaks off. Its status names another sealed turn, and it serves that turn's
    /// blob.
    OtherOnStatus: Equivocate, [BlobMismatch];
    /// Streams the answer and breaks off. Its status names the turn with the largest count of the order.
    LosesReply: Equivocate, [ReceiptMismatch];
    /// Commits the turn twice, with two links; the first one counts.
    TwoLinks: Equivocate, [];

    /// A link with an invalid signature.
    BadLinkSignature: Forge, [BadNodeSignature];
    /// A receipt with an invalid signature.
    BadReceiptSignature: Forge, [BadNodeSignature];
    /// A receipt for another model.
    OtherModel: Forge, [ReceiptMismatch];
    /// A receipt for another kind of engine than the node offers. The blob holds the honest link, so a client
    /// may find the blob wrong first.
    OtherEngine: Forge, [ReceiptMismatch, BlobMismatch];
    /// A receipt over more tokens than the order allows.
    Overclaim: Forge, [ReceiptMismatch];
    /// A receipt over one token more than were sent, within the order; the blob holds the honest link.
    Overcount: Forge, [ReceiptMismatch, BlobMismatch];
    /// A receipt whose running hash covers other tokens; the blob holds the honest link.
    OtherRunningHash: Forge, [ReceiptMismatch, BlobMismatch];
    /// Link and receipt in the name of another node, which signs them.
    OtherAuthor: Forge, [ReceiptMismatch];
    /// A progress note with an invalid signature.
    ForgedNote: Forge, [BadNodeSignature];
    /// A progress note over other tokens.
    WrongNote: Forge, [ReceiptMismatch];
    /// Link and receipt with a time far after the order's.
    OtherTime: Forge, [ReceiptMismatch];

    /// A link to another previous link.
    OtherPrevLink: WrongHistory, [ReceiptMismatch];
    /// A link to another previous blob.
    OtherPrevBlob: WrongHistory, [ReceiptMismatch, BlobMismatch];
    /// A link with another sequence number.
    OtherSequence: WrongHistory, [ReceiptMismatch, BadGenesis];
    /// A blob with changed earlier turns.
    AlteredHistory: WrongHistory, [BlobMismatch, ReceiptMismatch, BadSequence];
    /// A record with another user message.
    AlteredQuestion: WrongHistory, [BlobMismatch];
    /// Claims that the received history is broken.
    ClaimsBroken: WrongHistory, [HeadMismatch];

    /// Random bytes as a frame.
    RandomFrame: Garbage, [NonCanonical];
    /// A frame above the limit.
    OversizedFrame: Garbage, [FrameTooLarge];
    /// A frame that is invalid at this point.
    StrayFrame: Garbage, [NonCanonical];
    /// Random bytes as a sealed chunk.
    RandomChunk: Garbage, [StreamTruncated];
    /// Random bytes, correctly sealed.
    GarbageInChunk: Garbage, [NonCanonical];
    /// A token sent twice, so that the counter goes back.
    RepeatToken: Garbage, [StreamTruncated];
    /// More tokens than the order allows.
    TooManyTokens: Garbage, [FrameTooLarge];
    /// An empty tokens event.
    EmptyTokens: Garbage, [NonCanonical];

    /// Calls the turn's blob stored without a PUT. The turn is accepted; two looks at the store show the lie.
    ClaimsStored: FalseStore, [];
}

/// Selects a node's next misbehaviour: behaviours in turn, and the misbehaviours of each in turn.
#[derive(Debug)]
pub(super) struct MisbehaviourScript {
    behaviours: Vec<Behaviour>,
    next: usize,
}

impl MisbehaviourScript {
    pub(super) fn new(behaviours: Vec<Behaviour>, begin: usize) -> Self {
        Self { behaviours, next: begin }
    }

    pub(super) fn next(&mut self) -> Option<Misbehaviour> {
        let count = self.behaviours.len();
        let behaviour = self.behaviours.get(self.next.checked_rem(count)?)?;
        let misbehaviours = behaviour.misbehaviours();
        let misbehaviour = misbehaviours.get((self.next / count).checked_rem(misbehaviours.len())?).copied();
        self.next += 1;
        misbehaviour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_comes_to_every_misbehaviour_of_its_behaviours() {
        let mut script = MisbehaviourScript::new(Behaviour::ALL.to_vec(), 0);
        let chosen: std::collections::BTreeSet<Misbehaviour> =
            (0..Behaviour::ALL.len() * Misbehaviour::ALL.len()).filter_map(|_| script.next()).collect();
        assert_eq!(chosen.len(), Misbehaviour::ALL.len());
        let mut one = MisbehaviourScript::new(vec![Behaviour::Forge], 3);
        assert_eq!(one.next(), Some(Misbehaviour::OtherEngine));
        assert_eq!(MisbehaviourScript::new(Vec::new(), 0).next(), None);
    }
}
