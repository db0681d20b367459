//! The lies, by behaviour, and what a client calls each when it finds it out.

use baton_proto::ErrorCode;
use serde::Serialize;

/// How a hostile node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Stops in the middle and keeps the reply open.
    Stall,
    /// Ends the reply early, or leaves a part of it out.
    Truncate,
    /// Says of one turn two different things.
    Equivocate,
    /// Signs what is not so, or has others sign.
    Forge,
    /// Appends the turn to a history that is not the client's.
    WrongHistory,
    /// Sends what is no message of the protocol.
    Garbage,
}

impl Behaviour {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Stall, Self::Truncate, Self::Equivocate, Self::Forge, Self::WrongHistory, Self::Garbage];

    /// Its lies.
    #[must_use]
    pub fn lies(self) -> Vec<Lie> {
        Lie::ALL.iter().copied().filter(|lie| lie.behaviour() == self).collect()
    }
}

macro_rules! lies {
    ($($(#[doc = $text:literal])* $name:ident: $behaviour:ident, [$($code:ident),*];)*) => {
        /// One lie about one turn.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Lie { $($(#[doc = $text])* $name,)* }

        impl Lie {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The behaviour that it is one of.
            #[must_use]
            pub fn behaviour(self) -> Behaviour {
                match self { $(Self::$name => Behaviour::$behaviour,)* }
            }

            /// What the client may call it; none where it takes the turn all the same, as it was first committed.
            #[must_use]
            pub fn names(self) -> &'static [ErrorCode] {
                match self { $(Self::$name => &[$(ErrorCode::$code),*],)* }
            }
        }
    };
}

lies! {
    /// Half of the tokens, then nothing.
    StopMidAnswer: Stall, [StreamTruncated];
    /// All tokens, and never the link.
    StopBeforeLink: Stall, [StreamTruncated];

    /// Half of the tokens, then the end of the substream.
    EndMidAnswer: Truncate, [StreamTruncated];
    /// The final flag on a token.
    FinalWithoutLink: Truncate, [StreamTruncated];
    /// A sealed chunk is left out.
    SkipChunk: Truncate, [StreamTruncated];
    /// A token is left out before sealing.
    SkipToken: Truncate, [StreamTruncated, ReceiptMismatch];
    /// Half of the tokens, and the link over all of them.
    ShortenAnswer: Truncate, [ReceiptMismatch];
    /// A word that the model did not say, then the end: whoever continues must not go on from it.
    PoisonAndEnd: Truncate, [StreamTruncated];

    /// Streams one answer, and signs another.
    SignOtherText: Equivocate, [ReceiptMismatch];
    /// Streams one answer, breaks off, says when asked that it sealed another, and hands that over.
    OtherOnStatus: Equivocate, [BlobMismatch];
    /// Commits the turn twice, with two links. The first one counts.
    TwoLinks: Equivocate, [];

    /// A link whose signature is wrong.
    BadLinkSignature: Forge, [BadNodeSignature];
    /// A receipt whose signature is wrong.
    BadReceiptSignature: Forge, [BadNodeSignature];
    /// A receipt for another model.
    OtherModel: Forge, [ReceiptMismatch];
    /// A receipt over more tokens than were allowed.
    Overclaim: Forge, [ReceiptMismatch];
    /// Link and receipt in the name of a stranger, who signs.
    OtherAuthor: Forge, [ReceiptMismatch];
    /// A progress note that somebody else signed.
    ForgedNote: Forge, [BadNodeSignature];
    /// A progress note over other tokens.
    WrongNote: Forge, [ReceiptMismatch];

    /// A link that continues another link.
    OtherPrevLink: WrongHistory, [ReceiptMismatch];
    /// A link after another blob.
    OtherPrevBlob: WrongHistory, [ReceiptMismatch, BlobMismatch];
    /// A link at another place.
    OtherSequence: WrongHistory, [ReceiptMismatch, BadGenesis];
    /// A blob whose earlier turns were changed.
    AlteredHistory: WrongHistory, [BlobMismatch, ReceiptMismatch, BadSequence];
    /// A record in which the user says something else.
    AlteredQuestion: WrongHistory, [BlobMismatch];
    /// Says that the history which it was given is broken.
    ClaimsBroken: WrongHistory, [ChainBroken];

    /// Random bytes as a frame.
    RandomFrame: Garbage, [NonCanonical];
    /// A frame above the limit.
    OversizedFrame: Garbage, [FrameTooLarge];
    /// A frame that belongs elsewhere.
    StrayFrame: Garbage, [NonCanonical];
    /// Random bytes as a sealed chunk.
    RandomChunk: Garbage, [StreamTruncated];
    /// Random bytes, sealed as they should be.
    GarbageInChunk: Garbage, [NonCanonical];
    /// A token sent twice: the counter goes back.
    RepeatToken: Garbage, [StreamTruncated];
    /// More tokens than were allowed.
    TooManyTokens: Garbage, [FrameTooLarge];
    /// Tokens that are none.
    EmptyTokens: Garbage, [NonCanonical];
}

/// Which lie a node tells next: behaviours in turn, and of each its lies in turn.
#[derive(Debug)]
pub(super) struct Script {
    behaviours: Vec<Behaviour>,
    told: usize,
}

impl Script {
    pub(super) fn new(behaviours: Vec<Behaviour>, begin: usize) -> Self {
        Self { behaviours, told: begin }
    }

    pub(super) fn next(&mut self) -> Option<Lie> {
        let count = self.behaviours.len();
        let behaviour = self.behaviours.get(self.told.checked_rem(count)?)?;
        let lies = behaviour.lies();
        let lie = lies.get((self.told / count).checked_rem(lies.len())?).copied();
        self.told += 1;
        lie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_comes_to_every_lie_of_its_behaviours() {
        let mut script = Script::new(Behaviour::ALL.to_vec(), 0);
        let told: std::collections::BTreeSet<Lie> =
            (0..6 * Lie::ALL.len()).filter_map(|_| script.next()).collect();
        assert_eq!(told.len(), Lie::ALL.len());
        let mut one = Script::new(vec![Behaviour::Forge], 3);
        assert_eq!(one.next(), Some(Lie::Overclaim));
        assert_eq!(Script::new(Vec::new(), 0).next(), None);
    }
}
