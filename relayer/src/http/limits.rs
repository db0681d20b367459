//! Limits of HTTP requests: sizes, numbers and rates.

use std::time::Duration;

use baton_memory::limits::MAX_BULK;

/// Longest body of an open request.
pub(super) const OPEN_BODY_BYTES: usize = 4 * 1024;
/// Longest body of a request: a bulk of the longest facts, with room for JSON escapes.
pub(super) const BODY_BYTES: usize = 2 * 1024 * 1024;
/// Longest body of a chat: a node accepts 8 MiB for a turn.
pub(super) const CHAT_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Longest import: about ten thousand items; larger ones are sent in parts.
pub(super) const IMPORT_BODY_BYTES: usize = 64 * 1024 * 1024;
/// Grace period of a body, beyond the time that [`MIN_BODY_RATE`] allows; a stalled sender is then cut off.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// Slowest average rate of a body, in bytes a second. The slowest mobile connections are several times
/// faster.
pub(super) const MIN_BODY_RATE: u64 = 32 * 1024;
/// Time limit for the start of an answer: a restore reads many blobs.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Most ids of one request.
pub(super) const MAX_IDS: usize = 1_000;
/// Most facts of one request.
pub(super) const MAX_FACTS: usize = MAX_BULK;
/// Most namespaces of a page, as on the SDK's server.
pub(super) const MAX_NAMESPACES: usize = 500;
/// Longest text for an extraction of facts.
pub(super) const MAX_ANALYZE_BYTES: usize = 64 * 1024;
/// Most blobs that one restore reads.
pub(super) const MAX_RESTORE: usize = 1_000;

/// Limits that the operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute of one owner, with all keys.
    pub owner_per_minute: u32,
    /// Requests a minute of one key.
    pub key_per_minute: u32,
    /// Concurrent requests; each holds at most its body and its answer.
    pub requests: usize,
    /// Among them, requests with a body of more than a few MiB.
    pub large_bodies: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { owner_per_minute: 600, key_per_minute: 300, requests: 256, large_bodies: 4 }
    }
}
