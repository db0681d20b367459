//! What may be asked of the HTTP door, how much and how often.

use std::time::Duration;

use baton_memory::limits::MAX_BULK;

/// Longest body of a request that anybody may make.
pub(super) const OPEN_BODY_BYTES: usize = 4 * 1024;
/// Longest body of a request: a bulk of facts of the greatest length, with room for JSON's escapes.
pub(super) const BODY_BYTES: usize = 2 * 1024 * 1024;
/// Longest body of a chat: 8 MiB is what a node takes of a turn.
pub(super) const CHAT_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Longest import: some ten thousand items; larger ones are sent in parts.
pub(super) const IMPORT_BODY_BYTES: usize = 64 * 1024 * 1024;
/// How long a body may take to arrive beyond the time that [`MIN_BODY_RATE`] gives it: a stalled sender is cut off then.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// Slowest pace of a body on average, in bytes a second. The slowest mobile connections are some times faster.
pub(super) const MIN_BODY_RATE: u64 = 32 * 1024;
/// How long an answer may take to begin: a restore reads many blobs.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
/// Most ids of one request.
pub(super) const MAX_IDS: usize = 1_000;
/// Most facts of one request.
pub(super) const MAX_FACTS: usize = MAX_BULK;
/// Most namespaces of a page, which the SDK's server has too.
pub(super) const MAX_NAMESPACES: usize = 500;
/// Longest text that facts are looked for in.
pub(super) const MAX_ANALYZE_BYTES: usize = 64 * 1024;
/// Most blobs that one restore looks at.
pub(super) const MAX_RESTORE: usize = 1_000;

/// Limits that the operator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute of one owner, by whatever keys.
    pub owner_per_minute: u32,
    /// Requests a minute of one key.
    pub key_per_minute: u32,
    /// Requests in hand at once; each holds at most its body and its answer.
    pub requests: usize,
    /// Of them with bodies of more than a few MiB.
    pub large_bodies: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { owner_per_minute: 600, key_per_minute: 300, requests: 256, large_bodies: 4 }
    }
}
