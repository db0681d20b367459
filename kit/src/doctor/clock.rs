//! Compares this machine's clock with those of servers.

use std::time::Duration;

use super::{Check, Code};

/// Half of a date's resolution of one second.
const HALF_SECOND_MS: u64 = 500;
/// Earliest plausible time, before these programs existed: 2025-01-01.
const EARLIEST_MS: u64 = 1_735_689_600_000;
/// Latest plausible time: 2100-01-01.
const LATEST_MS: u64 = 4_102_444_800_000;

/// This machine's clock, compared with a server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The server's URL.
    pub url: String,
    /// How far this machine is ahead, in milliseconds.
    pub ahead_ms: i64,
    /// Uncertainty of that, in milliseconds.
    pub margin_ms: u64,
}

impl ClockReading {
    /// Compares with the date of an answer, in seconds since 1970. That second lies between request and answer.
    #[must_use]
    pub fn new(url: &str, seconds: u64, asked_ms: u64, took: Duration) -> Self {
        let half_ms = u64::try_from(took.as_millis() / 2).unwrap_or(u64::MAX);
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let here = signed(asked_ms.saturating_add(half_ms));
        let there = signed(seconds.saturating_mul(1000).saturating_add(HALF_SECOND_MS));
        let margin_ms = half_ms.saturating_add(HALF_SECOND_MS);
        Self { url: url.to_owned(), ahead_ms: here.saturating_sub(there), margin_ms }
    }
}

/// The codes of a wrong clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockCodes {
    /// It is years off.
    pub absurd: Code,
    /// A server's clock differs.
    pub off: Code,
}

/// Checks this machine's clock; `now` is its time for people. Returns whether a comparison makes sense at all.
pub fn check_clock(
    check: &mut Check,
    codes: ClockCodes,
    (now_ms, now): (u64, &str),
    readings: &[ClockReading],
    allowed_ms: u64,
) -> bool {
    if !(EARLIEST_MS..LATEST_MS).contains(&now_ms) {
        check.found(codes.absurd, now);
        return false;
    }
    for ClockReading { url, ahead_ms, margin_ms } in readings {
        let off = ahead_ms.unsigned_abs().saturating_sub(*margin_ms);
        if off > allowed_ms {
            let which = if *ahead_ms > 0 { "ahead of" } else { "behind" };
            let (seconds, allowed) = (off / 1000, allowed_ms / 1000);
            check.found(
                codes.off,
                format!("it is {seconds} s {which} that of {url}; {allowed} s are allowed"),
            );
        } else {
            check.saw(format!("within {} s of {url}", (off + margin_ms).div_ceil(1000)));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn clocks_are_compared_within_the_time_that_the_answer_took() {
        let reading = |asked_ms, took| {
            let reading = ClockReading::new("u", 1_800_000_000, asked_ms, Duration::from_millis(took));
            (reading.ahead_ms, reading.margin_ms)
        };
        assert_eq!(reading(NOW + 200, 600), (0, 800));
        assert_eq!(reading(NOW + 90_500, 0), (90_000, 500));
    }

    #[test]
    fn a_clock_is_wrong_beyond_the_allowed_difference() {
        let codes = ClockCodes {
            absurd: Code::problem("K1", "absurd", "set it"),
            off: Code::problem("K2", "off", "set it"),
        };
        for (now_ms, ahead_ms, expected) in [
            (NOW, 90_500, &[][..]),
            (NOW, 90_501, &["K2"]),
            (NOW, -90_500, &[]),
            (NOW, -90_501, &["K2"]),
            (0, 0, &["K1"]),
            (LATEST_MS, 0, &["K1"]),
        ] {
            let mut check = Check::new("clock");
            let reading = ClockReading { url: "u".to_owned(), ahead_ms, margin_ms: 500 };
            let compared = check_clock(&mut check, codes, (now_ms, "now"), &[reading], 90_000);
            assert_eq!(
                (check.codes().as_slice(), compared),
                (expected, now_ms == NOW),
                "{now_ms} {ahead_ms}"
            );
        }
    }
}
