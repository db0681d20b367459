//! Checks the publishers, the aggregators and the head index.

use baton_kit::doctor::{ClockReading, StoreCodes, check_stores};

use super::{Check, Subject, codes};
use crate::daemon::store_options;

const CODES: StoreCodes = StoreCodes {
    silent: codes::STORE_SILENT,
    publisher_silent: codes::PUBLISHER_SILENT,
    aggregator_silent: codes::AGGREGATOR_SILENT,
    heads_silent: codes::HEADS_SILENT,
    heads_missing: codes::HEADS_MISSING,
    slow: codes::STORE_SLOW,
    shards_differ: codes::SHARDS_DIFFER,
    unusable: codes::TOKEN_BROKEN,
    refused: codes::PUT_REFUSED,
};

/// Also how this machine's clock compares with the stores'.
pub(super) async fn check(subject: &Subject) -> (Check, Vec<ClockReading>) {
    if subject.offline {
        return (Check::skipped("store", "offline"), Vec::new());
    }
    let (mut check, options) = (Check::new("store"), store_options(&subject.settings));
    if options.heads.is_empty() {
        check.saw("no head index is configured");
    }
    let clocks = check_stores(&mut check, &CODES, &options, false).await;
    (check, clocks)
}
