//! Error codes: stable numbers on the wire, without internal text. All failures from which a holder of the
//! wrong key could learn share a code.

use serde::{Deserialize, Serialize};

/// The receiver's next step with the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same node may serve it after a pause.
    Here,
    /// Another node may serve it, as a new attempt.
    Elsewhere,
    /// The request itself is wrong and stays wrong until the client changes it.
    Never,
}

macro_rules! error_codes {
    (
        wire { $($name:ident = $number:literal, $retry:ident, $text:literal;)* }
        local { $($local:ident as $sent:ident, $local_text:literal;)* }
    ) => {
        /// A protocol error: a code with a frozen number on the wire, or a name for a check of the reader itself, which
        /// never travels. `docs/PROTOCOL.md` has both tables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
        pub enum ErrorCode {
            $(#[doc = $text] #[error($text)] $name,)*
            $(#[doc = $local_text] #[error($local_text)] $local,)*
        }

        impl ErrorCode {
            /// The codes that travel, in the order of their numbers.
            pub const WIRE: &[ErrorCode] = &[$(ErrorCode::$name),*];
            /// The codes that do not travel.
            pub const LOCAL: &[ErrorCode] = &[$(ErrorCode::$local),*];

            /// The code's name as in the documentation.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => stringify!($name),)*
                    $(ErrorCode::$local => stringify!($local),)*
                }
            }

            /// The next step with the turn. After a failed check of the reader's own, another node may serve it.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(ErrorCode::$name => Retry::$retry,)* _ => Retry::Elsewhere }
            }

            /// The code that a peer is told: this one, or for a code that does not travel its stand-in.
            #[must_use]
            pub const fn on_wire(self) -> ErrorCode {
                match self { $(ErrorCode::$local => ErrorCode::$sent,)* code => code }
            }

            /// The number of the code that a peer is told.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(ErrorCode::$name => $number,)* local => local.on_wire().number() }
            }

            /// The code with this number, if it exists.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<ErrorCode> {
                match number { $($number => Some(ErrorCode::$name),)* _ => None }
            }
        }
    };
}

error_codes! {
    wire {
        FrameTooLarge = 1, Never, "a frame, message or object exceeds its limit";
        NonCanonical = 2, Never, "bytes are not the one encoding of an object";
        UnsupportedVersion = 3, Elsewhere, "this protocol version is not spoken here";
        SessionIdMismatch = 4, Never, "the session id does not belong to the session key";
        BadSignature = 5, Never, "a signature by the client does not verify";
        WrongAudience = 6, Elsewhere, "the authorisation is for another node";
        KxExpired = 7, Here, "the exchange key is not one of this node's current keys; fetch its node record again";
        Expired = 8, Here, "the authorisation has expired or lives too long";
        NotYetValid = 9, Here, "the authorisation is from the future; check the clock";
        Replayed = 10, Elsewhere, "the authorisation is older than this node's memory of turns: the node is new, or a clock is wrong";
        IdempotencyConflict = 11, Never, "the same turn and attempt was sent with other content";
        PayloadRejected = 12, Never, "the sealed payload does not open, or its content is not acceptable";
        BlobUnavailable = 20, Here, "a blob of the session could not be fetched from any source";
        BlobTooLarge = 21, Never, "a blob exceeds its limit";
        BlobHashMismatch = 22, Elsewhere, "a blob's bytes are not those that were signed for";
        HeadMismatch = 27, Elsewhere, "the chain does not end at the head that was signed";
        StatusUnknown = 40, Elsewhere, "this node has nothing about that turn";
        Aborted = 41, Elsewhere, "the attempt was aborted";
        ContextOverflow = 42, Never, "system text and message alone exceed the model's context";
        ModelUnavailable = 43, Elsewhere, "the model is not served here";
        QuotaExceeded = 44, Elsewhere, "a limit of tokens, price or storage, or a quota, is exceeded";
        RateLimited = 45, Here, "too many requests";
        Busy = 46, Elsewhere, "no free slot; also while the same session is being served or the node drains";
        Internal = 47, Elsewhere, "the node failed; nothing was signed";
        GrantRequired = 48, Elsewhere, "this node serves only holders of a grant from its operator";
        BackendDenied = 49, Elsewhere, "the server behind the node refuses the node itself: the node's operator has to act";
        ContentRefused = 50, Never, "the server behind the node refuses the content";
        MemUnauthorized = 60, Never, "the memory or the hint for it is not of the allowed party, not for this turn, out of its time or too large";
    }
    local {
        BlobIdMismatch as HeadMismatch, "a blob's Walrus ID is not the one that was signed";
        BadSequence as PayloadRejected, "turn, segment or index numbers do not follow";
        BadGenesis as PayloadRejected, "the first turn does not start from the session's genesis";
        ChainBroken as HeadMismatch, "a link does not continue the one before";
        RecordHashMismatch as HeadMismatch, "a record is not the one its link names";
        BadNodeSignature as HeadMismatch, "a signature by a node does not verify";
        ReceiptMismatch as PayloadRejected, "the receipt or link does not fit the turn that was asked for";
        BlobMismatch as PayloadRejected, "the rebuilt record or blob differs from what the node signed";
        RollbackDetected as PayloadRejected, "an older head was offered than the one already known";
        ForkDetected as PayloadRejected, "two turns continue the same link";
        StreamTruncated as PayloadRejected, "the reply ended before its last chunk";
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u16::deserialize(deserializer)?;
        Self::from_number(number).ok_or_else(|| serde::de::Error::custom("unknown error code"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_wire_round_trip_and_unknown_ones_are_refused() {
        for code in ErrorCode::WIRE {
            assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
            assert_eq!(crate::codec::decode::<ErrorCode>(&crate::codec::encode(code), 2), Ok(*code));
        }
        assert_eq!(crate::codec::decode::<ErrorCode>(&[0, 0], 2), Err(ErrorCode::NonCanonical));
    }

    #[test]
    fn a_peer_is_told_a_code_of_the_wire_for_each_local_one() {
        for code in ErrorCode::LOCAL {
            assert!(ErrorCode::WIRE.contains(&code.on_wire()), "{}", code.name());
            let told = crate::codec::decode::<ErrorCode>(&crate::codec::encode(code), 2);
            assert_eq!(told, Ok(code.on_wire()));
        }
    }
}
