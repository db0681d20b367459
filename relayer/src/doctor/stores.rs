//! Checks every publisher, aggregator and the head index with one request each, and compares their clocks
//! with this machine's.

use std::time::{Duration, Instant};

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    limits::MAX_CLOCK_SKEW_MS,
    store::{HeadIndex as _, StoreError},
};
use baton_walrus_client::{differing_shards, http_client, http_date};
use reqwest::{Method, StatusCode, header};

use super::{
    Subject,
    codes::{self, Code},
    report::Check,
};
use crate::{config::WalrusSettings, setup, time::now_ms};

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Threshold for a slow answer without content.
const SLOW: Duration = Duration::from_secs(2);
/// Half of a date's resolution of one second.
const HALF_SECOND_MS: u64 = 500;
/// Earliest plausible time, before this program existed: 2025-01-01.
const EARLIEST_MS: u64 = 1_735_689_600_000;
/// Latest plausible time: 2100-01-01.
const LATEST_MS: u64 = 4_102_444_800_000;

/// A server of the store, by its role.
#[derive(Clone, Copy, Debug)]
struct StoreServer {
    kind: &'static str,
    silent: Code,
    method: fn() -> Method,
}

const AGGREGATOR: StoreServer =
    StoreServer { kind: "aggregator", silent: codes::AGGREGATOR_SILENT, method: || Method::HEAD };
const PUBLISHER: StoreServer =
    StoreServer { kind: "publisher", silent: codes::PUBLISHER_SILENT, method: || Method::GET };

/// One server's answer.
#[derive(Debug)]
enum StoreAnswer {
    Silent(String),
    Status {
        status: StatusCode,
        took: Duration,
        /// How far this machine's clock is ahead, and the uncertainty, in milliseconds.
        ahead_ms: Option<(i64, u64)>,
        /// The server's shard count, if it announces another one than the settings have.
        other_shards: Option<u16>,
    },
}

/// The checks of the stores and of the clock.
pub(super) async fn check(subject: &Subject) -> (Check, Check) {
    let mut ahead = Vec::new();
    let store = check_stores(subject, &mut ahead).await;
    (store, judge_clock(subject.now_ms, &ahead))
}

/// Adds to `ahead` the offsets of this machine's clock, by server.
async fn check_stores(subject: &Subject, ahead: &mut Vec<(String, i64, u64)>) -> Check {
    let Some(walrus) = &subject.settings.walrus else {
        return Check::skipped(
            "store",
            "none is configured: contents stay in the database, and there are no conversations over HTTP",
        );
    };
    let mut check = Check::new("store");
    let store = setup::store(walrus);
    if let Err(error) = &store {
        check.found(codes::STORE_TOKEN_BROKEN, format!("{error:#}"));
    }
    if subject.offline {
        check.saw("offline: the stores were not asked");
        return check;
    }
    for (server, url, path) in servers(walrus) {
        let answer = ask(server, url, &path, walrus.shards).await;
        if let StoreAnswer::Status { ahead_ms: Some((ahead_ms, margin_ms)), .. } = answer {
            ahead.push((shown(url).to_owned(), ahead_ms, margin_ms));
        }
        judge(&mut check, server, shown(url), &answer);
    }
    ahead.dedup_by(|later, first| later.0 == first.0);
    if let (Some(url), Ok(store)) = (&walrus.heads, &store) {
        match store.resolve(HeadIndexKey([0; 32])).await {
            Ok(_) => check.saw(format!("head index {} answers", shown(url))),
            Err(StoreError::Unavailable { reason, .. }) => {
                check.found(codes::HEADS_SILENT, format!("{}: {reason}", shown(url)));
            }
            Err(error) => check.found(codes::HEADS_MISSING, format!("{}: {error}", shown(url))),
        }
    }
    check
}

/// All servers with the paths to ask for. Any answer shows that a server is up; no store has this blob.
fn servers(walrus: &WalrusSettings) -> impl Iterator<Item = (StoreServer, &String, String)> {
    let blob = format!("v1/blobs/{}", BlobId([0; 32]));
    let aggregators = walrus.aggregators.iter().map(move |url| (AGGREGATOR, url, blob.clone()));
    aggregators.chain(walrus.publishers.iter().map(|url| (PUBLISHER, url, "v1/api".to_owned())))
}

/// A URL without its query, which may hold a secret.
fn shown(url: &str) -> &str {
    url.split_once('?').map_or(url, |(base, _)| base)
}

async fn ask(server: StoreServer, url: &str, path: &str, shards: u16) -> StoreAnswer {
    let query = url.split_once('?').map(|(_, query)| query);
    let mut full = format!("{}/{path}", shown(url).trim_end_matches('/'));
    if let Some(query) = query {
        full = format!("{full}?{query}");
    }
    let (begin, asked_ms) = (Instant::now(), now_ms());
    let client = match http_client::builder_for(url).timeout(TIMEOUT).build() {
        Ok(client) => client,
        Err(error) => return StoreAnswer::Silent(http_client::describe(&error)),
    };
    match client.request((server.method)(), full).send().await {
        Err(error) => StoreAnswer::Silent(http_client::describe(&error)),
        Ok(answer) => {
            let took = begin.elapsed();
            let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
            let ahead_ms = date.and_then(http_date).map(|seconds| compare(seconds, asked_ms, took));
            let other_shards = differing_shards(answer.headers(), shards);
            StoreAnswer::Status { status: answer.status(), took, ahead_ms, other_shards }
        }
    }
}

/// How far this machine is ahead of a server's date, with its uncertainty. The server's second lies between
/// request and answer.
fn compare(seconds: u64, asked_ms: u64, took: Duration) -> (i64, u64) {
    let half_ms = u64::try_from(took.as_millis() / 2).unwrap_or(u64::MAX);
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let here = signed(asked_ms.saturating_add(half_ms));
    let there = signed(seconds.saturating_mul(1000).saturating_add(HALF_SECOND_MS));
    (here.saturating_sub(there), half_ms.saturating_add(HALF_SECOND_MS))
}

fn judge(check: &mut Check, server: StoreServer, url: &str, answer: &StoreAnswer) {
    let kind = server.kind;
    match answer {
        StoreAnswer::Silent(reason) => check.found(server.silent, format!("{url}: {reason}")),
        StoreAnswer::Status { status, .. } if status.is_server_error() => {
            check.found(server.silent, format!("{url} says {status}"));
        }
        StoreAnswer::Status { took, other_shards, .. } => {
            if let Some(theirs) = other_shards {
                check.found(codes::SHARDS_DIFFER, format!("{kind} {url} has {theirs}"));
            }
            check.saw(format!("{kind} {url} answers in {} ms", took.as_millis()));
            if *took > SLOW {
                check.found(codes::STORE_SLOW, format!("{kind} {url} took {} ms", took.as_millis()));
            }
        }
    }
}

fn judge_clock(now_ms: u64, ahead: &[(String, i64, u64)]) -> Check {
    let mut check = Check::new("clock");
    if !(EARLIEST_MS..LATEST_MS).contains(&now_ms) {
        check.found(codes::CLOCK_ABSURD, format!("{} s since 1970", now_ms / 1000));
        return check;
    }
    if ahead.is_empty() {
        return Check::skipped("clock", "no store told its time, so this machine's clock was not compared");
    }
    for (url, ahead_ms, margin_ms) in ahead {
        let off = ahead_ms.unsigned_abs().saturating_sub(*margin_ms);
        if off > MAX_CLOCK_SKEW_MS {
            let which = if *ahead_ms > 0 { "ahead of" } else { "behind" };
            let allowed = MAX_CLOCK_SKEW_MS / 1000;
            let detail = format!("it is {} s {which} that of {url}; {allowed} s are allowed", off / 1000);
            check.found(codes::CLOCK_OFF, detail);
        } else {
            check.saw(format!("within {} s of {url}", (off + margin_ms).div_ceil(1000)));
        }
    }
    check
}

#[cfg(test)]
mod tests {
    use super::{super::report::codes_of, *};

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn clocks_are_compared_within_the_time_that_the_answer_took() {
        assert_eq!(compare(1_800_000_000, NOW + 200, Duration::from_millis(600)), (0, 800));
        assert_eq!(compare(1_800_000_000, NOW + 90_500, Duration::ZERO), (90_000, 500));
    }

    #[test]
    fn a_clock_is_wrong_beyond_what_the_protocol_allows() {
        let skew = i64::try_from(MAX_CLOCK_SKEW_MS).unwrap();
        let codes = |now_ms, ahead_ms| codes_of(&judge_clock(now_ms, &[("u".to_owned(), ahead_ms, 500)]));
        assert!(codes(NOW, skew + 500).is_empty());
        assert_eq!(codes(NOW, skew + 501), ["R801"]);
        assert_eq!(codes(NOW, -skew - 501), ["R801"]);
        assert_eq!(codes(0, 0), ["R802"]);
        assert!(codes_of(&judge_clock(NOW, &[])).is_empty());
    }

    #[test]
    fn servers_are_judged_by_their_answers_and_secrets_stay_out() {
        let answered =
            |status, took| StoreAnswer::Status { status, took, ahead_ms: None, other_shards: None };
        let other = StoreAnswer::Status {
            status: StatusCode::OK,
            took: Duration::ZERO,
            ahead_ms: None,
            other_shards: Some(10),
        };
        for (server, answer, codes) in [
            (AGGREGATOR, answered(StatusCode::NOT_FOUND, Duration::ZERO), vec![]),
            (AGGREGATOR, answered(StatusCode::BAD_GATEWAY, Duration::ZERO), vec!["R401"]),
            (PUBLISHER, StoreAnswer::Silent(String::new()), vec!["R402"]),
            (PUBLISHER, answered(StatusCode::OK, SLOW + Duration::from_millis(1)), vec!["R403"]),
            (PUBLISHER, other, vec!["R407"]),
        ] {
            let mut check = Check::new("store");
            judge(&mut check, server, "http://x", &answer);
            assert_eq!(codes_of(&check), codes, "{answer:?}");
        }
        assert_eq!(shown("http://x/?token=secret"), "http://x/");
    }
}
