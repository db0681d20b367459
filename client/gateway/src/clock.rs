//! Times as APIs write them.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A time in seconds since the Unix epoch, as RFC 3339 writes it; empty beyond the year 9999.
pub(crate) fn rfc3339(time_s: u64) -> String {
    let time = i64::try_from(time_s).ok().and_then(|time| OffsetDateTime::from_unix_timestamp(time).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}
