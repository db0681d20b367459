//! The actions that a test scripts for a fake node.

use baton_proto::ErrorCode;

/// The node's action for the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    Serve,
    /// Gives this answer.
    Say(&'static str),
    /// Answers, and says of each answer that it checks that it is another one.
    Accuse,
    /// Answers, and says of each answer that it checks that it is the same, without having computed it.
    ForgeCheck,
    Refuse(ErrorCode),
    /// Ends the substream after some text.
    Truncate,
    /// Signs its progress, and ends the substream.
    NoteAndTruncate,
    /// Reports a failure after some text.
    Fail(ErrorCode),
    /// Reports a failure with a pause and a reason, before any text.
    Explain(ErrorCode, u32, &'static str),
    /// Signs a receipt for another model.
    WrongReceipt,
    /// Signs a receipt for another kind of engine than in its record.
    OtherEngine,
    /// Seals another text than it sent.
    WrongText,
    /// Names another blob than it sealed.
    WrongDigest,
    /// Sends a token twice.
    RepeatToken,
    /// Signs a progress note over other tokens.
    WrongNote,
    /// Seals and journals, and goes away before it reports that.
    SealAndVanish,
    /// Commits, reports that it cannot store, and does not store.
    GiveUpStoring,
    /// Commits, reports that it is still storing, and does not store.
    NeverStore,
    /// Sends some text and then nothing.
    Hang,
    /// Admits the turn, and sends nothing.
    AdmitAndHang,
    /// Admits the turn, says when asked that it runs, and serves after it was asked this many times.
    ServeOnceAsked(usize),
    /// As [`Act::ServeOnceAsked`], before it admits the turn.
    AdmitOnceAsked(usize),
    /// Admits the turn and ends the substream; says when asked that it runs, and seals it after this many questions.
    SealOnceAsked(usize),
    /// Reports turns ahead for longer than the wait for a first token; then serves.
    QueueAndServe,
    /// Reports turns ahead, then none, and then sends nothing.
    QueueAndHang,
    /// Sends one token more than ordered.
    TooManyTokens,
    /// Sends token events without tokens.
    EmptyTokens,
    /// Reports waiting more often than any queue moves.
    WaitOn,
    /// Signs the same progress note twice.
    RepeatNote,
    /// Names memory without a request for it.
    OfferMemory,
    /// Seals and journals, and ends the reply with an unsealed refusal.
    SealAndRefuse,
    /// Seals another text than it sent, and goes away before it reports that.
    SealOtherAndVanish,
    /// Seals with the largest count of the order, and goes away before it reports that.
    OvercountAndVanish,
    /// As above, after half of the answer.
    OvercountHalfAndVanish,
    /// Seals with a running hash over other tokens, and goes away before it reports that.
    OtherHashAndVanish,
    /// Commits the turn a second time, with another link.
    CommitTwice,
    /// Sends a frame above the limit.
    HugeFrame,
    /// Answers in plain text, despite a request for JSON.
    IgnoreSchema,
    /// Omits the token probabilities, despite a request for them.
    KeepLogprobs,
    /// Charges for tokens and storage as offered.
    Charge,
    /// Charges a millionth more than offered.
    Overcharge,
    /// Sets the final flag on a token.
    FinalWithoutLink,
    /// Omits a sealed chunk.
    SkipChunk,
    /// Omits a token before sealing.
    SkipToken,
    /// Sends half of the tokens, but a link over all of them.
    ShortenAnswer,
    /// Sends a word that the model did not generate, then ends; a substitute must not continue from it.
    PoisonAndEnd,
    /// Sends random bytes as a frame.
    RandomFrame,
    /// Sends a frame that is invalid at this point.
    StrayFrame,
    /// Sends random bytes as a sealed chunk.
    RandomChunk,
    /// Sends random bytes, correctly sealed.
    GarbageInChunk,
    /// Sends a progress note with an invalid signature.
    ForgedNote,
    /// Sends all tokens, but never the link.
    StopBeforeLink,
    /// Signs the link wrongly.
    BadLinkSignature,
    /// Signs the receipt wrongly.
    BadReceiptSignature,
    /// Counts one token more than were sent, within the order; the blob holds the honest link.
    Overcount,
    /// Signs link and receipt in the name of another node, with that node's key.
    OtherAuthor,
    /// Signs link and receipt with a time far after the order's.
    OtherTime,
    /// Links to another previous link.
    OtherPrevLink,
    /// Links to another previous blob.
    OtherPrevBlob,
    /// Links with another sequence number.
    OtherSequence,
    /// Seals changed earlier turns.
    AlteredHistory,
    /// Seals another user message.
    AlteredQuestion,
    /// Calls the blob stored without a PUT.
    ClaimStored,
}

impl Act {
    /// Whether it happens in the middle of the answer.
    pub(super) fn is_of_tokens(self) -> bool {
        matches!(
            self,
            Self::Hang
                | Self::Truncate
                | Self::FinalWithoutLink
                | Self::SkipChunk
                | Self::SkipToken
                | Self::ShortenAnswer
                | Self::PoisonAndEnd
                | Self::RandomFrame
                | Self::StrayFrame
                | Self::RandomChunk
                | Self::GarbageInChunk
                | Self::ForgedNote
        )
    }

    /// Whether it changes link or receipt after an honest sealing. Its author denies the sealing later.
    pub(super) fn is_of_link(self) -> bool {
        matches!(
            self,
            Self::StopBeforeLink
                | Self::BadLinkSignature
                | Self::BadReceiptSignature
                | Self::Overcount
                | Self::OtherAuthor
                | Self::OtherTime
                | Self::OtherPrevLink
                | Self::OtherPrevBlob
                | Self::OtherSequence
        )
    }
}
