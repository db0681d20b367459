//! The time source of a client.

use std::sync::Arc;

use web_time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, from the program's time source.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
