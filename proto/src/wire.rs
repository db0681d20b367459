//! Frames of the turn protocol. Each frame on a substream is a `u32le` length and one of these, encoded.

use serde::{Deserialize, Serialize};

use crate::{
    error::ErrorCode,
    ids::{BlobDigest, BlobId},
    memory::MemoryItem,
    record::FinishReason,
    signed::SignedBytes,
    turn::SealedPayload,
};

/// Name of the protocol; it carries the version.
pub const TURN_PROTOCOL: &str = "/baton/turn/1";

/// Bytes of a blob that a request brings along.
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
    /// Blobs that the store may not have certified yet, at most two, found by their digest.
    pub inline: Vec<InlineBlob>,
    /// The signed [`MemEnvelope`](crate::memory::MemEnvelope), if a relayer added one.
    pub memory: Option<SignedBytes>,
}

/// What a client, a relayer or another node sends. One per substream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// Serve this turn.
    Turn(TurnRequest),
    /// To a relayer: add memory and pass it on to the node that the authorisation names.
    Relay(TurnRequest),
    /// A signed [`StatusRequest`](crate::ack::StatusRequest).
    Status(SignedBytes),
    /// A signed [`TurnAck`](crate::ack::TurnAck).
    Ack(SignedBytes),
    /// A signed [`Abort`](crate::ack::Abort).
    Abort(SignedBytes),
    /// A stored blob by its digest, from its author's journal or cache. The bytes are sealed, and the digest
    /// is known only to those who may ask.
    FetchBlob(BlobDigest),
    /// The node's signed [`NodeRecord`](crate::node_record::NodeRecord).
    NodeRecord,
}

/// The result of a turn: what the client needs, beside the text, to rebuild it.
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
        /// First epoch in which it is no longer kept, where the store said.
        end_epoch: Option<u64>,
    },
    /// Not yet; the node goes on trying for a minute.
    Pending,
    /// The node has given up; the client puts the bytes itself.
    GivenUp,
}

/// What a node, or a relayer, sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeFrame {
    /// The turn is admitted; chunks sealed under a key from this nonce follow.
    Accepted {
        /// Fresh for every run.
        nonce: [u8; 32],
    },
    /// One sealed [`ReplyEvent`].
    Chunk(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The request is refused, or the turn failed before anything was signed.
    Refused {
        /// Why.
        code: ErrorCode,
        /// Wait at least so long before trying here again; 0 says nothing.
        retry_after_ms: u32,
    },
    /// Answer to a status request.
    Status(TurnStatus),
    /// An acknowledgement or abort was taken.
    Done,
    /// Answer to a blob request.
    Blob(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A signed node record.
    NodeRecord(SignedBytes),
    /// From a relayer to the client, before the node's frames: exactly the items it added.
    Memory(Vec<MemoryItem>),
}

/// The state of a turn at its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnStatus {
    /// Admitted and not yet sealed.
    Accepted,
    /// Sealed and signed, perhaps not stored yet.
    Sealed {
        /// What was sent, or would have been.
        committed: Box<Committed>,
        /// Whether the blob is stored.
        store: StoreState,
    },
    /// Given up by the client.
    Aborted,
}

/// One event of a reply, sealed in the STREAM shape. The last one has the stream's final flag.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyEvent {
    /// Still waiting for a slot; so many turns are ahead.
    Waiting(u32),
    /// Tokens of the answer.
    Tokens {
        /// Position of the first of them in the answer, those of a resume prefix included.
        index: u32,
        /// Token ids; empty for a proxied engine.
        ids: Vec<u32>,
        /// Their text, cut at character boundaries; may be empty.
        text: String,
    },
    /// A signed [`ProgressNote`](crate::receipt::ProgressNote).
    Progress(SignedBytes),
    /// The turn is sealed, journaled and signed.
    Committed(Box<Committed>),
    /// What the store said. Always the last event of a turn that was committed.
    Store(StoreState),
    /// The turn failed and nothing was signed. Always last.
    Failed {
        /// Why.
        code: ErrorCode,
    },
}

impl std::fmt::Debug for ReplyEvent {
    /// Without the answer: neither its text nor its token ids, which are the same.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(ahead) => write!(f, "Waiting({ahead})"),
            Self::Tokens { index, ids, text } => {
                write!(f, "Tokens(from {index}, {} ids, {} bytes)", ids.len(), text.len())
            }
            Self::Progress(_) => f.write_str("Progress(..)"),
            Self::Committed(committed) => write!(f, "Committed({:?})", committed.blob_digest),
            Self::Store(state) => write!(f, "Store({state:?})"),
            Self::Failed { code } => write!(f, "Failed({code:?})"),
        }
    }
}
