//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time, in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The day of a time, in UTC: `2026-01-17`.
pub(crate) fn day(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let date = time::OffsetDateTime::from_unix_timestamp(seconds).map(time::OffsetDateTime::date);
    date.map_or_else(|_| "-".to_owned(), |date| date.to_string())
}

/// How long ago a time is: `2 min ago`.
pub(crate) fn age(ms: u64, now_ms: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(24 * 60 * 60 * 1000, "d"), (60 * 60 * 1000, "h"), (60 * 1000, "min"), (1000, "s")];
    let past = now_ms.saturating_sub(ms);
    let unit = UNITS.iter().find(|(length, _)| past >= *length);
    unit.map_or_else(|| "now".to_owned(), |(length, name)| format!("{} {name} ago", past / length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_in_the_largest_whole_unit() {
        let ages =
            [0, 999, 59_000, 60_000, 3_599_000, 3_600_000, 86_400_000 * 3].map(|past| age(1, past + 1));
        assert_eq!(ages, ["now", "now", "59 s ago", "1 min ago", "59 min ago", "1 h ago", "3 d ago"]);
        assert_eq!(age(5, 1), "now", "a clock that went back");
    }

    #[test]
    fn a_day_is_written_as_in_iso_8601() {
        assert_eq!(day(1_768_608_000_000), "2026-01-17");
    }
}
