//! What the service tells whoever counts: numbers and kinds, never text, ids or keys.

use std::time::Duration;

use baton_proto::{ErrorCode, audit::AuditVerdict, wire::StoreState};

/// What a first frame asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// A turn.
    Turn,
    /// The state of a turn.
    Status,
    /// An acknowledgement.
    Ack,
    /// An abort.
    Abort,
    /// A blob.
    FetchBlob,
    /// The node record.
    NodeRecord,
    /// Something for a relayer.
    Relay,
    /// Embeddings.
    Embed,
    /// An audit.
    Audit,
}

/// Where bytes of a blob came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobSource {
    /// The request itself.
    Inline,
    /// This node's journal.
    Journal,
    /// This node's cache.
    Cache,
    /// The store.
    Store,
    /// The node that served the turn whose blob it is, where the client named it.
    Author,
    /// Another node.
    Peer,
}

/// A turn that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnSummary {
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens made here.
    pub output_tokens: u32,
    /// From admission to the start of generation.
    pub queue_ms: u32,
    /// From admission to the first token; 0 without one.
    pub first_token_ms: u32,
    /// From admission until the turn was signed.
    pub total_ms: u32,
    /// Charged, in millionths of the node's unit.
    pub price: u64,
}

/// Receives counts. Every method does nothing by default; all must return at once.
pub trait ServiceObserver: Send + Sync {
    /// A first frame was decoded.
    fn requested(&self, _kind: RequestKind) {}
    /// A turn was admitted.
    fn turn_started(&self) {}
    /// A connection attached to a turn that runs, or was answered from the journal.
    fn turn_attached(&self) {}
    /// A request was refused before anything ran.
    fn refused(&self, _code: ErrorCode) {}
    /// A peer did so much wrong that it is refused for a while.
    fn banned(&self) {}
    /// An admitted turn failed; nothing was signed.
    fn failed(&self, _code: ErrorCode) {}
    /// An admitted turn was committed.
    fn finished(&self, _turn: &TurnSummary) {}
    /// Texts were embedded: how many, their tokens, and how long it took from their slot on.
    fn embedded(&self, _texts: usize, _tokens: usize, _took: Duration) {}
    /// A turn was computed again for somebody.
    fn audited(&self, _verdict: &AuditVerdict) {}
    /// A turn ended because nobody read it any more.
    fn abandoned(&self) {}
    /// A blob came from this source and was the right one.
    fn blob_used(&self, _source: BlobSource) {}
    /// A source gave other bytes than signed for.
    fn blob_wrong(&self, _source: BlobSource) {}
    /// A source was asked and does not have the blob.
    fn blob_missing(&self, _source: BlobSource) {}
    /// A source was asked and could not be read, or gave no answer.
    fn blob_failed(&self, _source: BlobSource) {}
    /// Tokens were made just now, whatever becomes of their turn. A proxied engine's are pieces of text.
    fn tokens_made(&self, _count: usize) {}
    /// What became of storing a blob, and how long it took since it was sealed.
    fn stored(&self, _state: &StoreState, _after: Duration) {}
    /// Turns that run and that wait, after each change.
    fn load(&self, _running: usize, _waiting: usize) {}
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl ServiceObserver for NoObserver {}
