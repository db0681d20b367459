//! The service's reports to a counter: numbers and kinds, never text, IDs or keys.

use std::time::Duration;

use baton_proto::{ErrorCode, wire::StoreState};

/// Source of a blob's bytes.
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
    /// The node that served the blob's turn, if the client named it.
    Author,
    /// Another node.
    Peer,
}

/// Result of the request for a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobContent {
    /// The right bytes.
    Right,
    /// Bytes that do not match the signed digest.
    Wrong,
    /// The source does not have the blob.
    Missing,
    /// The source could not be read, or gave no answer.
    Failed,
}

/// A committed turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnSummary {
    /// Tokens of the prompt.
    pub(crate) input_tokens: u32,
    /// Tokens generated here.
    pub(crate) output_tokens: u32,
    /// From admission to the start of generation.
    pub(crate) queue_ms: u32,
    /// From admission to the first token; 0 without one.
    pub(crate) first_token_ms: u32,
    /// From admission until the turn was signed.
    pub(crate) total_ms: u32,
    /// Charged, in millionths of the node's unit.
    pub(crate) price: u64,
}

/// Receives counts. Every method does nothing by default. No method may block.
pub trait ServiceObserver: Send + Sync {
    /// A first frame of this kind was decoded.
    fn requested(&self, _kind: &'static str) {}
    /// A turn was admitted.
    fn turn_started(&self) {}
    /// A connection attached to a running turn, or got its answer from the journal.
    fn turn_attached(&self) {}
    /// A request was refused before anything ran.
    fn refused(&self, _code: ErrorCode) {}
    /// A peer's offences led to a ban.
    fn banned(&self) {}
    /// An admitted turn failed; nothing was signed.
    fn failed(&self, _code: ErrorCode) {}
    /// An admitted turn was committed.
    fn finished(&self, _turn: &TurnSummary) {}
    /// Texts were embedded: their number, their tokens, and the time since they got their slot.
    fn embedded(&self, _texts: usize, _tokens: usize, _took: Duration) {}
    /// A turn ended because it had no reader.
    fn abandoned(&self) {}
    /// A source of a blob answered, or failed to.
    fn blob(&self, _source: BlobSource, _content: BlobContent) {}
    /// Tokens were generated, even if their turn fails later. For a proxied engine, these are pieces of text.
    fn tokens_made(&self, _count: usize) {}
    /// Storing a blob ended in this state, this long after its sealing.
    fn stored(&self, _state: &StoreState, _after: Duration) {}
    /// Running and waiting turns, after each change.
    fn load(&self, _running: usize, _waiting: usize) {}
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl ServiceObserver for NoObserver {}
