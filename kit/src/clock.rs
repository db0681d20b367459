//! The wall clock of this machine.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time, in milliseconds since the Unix epoch.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
