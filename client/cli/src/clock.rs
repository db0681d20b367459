//! The wall clock.

pub(crate) use baton_kit::clock::now_ms;
use time::OffsetDateTime;

fn utc(seconds: u64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()
}

/// The day of a time, in UTC: `2026-01-17`.
pub(crate) fn day(ms: u64) -> String {
    utc(ms / 1000).map_or_else(|| "-".to_owned(), |time| time.date().to_string())
}

/// A time in UTC: `2026-11-22 06:30:00`.
pub(crate) fn date_time(ms: u64) -> String {
    let time = utc(ms / 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = time.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02}", time.date())
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
    fn times_are_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_329_035, "2026-11-22 06:30:35"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date_time(seconds * 1000 + 999), text);
            assert_eq!(day(seconds * 1000), text[..10]);
        }
        assert_eq!(day(u64::MAX), "-");
    }
}
