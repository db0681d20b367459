//! The clock and time formats: RFC 3339 in UTC with milliseconds outside, milliseconds since the Unix epoch inside.

use serde::{Deserialize, Deserializer, de::Error as _};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Longest text that is parsed as a time.
const MAX_TIME_TEXT: usize = 40;

pub(crate) use baton_kit::clock::now_ms;
pub(crate) use baton_memory::api::rfc3339 as format;

/// Parses an RFC 3339 text to milliseconds since the Unix epoch; `None` for other texts, and for times before
/// 1970.
#[must_use]
pub(crate) fn parse(text: &str) -> Option<u64> {
    // The library takes any character between date and time; RFC 3339 has these.
    let separated = text.as_bytes().get(10).is_some_and(|byte| b"Tt ".contains(byte));
    if text.len() > MAX_TIME_TEXT || !separated {
        return None;
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos().div_euclid(1_000_000)).ok()
}

/// Parses an optional RFC 3339 text of a request.
///
/// # Errors
/// The deserializer's, for a text of another form.
pub(crate) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
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
        assert_eq!(parse("2026-11-21 23:14:00z"), Some(1_795_302_840_000));
        assert_eq!(parse("2026-11-21t22:44:00.5-00:30"), Some(1_795_302_840_500));
        // A leap second is the last moment before it.
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59.999Z"));
        assert_eq!(format(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn refuses_what_is_no_time() {
        let bad = "x,2026-11-21,2026-11-21T23:14:00,2026-13-01T00:00:00Z,2026-02-29T00:00:00Z,2026-01-01T24:00:00Z,\
                   2026-01-00T00:00:00Z,1969-12-31T23:59:59Z,1970-01-01T00:00:00+01:00,2026-01-01T00:00:00.Z,\
                   2026-01-01T00:00:00.123,2026-01-01T00:00:00+1:00,2026-01-01T00:00:00+25:00,+026-01-01T00:00:00Z,\
                   2026-01-01X00:00:00Z,2026-01-01_00:00:00Z,2026-01-01T00:00:00+02:60,\
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
