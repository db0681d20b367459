//! Checks every publisher, aggregator and the head index, and compares their clocks with this machine's.

use baton_kit::doctor::{ClockCodes, ClockReading, StoreCodes, check_clock, check_stores};
use baton_proto::limits::MAX_CLOCK_SKEW_MS;

use super::{Check, Subject, codes};
use crate::{setup::store_options, time::now_ms};

const CODES: StoreCodes = StoreCodes {
    silent: codes::STORE_SILENT,
    publisher_silent: codes::PUBLISHER_SILENT,
    aggregator_silent: codes::AGGREGATOR_SILENT,
    heads_silent: codes::HEADS_SILENT,
    heads_missing: codes::HEADS_MISSING,
    slow: codes::STORE_SLOW,
    shards_differ: codes::SHARDS_DIFFER,
    unusable: codes::STORE_TOKEN_BROKEN,
    refused: codes::PUT_REFUSED,
};

/// The checks of the stores and of the clock.
pub(super) async fn check(subject: &Subject) -> (Check, Check) {
    let (store, readings) = check_walrus(subject).await;
    (store, judge_clock(now_ms(), &readings))
}

/// Also how this machine's clock compares with the stores'.
async fn check_walrus(subject: &Subject) -> (Check, Vec<ClockReading>) {
    let options = &subject.settings.options;
    if !subject.settings.has_stores {
        let why =
            "none is configured: contents stay in the database, and there are no conversations over HTTP";
        return (Check::skipped("store", why), Vec::new());
    }
    let mut check = Check::new("store");
    let readings = check_stores(&mut check, &CODES, &store_options(options), false).await;
    (check, readings)
}

fn judge_clock(now_ms: u64, readings: &[ClockReading]) -> Check {
    let mut check = Check::new("clock");
    let codes = ClockCodes { absurd: codes::CLOCK_ABSURD, off: codes::CLOCK_OFF };
    let now = format!("{} s since 1970", now_ms / 1000);
    if check_clock(&mut check, codes, (now_ms, &now), readings, MAX_CLOCK_SKEW_MS) && readings.is_empty() {
        return Check::skipped("clock", "no store told its time, so this machine's clock was not compared");
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_beyond_what_the_protocol_allows() {
        let ahead_ms = i64::try_from(MAX_CLOCK_SKEW_MS).unwrap() + 1;
        let reading = ClockReading { url: "u".to_owned(), ahead_ms, margin_ms: 0 };
        let now_ms = 1_800_000_000_000;
        assert_eq!(judge_clock(now_ms, &[reading]).codes(), ["R801"]);
        assert_eq!(judge_clock(0, &[]).codes(), ["R802"]);
        assert!(judge_clock(now_ms, &[]).codes().is_empty());
    }
}
