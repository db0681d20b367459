//! Frames of the turn protocol. On a substream each frame is a `u32le` length and one encoded type from here.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    codec,
    error::ErrorCode,
    ids::{BlobDigest, BlobId, ExchangeKey, FetchProof},
    limits::{
        MAX_BLOB_BYTES, MAX_INLINE_BLOBS, MAX_NODE_FRAME_BYTES, MAX_PAYLOAD_BYTES, MAX_REASON_BYTES,
        REPLY_BLOCK,
    },
    memory::MemoryItem,
    record::FinishReason,
    right::QuotaUse,
    signed::SignedBytes,
    turn::SealedPayload,
};

/// Name of the protocol; it carries the version.
pub const TURN_PROTOCOL: &str = "/baton/turn/2";

/// Bytes of a blob inside a request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineBlob(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for InlineBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InlineBlob({} bytes)", self.0.len())
    }
}

/// A request to serve a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRequest {
    /// The signed [`TurnAuth`](crate::turn::TurnAuth).
    pub auth: SignedBytes,
    /// The sealed payload.
    pub payload: SealedPayload,
    /// Blobs that the store may not have certified yet, at most two, identified by digest.
    pub inline: Vec<InlineBlob>,
    /// The signed [`MemEnvelope`](crate::memory::MemEnvelope), if a relayer added one.
    pub memory: Option<SignedBytes>,
}

impl TurnRequest {
    /// Checks the sizes in a request. It is cheap; nodes and relayers call it right after decoding.
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`] for too many inline blobs or too large a payload,
    /// [`ErrorCode::BlobTooLarge`] for an inline blob larger than any stored one.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if self.payload.0.len() > MAX_PAYLOAD_BYTES || self.inline.len() > MAX_INLINE_BLOBS {
            return Err(ErrorCode::FrameTooLarge);
        }
        let fits = self.inline.iter().all(|blob| blob.0.len() <= MAX_BLOB_BYTES);
        if fits { Ok(()) } else { Err(ErrorCode::BlobTooLarge) }
    }
}

/// What a relayer needs to recall memory for a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRecall {
    /// The signed [`RecallHint`](crate::memory::RecallHint).
    pub hint: SignedBytes,
    /// The node's exchange key, to seal the items to it; the authorisation names its id.
    pub node_key: ExchangeKey,
}

/// A frame from a client, a relayer or another node. One per substream, except for [`ClientFrame::Quota`],
/// which a turn follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// Serve this turn.
    Turn(TurnRequest),
    /// To a relayer: pass the turn on to the authorised node, with the memory that it recalls for it.
    Relay {
        /// The turn.
        request: TurnRequest,
        /// The recall, which the relayer keeps to itself; without it no memory is named.
        recall: Option<RelayRecall>,
    },
    /// A signed [`TurnNote`](crate::note::TurnNote).
    Note(SignedBytes),
    /// A stored blob by its digest, from its author's journal or a reader's cache.
    FetchBlob {
        /// The blob.
        digest: BlobDigest,
        /// [`BlobKey::fetch_proof`](baton_keys::session::BlobKey::fetch_proof). Every reader of the store
        /// knows the digest; without a proof, an answer would show them which nodes worked on the session.
        proof: FetchProof,
    },
    /// The node's signed [`NodeRecord`](crate::node_record::NodeRecord).
    NodeRecord,
    /// Before a [`ClientFrame::Turn`] on the same substream: the quota for that turn.
    Quota(QuotaUse),
}

/// The result of a turn: together with the text, enough for the client to rebuild it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The signed link.
    pub link: SignedBytes,
    /// The signed receipt.
    pub receipt: SignedBytes,
    /// Digest of the new blob.
    pub blob_digest: BlobDigest,
    /// Length of the new blob.
    pub blob_length: u32,
    /// Why the answer ended.
    pub finish: FinishReason,
}

/// Whether the new blob is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreState {
    /// The store has it.
    Stored {
        /// Its ID.
        blob_id: BlobId,
        /// First epoch without the blob, if the store named it.
        end_epoch: Option<u64>,
    },
    /// Not yet; the node tries again for a minute.
    Pending,
    /// The node has given up; the client puts the bytes itself.
    GivenUp,
}

/// A frame from a node or a relayer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeFrame {
    /// The turn is admitted; chunks sealed under a key from this nonce follow.
    Accepted {
        /// Fresh for every run.
        nonce: [u8; 32],
    },
    /// One sealed [`ReplyEvent`].
    Chunk(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The request was refused, or the turn failed before the node signed anything.
    Refused {
        /// The reason.
        code: ErrorCode,
        /// Minimum wait in milliseconds before another try here; 0 when the node names none.
        retry_after_ms: u32,
    },
    /// Answer to a status request.
    Status(TurnStatus),
    /// An acknowledgement or abort was accepted.
    Done,
    /// Answer to a blob request.
    Blob(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A signed node record.
    NodeRecord(SignedBytes),
    /// From a relayer to the client, before the node's frames: exactly the added items.
    Memory(Vec<MemoryItem>),
}

/// The state of a turn at its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnStatus {
    /// Admitted and not yet sealed.
    Accepted,
    /// Sealed and signed, perhaps not stored yet.
    Sealed {
        /// The result, whether it was sent or not.
        committed: Box<Committed>,
        /// Whether the blob is stored.
        store: StoreState,
    },
    /// Aborted by the client.
    Aborted,
}

/// The probability of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Zeroize)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability, in thousandths.
    pub millinats: i32,
    /// Its bytes.
    pub bytes: TokenBytes,
}

/// The bytes of a token: not always whole characters, and empty for a token without text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize)]
pub struct TokenBytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for TokenBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenBytes({} bytes)", self.0.len())
    }
}

/// One event of a reply, padded and sealed in the STREAM shape. The last one has the stream's final flag.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyEvent {
    /// Still waiting for a slot; the number of turns ahead.
    Waiting(u32),
    /// Tokens of the answer.
    Tokens {
        /// Position of the first token in the answer; a resume prefix counts.
        index: u32,
        /// Token ids; empty for a proxied engine.
        ids: Vec<u32>,
        /// Their text, cut at character boundaries; may be empty.
        text: String,
        /// For each of `ids` in order: the token itself, then the requested number of likeliest tokens. Empty
        /// if none were requested.
        logprobs: Vec<TokenLogprob>,
    },
    /// A signed [`ProgressNote`](crate::receipt::ProgressNote).
    Progress(SignedBytes),
    /// The turn is sealed, journaled and signed.
    Committed(Box<Committed>),
    /// The store's answer. Always the last event of a committed turn.
    Store(StoreState),
    /// The turn failed and nothing was signed. Always last.
    Failed {
        /// The class of the failure.
        code: ErrorCode,
        /// Minimum wait in milliseconds before another try here; 0 when the node names none.
        retry_after_ms: u32,
        /// The failure in the node's words, as [`failure_reason`] makes it; may be empty.
        reason: String,
    },
    /// The signed [`Receipt`](crate::receipt::Receipt) of a request for checks alone. Always last: nothing is sealed or
    /// stored.
    Checked(SignedBytes),
}

/// A text as the reason of a failure: at most [`MAX_REASON_BYTES`], in one line, without control characters and marks
/// of direction. Both sides apply it.
#[must_use]
pub fn failure_reason(text: &str) -> String {
    let hidden =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut reason = String::new();
    for word in
        text.split(|c: char| c.is_control() || c.is_whitespace() || hidden(c)).filter(|word| !word.is_empty())
    {
        let gap = if reason.is_empty() { "" } else { " " };
        let room = MAX_REASON_BYTES.saturating_sub(reason.len() + gap.len());
        if word.len() > room {
            reason.push_str(gap);
            reason.push_str(word.get(..word.floor_char_boundary(room)).unwrap_or_default());
            break;
        }
        reason.push_str(gap);
        reason.push_str(word);
    }
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    reason
}

impl ReplyEvent {
    /// The plaintext of one chunk: `pad_block(encoding, 128)`.
    #[must_use]
    pub fn to_chunk(&self) -> Zeroizing<Vec<u8>> {
        codec::pad_block(&codec::encode_secret(self), REPLY_BLOCK)
    }

    /// Undoes [`ReplyEvent::to_chunk`].
    ///
    /// # Errors
    /// [`ErrorCode::FrameTooLarge`], [`ErrorCode::NonCanonical`].
    pub fn from_chunk(chunk: &[u8]) -> Result<Self, ErrorCode> {
        if chunk.len() > MAX_NODE_FRAME_BYTES {
            return Err(ErrorCode::FrameTooLarge);
        }
        codec::decode(codec::unpad_block(chunk, REPLY_BLOCK)?, MAX_NODE_FRAME_BYTES)
    }
}

impl std::fmt::Debug for ReplyEvent {
    /// Omits the answer: its text, and its token ids, which reveal the text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(ahead) => write!(f, "Waiting({ahead})"),
            Self::Tokens { index, ids, text, .. } => {
                write!(f, "Tokens(from {index}, {} ids, {} bytes)", ids.len(), text.len())
            }
            Self::Progress(_) => f.write_str("Progress(..)"),
            Self::Committed(committed) => write!(f, "Committed({:?})", committed.blob_digest),
            Self::Store(state) => write!(f, "Store({state:?})"),
            Self::Failed { code, .. } => write!(f, "Failed({code:?})"),
            Self::Checked(_) => f.write_str("Checked(..)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signed::SignatureBytes;

    fn request(payload: usize, inline: &[usize]) -> TurnRequest {
        TurnRequest {
            auth: SignedBytes { body: Vec::new(), signature: SignatureBytes([0; 64]) },
            payload: SealedPayload(vec![0; payload]),
            inline: inline.iter().map(|length| InlineBlob(vec![0; *length])).collect(),
            memory: None,
        }
    }

    #[test]
    fn the_chunks_of_single_tokens_are_of_one_length() {
        let token = |text: &str| ReplyEvent::Tokens {
            index: 7,
            ids: vec![1],
            text: text.to_owned(),
            logprobs: Vec::new(),
        };
        for text in ["", "a", " extraordinarily", &"x".repeat(88)] {
            let chunk = token(text).to_chunk();
            assert_eq!(chunk.len(), REPLY_BLOCK, "{text}");
            assert_eq!(ReplyEvent::from_chunk(&chunk), Ok(token(text)));
        }
        assert_eq!(token(&"x".repeat(89)).to_chunk().len(), 2 * REPLY_BLOCK);
        let unpadded = codec::encode(&token("a"));
        assert_eq!(ReplyEvent::from_chunk(&unpadded), Err(ErrorCode::NonCanonical));
        let huge = vec![0; MAX_NODE_FRAME_BYTES + 1];
        assert_eq!(ReplyEvent::from_chunk(&huge), Err(ErrorCode::FrameTooLarge));
    }

    #[test]
    fn a_reason_is_one_bounded_line_without_control_characters() {
        for (text, reason) in [
            ("  not at /properties/v:\n it\tis unsupported \u{7}", "not at /properties/v: it is unsupported"),
            ("a\u{1b}[31mred\u{202e}", "a [31mred"),
            ("\u{0}", ""),
        ] {
            assert_eq!(failure_reason(text), reason);
        }
        for text in ["x".repeat(1000), "é".repeat(1000), "ab ".repeat(1000), format!("{} é", "x".repeat(254))]
        {
            let reason = failure_reason(&text);
            assert!((MAX_REASON_BYTES - 2..=MAX_REASON_BYTES).contains(&reason.len()), "{}", reason.len());
            assert_eq!(failure_reason(&reason), reason.trim_end());
        }
    }

    #[test]
    fn refuses_requests_that_carry_more_than_allowed() {
        assert_eq!(request(0, &[]).check(), Ok(()));
        assert_eq!(request(MAX_PAYLOAD_BYTES, &[MAX_BLOB_BYTES; MAX_INLINE_BLOBS]).check(), Ok(()));
        assert_eq!(request(MAX_PAYLOAD_BYTES + 1, &[]).check(), Err(ErrorCode::FrameTooLarge));
        assert_eq!(request(0, &[0; MAX_INLINE_BLOBS + 1]).check(), Err(ErrorCode::FrameTooLarge));
        assert_eq!(request(0, &[0, MAX_BLOB_BYTES + 1]).check(), Err(ErrorCode::BlobTooLarge));
    }
}
