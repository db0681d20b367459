//! Time formats: RFC 3339 in UTC with milliseconds outside, milliseconds since the Unix epoch inside.

use serde::{Deserialize, Deserializer, de::Error as _};

const DAY_MS: u64 = 86_400_000;
/// Longest text that is parsed as a time.
const MAX_TIME_TEXT: usize = 40;

/// `2026-11-21T23:14:00.000Z`. Years beyond 9999 are shown as the last moment of 9999.
#[must_use]
pub fn format(ms: u64) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let ms = ms.min(LAST);
    let (year, month, day) = civil(ms / DAY_MS);
    let rest = ms % DAY_MS;
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Parses an RFC 3339 text to milliseconds since the Unix epoch; `None` for other texts, and for times before
/// 1970.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    if text.len() > MAX_TIME_TEXT || !text.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let sign = |at: usize, wanted: &[u8]| text.as_bytes().get(at).is_some_and(|byte| wanted.contains(byte));
    let marks = sign(4, b"-") && sign(7, b"-") && sign(10, b"Tt ") && sign(13, b":") && sign(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // A leap second counts as the second before it.
    let within = hour < 24 && minute < 60 && second <= 60;
    if !marks || !within || !(1..=12).contains(&month) || day == 0 || day > days_in(year, month) {
        return None;
    }
    let (milli, zone) = fraction(text.get(19..)?)?;
    let offset_ms = offset(zone)?;
    let days = days_since_epoch(year, month, day)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second.min(59);
    i64::try_from(seconds * 1_000 + milli).ok()?.checked_sub(offset_ms)?.try_into().ok()
}

/// The milliseconds of the fraction before the zone, and the zone.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(digits) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = digits.find(|letter: char| !letter.is_ascii_digit())?;
    let (digits, zone) = digits.split_at(end);
    let padded: String = digits.chars().chain("000".chars()).take(3).collect();
    (!digits.is_empty()).then(|| padded.parse().ok().map(|milli| (milli, zone)))?
}

/// Milliseconds by which local time is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two = |part: &str| (part.len() == 2).then(|| part.parse::<u8>().ok()).flatten();
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 3_600_000 + i64::from(minutes) * 60_000))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; none before it. Source: Howard Hinnant,
/// "chrono-compatible low-level date algorithms", `days_from_civil`, on years that begin in March.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

/// The date of a day since 1970-01-01: `civil_from_days` of the same source.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Parses an optional RFC 3339 text of a request.
///
/// # Errors
/// The deserializer's, for a text of another form.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse(&text)
        .map(Some)
        .ok_or_else(|| D::Error::custom("a time has the form 2026-11-21T23:14:00Z (RFC 3339)"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn knows_moments() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2026-11-21T23:14:00.000Z", 1_795_302_840_000),
            ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ] {
            assert_eq!(format(ms), text);
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        assert_eq!(parse("2026-11-22T01:14:00+02:00"), Some(1_795_302_840_000));
        assert_eq!(parse("2026-11-21t22:44:00.5-00:30"), Some(1_795_302_840_500));
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59Z"));
        assert_eq!(format(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn refuses_what_is_no_time() {
        let bad = "x,2026-11-21,2026-11-21T23:14:00,2026-13-01T00:00:00Z,2026-02-29T00:00:00Z,2026-01-01T24:00:00Z,\
                   2026-01-00T00:00:00Z,1969-12-31T23:59:59Z,1970-01-01T00:00:00+01:00,2026-01-01T00:00:00.Z,\
                   2026-01-01T00:00:00.123,2026-01-01T00:00:00+1:00,2026-01-01T00:00:00+25:00,+026-01-01T00:00:00Z,\
                   0000-01-01T00:00:00Z,2026-01-01T00:00:00Zx,２026-01-01T00:00:00Z";
        for text in bad.split(',').chain([""]) {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_survives(ms in 0..=253_402_300_799_999u64) {
            prop_assert_eq!(parse(&format(ms)), Some(ms));
        }

        #[test]
        fn no_text_panics(text in ".{0,48}") {
            let _ = parse(&text);
        }
    }
}
