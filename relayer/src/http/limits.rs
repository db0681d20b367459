//! Limits of HTTP requests: sizes, numbers and rates.

use std::time::Duration;

use baton_limits::{Networks, Rate};
use baton_memory::limits::MAX_BULK;

/// Longest body of an open request.
pub(super) const OPEN_BODY_BYTES: usize = 4 * 1024;
/// Longest body of a request: a bulk of the longest facts, with room for JSON escapes.
pub(super) const BODY_BYTES: usize = 2 * 1024 * 1024;
/// Longest body of a chat: a node accepts 8 MiB for a turn.
pub(super) const CHAT_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Longest import: about ten thousand items; larger ones are sent in parts.
pub(super) const IMPORT_BODY_BYTES: usize = 64 * 1024 * 1024;
/// Default of [`Limits::body_patience`].
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// Slowest average rate of a body, in bytes a second. The slowest mobile connections are several times
/// faster.
pub(super) const MIN_BODY_RATE: u64 = 32 * 1024;
/// Slowest average rate of the part of a body that occupies a large slot: 1 Mbit/s. A slower client sends its
/// import in parts of at most [`BODY_BYTES`].
pub(super) const MIN_LARGE_BODY_RATE: u64 = 128 * 1024;
/// Longest wait for a slot, for a request or for a large body; then the answer is 503.
const SLOT_WAIT: Duration = Duration::from_secs(15);
/// Time limit for the start of an answer: a restore reads many blobs.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Most ids of one request.
pub(super) const MAX_IDS: usize = 1_000;
/// Most names in one list of a filter: there are fewer.
pub(super) const MAX_FILTER_NAMES: usize = 8;
/// Most facts of one request.
pub(super) const MAX_FACTS: usize = MAX_BULK;
/// Most namespaces of a page, as on the SDK's server.
pub(super) const MAX_NAMESPACES: usize = 500;
/// Longest text for an extraction of facts.
pub(super) const MAX_ANALYZE_BYTES: usize = 64 * 1024;
/// Most blobs that one restore reads.
pub(super) const MAX_RESTORE: usize = 1_000;

/// Limits that the operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute of one owner, with all keys.
    pub owner_per_minute: u32,
    /// Requests a minute from one subnet; of a high number, an eighth at once. Beyond it, connections from the same
    /// address are reset for moments.
    pub subnet_per_minute: u32,
    /// Networks of the operator's own machines, which have no limit by subnet.
    pub own_networks: Networks,
    /// Concurrent requests; each holds at most its body and its answer. A subnet has a quarter of them.
    pub requests: usize,
    /// Concurrent bodies of more than 2 MiB, shared in the same way.
    pub large_bodies: usize,
    /// Longest wait for a slot.
    pub slot_wait: Duration,
    /// Grace period of a body, beyond the time that its bytes are worth; a stalled sender is then cut off.
    pub body_patience: Duration,
}

/// Requests of a subnet at once, where an eighth of a minute's is less.
const LEAST_BURST: u64 = 60;

impl Limits {
    /// Requests of a subnet. A minute's at once would be seconds of signature checks, for which all wait.
    pub(super) fn subnet_rate(&self) -> Rate {
        let minute = u64::from(self.subnet_per_minute);
        Rate::per_minute(minute).in_bursts_of((minute / 8).max(LEAST_BURST).min(minute))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            owner_per_minute: 600,
            // Five busy owners.
            subnet_per_minute: 3_000,
            own_networks: Networks::default(),
            requests: 256,
            large_bodies: 4,
            slot_wait: SLOT_WAIT,
            body_patience: BODY_PATIENCE,
        }
    }
}
