//! Checks every publisher, aggregator and the head index with one request each, and measures its time.
//! Compares their clocks with this machine's.

use std::time::{Duration, Instant};

use baton_kit::doctor::{ClockReading, Code};
use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{HeadIndex as _, StoreError},
};
use baton_walrus_client::{HttpStore, PutPermission, differing_shards, http_client, http_date};
use reqwest::{Method, header};

use super::{Check, Subject, codes};
use crate::{
    cli::{
        Failure,
        time::{now_ms, short},
    },
    config::HeadsSetting,
    daemon::http_store,
};

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Threshold for a slow answer without content: every turn waits for some of them.
const SLOW: Duration = Duration::from_secs(2);

pub(super) async fn check(subject: &Subject) -> Result<(Check, Vec<ClockReading>), Failure> {
    if subject.offline {
        return Ok((Check::skipped("store", "offline"), Vec::new()));
    }
    let settings = &subject.settings;
    let (mut check, mut dates) = (Check::new("store"), Vec::new());
    // Any answer shows that the server is up; no store has this blob.
    let blob = format!("v1/blobs/{}", BlobId([0; 32]));
    for url in &settings.aggregators {
        ask(
            Method::HEAD,
            url,
            &blob,
            "aggregator",
            codes::AGGREGATOR_SILENT,
            settings.shards,
            &mut check,
            &mut dates,
        )
        .await;
    }
    for url in &settings.publishers {
        ask(
            Method::GET,
            url,
            "v1/api",
            "publisher",
            codes::PUBLISHER_SILENT,
            settings.shards,
            &mut check,
            &mut dates,
        )
        .await;
    }
    match http_store(settings) {
        Ok(store) => {
            check_permission(&store, &mut check).await;
            match &settings.heads {
                HeadsSetting::Off => check.saw("no head index is configured"),
                HeadsSetting::At(url) => check_heads(&store, url, &mut check).await,
            }
        }
        Err(failure) => check.found(codes::TOKEN_BROKEN, failure.to_string()),
    }
    dates.dedup_by(|later, first| later.url == first.url);
    Ok((check, dates))
}

/// Whether the publishers accept this node's blobs. Stores nothing.
async fn check_permission(store: &HttpStore, check: &mut Check) {
    for (publisher, permission) in store.put_permissions().await {
        match permission {
            PutPermission::Granted => check.saw(format!("publisher {publisher} accepts this node's blobs")),
            PutPermission::Refused { reason } => {
                check.found(codes::PUT_REFUSED, format!("{publisher}: {reason}"));
            }
            // A silent one has a finding of its own.
            _ => {}
        }
    }
}

async fn check_heads(store: &HttpStore, url: &str, check: &mut Check) {
    let begin = Instant::now();
    match store.resolve(HeadIndexKey([0; 32])).await {
        Ok(_) => check.saw(format!("head index {url} answers in {}", short(begin.elapsed()))),
        Err(StoreError::Unavailable { reason, .. }) => {
            check.found(codes::HEADS_SILENT, format!("{url}: {reason}"));
        }
        Err(error) => check.found(codes::HEADS_MISSING, format!("{url}: {error}")),
    }
}

#[expect(clippy::too_many_arguments, reason = "one call for each kind of source")]
async fn ask(
    method: Method,
    url: &str,
    path: &str,
    kind: &str,
    silent: Code,
    shards: u16,
    check: &mut Check,
    dates: &mut Vec<ClockReading>,
) {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let mut full = format!("{}/{path}", base.trim_end_matches('/'));
    if let Some(query) = query {
        full = format!("{full}?{query}");
    }
    let (begin, asked_ms) = (Instant::now(), now_ms());
    let Ok(client) = http_client::builder_for(base).timeout(TIMEOUT).build() else { return };
    let answer = match client.request(method, full).send().await {
        Ok(answer) => answer,
        Err(error) => {
            check.found(silent, format!("{base}: {}", http_client::describe(&error)));
            return;
        }
    };
    let took = begin.elapsed();
    if answer.status().is_server_error() {
        check.found(silent, format!("{base} says {}", answer.status()));
        return;
    }
    check.saw(format!("{kind} {base} answers in {}", short(took)));
    if took > SLOW {
        check.found(codes::STORE_SLOW, format!("{kind} {base} took {}", short(took)));
    }
    if let Some(theirs) = differing_shards(answer.headers(), shards) {
        check.found(codes::SHARDS_DIFFER, format!("{kind} {base} has {theirs}, these settings {shards}"));
    }
    let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok()).and_then(http_date);
    if let Some(seconds) = date {
        dates.push(ClockReading::new(base, seconds, asked_ms, took));
    }
}
