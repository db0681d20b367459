//! Checks the publishers, the aggregators and the head index.

use baton_kit::doctor::{ClockReading, StoreCodes, StoreServers, check_permission, check_stores};

use super::{Check, Subject, codes};
use crate::{config::HeadsSetting, daemon::http_store};

const CODES: StoreCodes = StoreCodes {
    silent: codes::STORE_SILENT,
    publisher_silent: codes::PUBLISHER_SILENT,
    aggregator_silent: codes::AGGREGATOR_SILENT,
    heads_silent: codes::HEADS_SILENT,
    heads_missing: codes::HEADS_MISSING,
    slow: codes::STORE_SLOW,
    shards_differ: codes::SHARDS_DIFFER,
};

/// Also how this machine's clock compares with the stores'.
pub(super) async fn check(subject: &Subject) -> (Check, Vec<ClockReading>) {
    if subject.offline {
        return (Check::skipped("store", "offline"), Vec::new());
    }
    let settings = &subject.settings;
    let mut check = Check::new("store");
    let store = http_store(settings);
    if let Err(failure) = &store {
        check.found(codes::TOKEN_BROKEN, failure.to_string());
    }
    let heads = match &settings.heads() {
        HeadsSetting::Off => {
            check.saw("no head index is configured");
            Vec::new()
        }
        HeadsSetting::At(url) => vec![url.clone()],
    };
    let servers = StoreServers {
        publishers: &settings.publisher(),
        aggregators: &settings.aggregator(),
        heads: &heads,
        one_index: false,
        shards: settings.shards(),
    };
    let clocks = check_stores(&mut check, &CODES, servers).await;
    if let Ok(store) = store {
        check_permission(&mut check, codes::PUT_REFUSED, &store).await;
    }
    (check, clocks)
}
