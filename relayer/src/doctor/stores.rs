//! Checks every publisher, aggregator and the head index with one request each, and compares their clocks
//! with this machine's.

use std::time::{Duration, Instant};

use baton_kit::doctor::{ClockCodes, ClockReading, Code, check_clock};
use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    limits::MAX_CLOCK_SKEW_MS,
    store::{HeadIndex as _, StoreError},
};
use baton_walrus_client::{differing_shards, http_client, http_date};
use reqwest::{Method, StatusCode, header};

use super::{Check, Subject, codes};
use crate::{config::WalrusSettings, setup, time::now_ms};

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Threshold for a slow answer without content.
const SLOW: Duration = Duration::from_secs(2);
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
        /// This machine's clock compared with the answer's date.
        clock: Option<ClockReading>,
        /// The server's shard count, if it announces another one than the settings have.
        other_shards: Option<u16>,
    },
}

/// The checks of the stores and of the clock.
pub(super) async fn check(subject: &Subject) -> (Check, Check) {
    let mut readings = Vec::new();
    let store = check_stores(subject, &mut readings).await;
    (store, judge_clock(subject.now_ms, &readings))
}

/// Adds to `readings` how this machine's clock compares, by server.
async fn check_stores(subject: &Subject, readings: &mut Vec<ClockReading>) -> Check {
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
        judge(&mut check, server, shown(url), &answer);
        if let StoreAnswer::Status { clock: Some(reading), .. } = answer {
            readings.push(reading);
        }
    }
    readings.dedup_by(|later, first| later.url == first.url);
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
            let seconds = date.and_then(http_date);
            let clock = seconds.map(|seconds| ClockReading::new(shown(url), seconds, asked_ms, took));
            let other_shards = differing_shards(answer.headers(), shards);
            StoreAnswer::Status { status: answer.status(), took, clock, other_shards }
        }
    }
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

    #[test]
    fn servers_are_judged_by_their_answers_and_secrets_stay_out() {
        let answered = |status, took| StoreAnswer::Status { status, took, clock: None, other_shards: None };
        let other = StoreAnswer::Status {
            status: StatusCode::OK,
            took: Duration::ZERO,
            clock: None,
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
            assert_eq!(check.codes(), codes, "{answer:?}");
        }
        assert_eq!(shown("http://x/?token=secret"), "http://x/");
    }
}
