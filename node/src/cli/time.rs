//! Times for people, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Milliseconds since 1970, by this machine's clock.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-22T06:24:28Z` (RFC 3339) for milliseconds since 1970.
pub(super) fn utc(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The day since 1970-01-01 of a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month_from_march + 2) / 5 + day.checked_sub(1)?;
    let of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + of_year;
    (year / 400 * 146_097 + of_era).checked_sub(719_468)
}

/// Seconds since 1970 of an HTTP date in its one current form: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110).
pub(super) fn http_date(text: &str) -> Option<u64> {
    let mut words = text.split_once(", ")?.1.split(' ');
    let mut word = || words.next();
    let (day, month, year) = (word()?.parse().ok()?, word()?, word()?.parse::<u64>().ok()?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let mut clock = word()?.split(':').map(|part| part.parse::<u64>().ok().filter(|part| *part < 61));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let sane = (1..=31).contains(&day) && (1970..=9999).contains(&year) && hour < 24;
    if word()? != "GMT" || !sane {
        return None;
    }
    Some(days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second)
}

/// A length of time in the largest units that matter.
pub(super) fn span(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// The same for milliseconds, to a tenth of a second below ten.
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
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn http_dates_are_read_and_nothing_else_is() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        for day in 0..40_000u64 {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), Some(day));
        }
        for text in [
            "",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "x, 1 Jan 18446744073709551615 1:1:1 GMT",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }
}
