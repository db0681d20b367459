//! Bounds of the turn service, with their reasons. [`ServiceLimits`] holds the bounds that an operator may
//! change.

use std::time::Duration;

use baton_limits::{Networks, Rate, SlotLimits};
pub(crate) use baton_mesh::BUSY_RETRY_MS;
use baton_mesh::DefenceLimits;
use baton_proto::{node_record::StorageOffer, right::TurnQuota};

use super::quotas::QuotaPolicy;

/// Concurrent PUTs. A blob has at most 2 MiB, so this bounds their memory to 32 MiB. Other blobs wait in the
/// journal.
pub(crate) const MAX_CONCURRENT_PUTS: usize = 16;
/// Blobs on their way to the store. At this number the node refuses turns as Busy: seventeen turns a second while
/// the store is gone, since the node gives a blob up after a minute.
pub(crate) const MAX_STORING: usize = 1024;
/// Part of these: blobs of one subnet or grant.
pub(crate) const MAX_STORING_OF_SUBNET: usize = 256;

/// Token frames between the engine and the fastest reader: enough to hide a scheduling delay, few enough that
/// a slow reader soon slows the engine.
pub(crate) const MAX_FRAMES_AHEAD: usize = 16;

/// Largest further frame of a client that waits for its answer; none is expected.
pub(crate) const MAX_STRAY_FRAME_BYTES: usize = 64;

/// Bytes of frames of a running turn, so that a second connection can attach and read all of them. The
/// largest answer takes below 6 MiB: 32 Ki tokens of one frame each, 512 KiB of text, a note every 32 tokens.
pub(crate) const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;

/// How long a turn waits for the end of an abandoned attempt in its session. That attempt stops within a
/// token.
pub(crate) const TAKE_OVER_WAIT: Duration = Duration::from_secs(2);

/// How long the last frames of ended turns may take at shutdown.
pub(crate) const LAST_FRAMES_WAIT: Duration = Duration::from_secs(1);

/// Connected peers to query for a blob that the store does not return.
pub(crate) const MAX_PEERS_ASKED: usize = 4;

/// How long the store may be silent before other nodes are asked as well.
pub(crate) const STORE_SILENCE: Duration = Duration::from_secs(1);

/// Timeout of one peer's blob transfer.
pub(crate) const PEER_FETCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout of all tries for one blob. A store that has the blob answers far sooner.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits between tries of the store: a fresh blob may be missing for some seconds.
pub(crate) const STORE_RETRIES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(900),
    Duration::from_millis(1400),
];

/// Time between two saves of the accounts: a crash forgives the use of this time.
pub(crate) const SAVE_ACCOUNTS_INTERVAL: Duration = Duration::from_secs(60);

/// Price of a model's tokens, in millionths of the node's unit for a thousand tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
}

/// Most of each resource in an hour: turns and embedding requests, tokens, storage units. None is no limit.
pub(crate) type HourlyRates = [Option<Rate>; 3];

/// Bounds set by the operator.
#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// Turns served at once.
    pub slots: usize,
    /// Turns that may wait for a slot; further turns are refused as Busy.
    pub queue: usize,
    /// Turns a minute without a grant from one subnet.
    pub turns_per_minute: u32,
    /// Tokens an hour without a grant for one subnet; 0 means no limit.
    pub tokens_per_hour: u64,
    /// Storage units (MiB x epochs) an hour without a grant for one subnet; 0 means no limit.
    pub storage_per_hour: u64,
    /// Networks whose peers are not counted: the operator's own.
    pub own_networks: Networks,
    /// Policy on granted quotas.
    pub quotas: QuotaPolicy,
    /// Maximum tokens of an answer.
    pub max_output_tokens: u32,
    /// Terms of the storage of blobs, paid by the operator's publisher. Turns that request more epochs are
    /// refused.
    pub storage: StorageOffer,
    /// Maximum time of a turn in its slot.
    pub max_turn_time: Duration,
    /// Maximum wait of an embedding request for its slot.
    pub embed_wait: Duration,
    /// Maximum time of an embedding request in its slot.
    pub max_embed_time: Duration,
    /// Price of every model's tokens.
    pub price: Price,
    /// Timeout for receiving a peer's request.
    pub request_timeout: Duration,
    /// Bytes of all requests being read and blobs being sent. Further ones wait, and are refused as Busy
    /// after their timeout.
    pub frame_bytes: usize,
    /// How long a reader may accept no frame before its stream is dropped.
    pub reader_stall: Duration,
    /// How long a turn continues without a reader, so that a retry of the same request can attach.
    pub attach_grace: Duration,
    /// How long the end of a turn waits for the store before it reports Pending.
    pub store_wait: Duration,
    /// How long the node tries to store a blob before it gives up.
    pub store_give_up: Duration,
    /// Wait before the first retry of a failed PUT; doubles up to ten seconds.
    pub store_backoff: Duration,
    /// Bytes of cached blobs in memory.
    pub cache_bytes: usize,
    /// How long running turns may take at shutdown.
    pub drain_grace: Duration,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            slots: 1,
            queue: 16,
            // Five busy users.
            turns_per_minute: 600,
            // More than the output of a small model in two slots on a CPU, five times.
            tokens_per_hour: 1_000_000,
            // 3,000 turns an hour, each stored for the five epochs of a turn without a grant.
            storage_per_hour: 200_000,
            own_networks: Networks::default(),
            quotas: QuotaPolicy::default(),
            max_output_tokens: 4096,
            storage: StorageOffer::default(),
            // The longest answer at some forty tokens a second.
            max_turn_time: Duration::from_secs(15 * 60),
            embed_wait: Duration::from_secs(30),
            // The largest batch of a small model on one slow core.
            max_embed_time: Duration::from_secs(60),
            price: Price::default(),
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
    /// The limits of the service's streams.
    pub(crate) fn defence(&self) -> DefenceLimits {
        DefenceLimits {
            own_networks: self.own_networks.clone(),
            turns_per_minute: self.turns_per_minute,
            frame_bytes: self.frame_bytes,
            request_timeout: self.request_timeout,
        }
    }

    /// The hour of a subnet without a grant. Its turns have a limit a minute.
    pub(crate) fn subnet_hour(&self) -> HourlyRates {
        let rate = |amount| (amount > 0).then_some(Rate::per_hour(amount));
        [None, rate(self.tokens_per_hour), rate(self.storage_per_hour)]
    }

    /// The hour of a grant. Zero in a grant allows nothing.
    pub(crate) fn grant_hour(quota: &TurnQuota) -> HourlyRates {
        [Some(Rate::per_hour(quota.turns_per_hour.into())), Some(Rate::per_hour(quota.tokens_per_hour)), None]
    }

    /// The capacity for turns, or for requests of another kind with this many slots. While grants are accepted, turns
    /// without one leave a slot free.
    pub(crate) fn turn_slots(&self, slots: usize) -> SlotLimits {
        let reserved = usize::from(!self.quotas.issuers.is_empty());
        SlotLimits { units: slots, per_key: slots, reserved, queue: self.queue, queue_per_key: self.queue }
    }

    /// The capacity for PUTs. A subnet has half of it, and so have turns without a grant while grants are accepted.
    pub(crate) fn put_slots(&self) -> SlotLimits {
        let half = MAX_CONCURRENT_PUTS / 2;
        SlotLimits {
            units: MAX_CONCURRENT_PUTS,
            per_key: half,
            reserved: if self.quotas.issuers.is_empty() { 0 } else { half },
            queue: MAX_STORING,
            queue_per_key: MAX_STORING_OF_SUBNET,
        }
    }
}
