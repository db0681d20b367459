//! Times for people, in UTC.

use std::time::Duration;

use ::time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub(super) use baton_kit::clock::now_ms;

/// `2026-11-22T06:24:28Z` (RFC 3339) for milliseconds since 1970. Years beyond 9999 are shown as the last
/// second of 9999.
pub(super) fn utc(ms: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    let seconds = i64::try_from((ms / 1000).min(LAST)).unwrap_or_default();
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).unwrap_or_default()
}

/// A short time, in milliseconds or in tenths of a second.
pub(super) fn short(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (784_111_777_000, "1994-11-06T08:49:37Z"),
            (951_827_696_000, "2000-02-29T12:34:56Z"),
            (1_795_328_668_123, "2026-11-22T06:24:28Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }
}
