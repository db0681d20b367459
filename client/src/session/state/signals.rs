//! Signals of the background work on a session, for the tasks that wait for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use tokio::sync::{Semaphore, watch};

/// Signals of the background work on a session. Shared by all copies of a state, and not part of it.
pub(crate) struct Signals {
    /// Marked by every applied entry.
    pub(crate) changed: watch::Sender<()>,
    /// Whether a retry of background work is planned.
    pub(crate) retry_waits: AtomicBool,
    /// Rounds planned since the work was last complete.
    pub(crate) planned_rounds: AtomicU32,
    /// One PUT at a time, so that two tasks never buy the same blob.
    pub(crate) puts: Semaphore,
    /// Whether the indexes lack the head that they acknowledged; then it is published again.
    pub(crate) head_missing: AtomicBool,
    /// When a renewal was last tried in the background, in milliseconds since the Unix epoch; 0 for never.
    pub(crate) renewal_tried_ms: AtomicU64,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            changed: watch::Sender::default(),
            retry_waits: AtomicBool::new(false),
            planned_rounds: AtomicU32::new(0),
            puts: Semaphore::new(1),
            head_missing: AtomicBool::new(false),
            renewal_tried_ms: AtomicU64::new(0),
        }
    }
}
