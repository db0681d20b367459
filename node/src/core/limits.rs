//! The bounds of the turn service, with their reasons. Those that an operator may have a reason to change are in
//! [`ServiceLimits`].

use std::{collections::BTreeMap, time::Duration};

use baton_proto::ids::ModelId;

use super::guard::quotas::QuotaPolicy;

/// PUTs that run at once; a blob is at most 2 MiB, so this bounds their memory to 32 MiB. Others wait, and their
/// blobs stay in the journal meanwhile.
pub(crate) const MAX_CONCURRENT_PUTS: usize = 16;

/// Token frames that the engine may be ahead of the fastest reader: enough to hide a scheduling delay, few enough
/// that a slow reader soon slows the engine.
pub(crate) const MAX_FRAMES_AHEAD: usize = 16;

/// Bytes of frames kept of a running turn, so that a second connection can attach and see all of it. The largest
/// answer (32 Ki tokens of one frame each, 512 KiB of text, a note every 32 tokens) takes below 6 MiB.
pub(crate) const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;

/// A request of at most so many bytes is read without asking for a share of [`ServiceLimits::frame_bytes`]: questions,
/// and turns of ordinary length.
pub(crate) const SMALL_FRAME_BYTES: usize = 64 * 1024;

/// What is told to wait before trying a busy node again, in milliseconds: about one short answer.
pub(crate) const BUSY_RETRY_MS: u32 = 1000;

/// What is told to wait before trying a node again that its operator drains, in milliseconds: maintenance takes minutes,
/// and every other node is a better choice meanwhile.
pub(crate) const DRAIN_RETRY_MS: u32 = 60_000;

/// How long a turn waits for an abandoned attempt at the same session to end: that one stops within a token.
pub(crate) const TAKE_OVER_WAIT: Duration = Duration::from_secs(2);

/// How long the last frames of ended turns may take to leave at shutdown.
pub(crate) const LAST_FRAMES_WAIT: Duration = Duration::from_secs(1);

/// Connected peers that are asked for a blob which the store does not give.
pub(crate) const MAX_PEERS_ASKED: usize = 4;

/// How long one peer may take to hand over a blob.
pub(crate) const PEER_FETCH_TIMEOUT: Duration = Duration::from_secs(3);

/// How long all tries to get one blob may take together: a store that has it answers far sooner.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits between tries of the store: a blob just written may be missing for some seconds.
pub(crate) const STORE_RETRIES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(900),
    Duration::from_millis(1400),
];

/// Bytes that disclosures of audits which wait or run may take together; a quarter for one subnet: the largest one, and more of
/// usual size.
pub(crate) const MAX_AUDITS_BYTES: usize = 128 * 1024 * 1024;

/// Price of a model's tokens, in millionths of the node's unit for a thousand of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
}

/// Bounds that an operator sets.
#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// Turns served at once.
    pub slots: usize,
    /// Turns that may wait for a slot; beyond it they are refused as Busy.
    pub queue: usize,
    /// Turns a minute from one peer. A relayer is one peer for all of its users.
    pub turns_per_minute: u32,
    /// Frames of any kind a minute from one peer.
    pub frames_per_minute: u32,
    /// Turns a minute of the strangers of one subnet together, and again of those who were served before.
    pub subnet_turns_per_minute: u32,
    /// Tokens of answers an hour for one peer; 0 is without a limit.
    pub tokens_per_hour: u64,
    /// Tokens of answers an hour for the strangers of one subnet together, and again for those who were served before;
    /// 0 is without a limit.
    pub subnet_tokens_per_hour: u64,
    /// Whether misbehaviour is scored, and peers are counted by subnet and banned.
    pub defence: bool,
    /// Whether private and loopback addresses are counted too, each as a subnet of its own.
    pub count_private: bool,
    /// Quotas granted by an issuer.
    pub quotas: QuotaPolicy,
    /// Turns a minute of one session.
    pub session_turns_per_minute: u32,
    /// Whether turns that their clients open are computed again for them.
    pub audits: bool,
    /// Most tokens of an answer.
    pub max_output_tokens: u32,
    /// Most epochs that a blob is stored for, which the operator's publisher pays; 0 counts as 1. A turn that asks for
    /// more is refused.
    pub max_epochs: u32,
    /// How long a turn may hold its slot.
    pub max_turn_time: Duration,
    /// How long a request for embeddings may wait for its slot.
    pub embed_wait: Duration,
    /// How long a request for embeddings may hold it.
    pub max_embed_time: Duration,
    /// Prices by model; a model without one is free.
    pub prices: BTreeMap<ModelId, Price>,
    /// How long a peer may take to send its request.
    pub request_timeout: Duration,
    /// Bytes that requests which are still being read, and blobs that are being handed out, may take together. More
    /// of them wait, and are refused as Busy when their time is over.
    pub frame_bytes: usize,
    /// How long a reader may take no frame before its stream is given up.
    pub reader_stall: Duration,
    /// How long a turn without any reader goes on, so that a retry of the same request can attach.
    pub attach_grace: Duration,
    /// How long the end of a turn waits for the store before it says Pending.
    pub store_wait: Duration,
    /// How long the node tries to store a blob before it gives up.
    pub store_give_up: Duration,
    /// Wait before the first repetition of a failed PUT; doubles up to ten seconds.
    pub store_backoff: Duration,
    /// Bytes of blobs kept in memory.
    pub cache_bytes: usize,
    /// How long running turns may take to finish at shutdown.
    pub drain_grace: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            slots: 1,
            queue: 16,
            turns_per_minute: 120,
            frames_per_minute: 1200,
            // Five busy peers.
            subnet_turns_per_minute: 600,
            // More than two slots of a small model on a processor can say.
            tokens_per_hour: 200_000,
            subnet_tokens_per_hour: 1_000_000,
            defence: true,
            count_private: false,
            quotas: QuotaPolicy::default(),
            session_turns_per_minute: 60,
            audits: false,
            max_output_tokens: 4096,
            // The most that Walrus takes.
            max_epochs: 53,
            // The longest answer at some forty tokens a second.
            max_turn_time: Duration::from_secs(15 * 60),
            embed_wait: Duration::from_secs(30),
            // The largest batch of a small model on one slow core.
            max_embed_time: Duration::from_secs(60),
            prices: BTreeMap::new(),
            request_timeout: Duration::from_secs(15),
            // Sixteen of the largest requests; a quarter for one subnet.
            frame_bytes: 256 * 1024 * 1024,
            reader_stall: Duration::from_secs(60),
            attach_grace: Duration::from_secs(10),
            store_wait: Duration::from_secs(2),
            store_give_up: Duration::from_millis(baton_proto::limits::AUTHOR_STORES_ALONE_MS),
            store_backoff: Duration::from_millis(500),
            cache_bytes: 64 * 1024 * 1024,
            drain_grace: Duration::from_secs(30),
        }
    }
}

impl ServiceLimits {
    /// The price of a model.
    #[must_use]
    pub fn price(&self, model: &ModelId) -> Price {
        self.prices.get(model).copied().unwrap_or_default()
    }
}
