//! Asks each server of a store for something without content, and judges the answers.

use std::time::{Duration, Instant};

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{HeadIndex as _, StoreError},
};
use baton_walrus_client::{
    HttpStore, PutPermission, ShardCount, differing_shards, http_client, http_date, http_store::RetryPolicy,
};
use futures::future::join_all;
use reqwest::{Method, header};
use tokio::time::timeout;

use super::{Check, ClockReading, Code};
use crate::{clock::now_ms, stores::StoreOptions};

/// Time for a server to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Threshold for a slow answer without content: every turn waits for some of them.
const SLOW: Duration = Duration::from_secs(2);

/// The codes of a store's problems.
#[derive(Clone, Copy, Debug)]
pub struct StoreCodes {
    /// A server that fills several roles does not answer in any of them.
    pub silent: Code,
    /// A publisher does not answer.
    pub publisher_silent: Code,
    /// An aggregator does not answer.
    pub aggregator_silent: Code,
    /// A head index does not answer.
    pub heads_silent: Code,
    /// A server answers and has no head index.
    pub heads_missing: Code,
    /// A server answers slowly.
    pub slow: Code,
    /// A server announces another number of shards.
    pub shards_differ: Code,
    /// The options cannot be used: usually a token's file.
    pub unusable: Code,
    /// A publisher refuses this program's blobs.
    pub refused: Code,
}

/// The use of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerRole {
    Publisher,
    Aggregator,
    HeadIndex,
}

impl ServerRole {
    const fn name(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Aggregator => "aggregator",
            Self::HeadIndex => "head index",
        }
    }
}

/// A server's answer in one role.
#[derive(Clone, Debug)]
enum ServerAnswer {
    /// None, or that of a broken server.
    Silent(String),
    /// It is no head index.
    Missing(String),
    Ready {
        took: Duration,
        clock: Option<ClockReading>,
        /// Another number of shards than the set one, and that one.
        other_shards: Option<(u16, u16)>,
    },
}

/// A server in one role, with its answer. The URL has no query, which may hold a secret.
type AskedServer<'a> = (ServerRole, &'a str, ServerAnswer);

/// Asks all servers at once, and whether the publishers accept blobs. Returns how this machine's clock compares with
/// theirs. With `one_index`, one head index is enough: the first that answers is used.
pub async fn check_stores(
    check: &mut Check,
    codes: &StoreCodes,
    options: &StoreOptions,
    one_index: bool,
) -> Vec<ClockReading> {
    let all = [
        (ServerRole::Publisher, &options.publishers),
        (ServerRole::Aggregator, &options.aggregators),
        (ServerRole::HeadIndex, &options.heads),
    ];
    let all = all.into_iter().flat_map(|(role, urls)| urls.iter().map(move |url| (role, url.as_str())));
    let asked = all.map(async |(role, url)| {
        let answer = match role {
            ServerRole::HeadIndex => ask_index(url).await,
            ServerRole::Publisher => ask(Method::GET, url, "v1/api", options.shards).await,
            // Any answer shows that the server is up; no store has this blob.
            ServerRole::Aggregator => {
                ask(Method::HEAD, url, &format!("v1/blobs/{}", BlobId([0; 32])), options.shards).await
            }
        };
        (role, shown(url), answer)
    });
    let answers = join_all(asked).await;
    judge(check, codes, one_index, &answers);
    match options.open(RetryPolicy { base_timeout: TIMEOUT, ..RetryPolicy::default() }) {
        Ok(store) => check_permission(check, codes.refused, &store).await,
        Err(error) => check.found(codes.unusable, error.to_string()),
    }
    let clocks = answers.into_iter().filter_map(|(_, _, answer)| match answer {
        ServerAnswer::Ready { clock, .. } => clock,
        ServerAnswer::Silent(_) | ServerAnswer::Missing(_) => None,
    });
    let mut clocks: Vec<ClockReading> = clocks.collect();
    clocks.dedup_by(|later, first| later.url == first.url);
    clocks
}

/// Asks whether the publishers accept blobs with this program's token. Stores nothing. A silent publisher is
/// none of the findings.
async fn check_permission(check: &mut Check, refused: Code, store: &HttpStore) {
    for (publisher, permission) in store.put_permissions().await {
        match permission {
            PutPermission::Granted => check.saw(format!("publisher {publisher} accepts blobs from here")),
            PutPermission::Refused { reason } => {
                check.found(refused, failure_of("publisher", &publisher, &reason));
            }
            _ => {}
        }
    }
}

/// A URL without its query.
fn shown(url: &str) -> &str {
    url.split_once('?').map_or(url, |(base, _)| base)
}

/// The failure of a server. Its URL is named once: most reasons have it.
fn failure_of(role: &str, url: &str, reason: &str) -> String {
    let named = reason.contains(url.trim_end_matches('/'));
    if named { format!("{role}: {reason}") } else { format!("{role} {url}: {reason}") }
}

async fn ask(method: Method, url: &str, path: &str, ours: Option<u16>) -> ServerAnswer {
    let mut full = format!("{}/{path}", shown(url).trim_end_matches('/'));
    if let Some((_, query)) = url.split_once('?') {
        full = format!("{full}?{query}");
    }
    let begin = Instant::now();
    let asked_ms = now_ms();
    let sent = match http_client::builder_for(url).timeout(TIMEOUT).build() {
        Ok(client) => client.request(method, full).send().await,
        Err(error) => Err(error),
    };
    let answer = match sent {
        Ok(answer) if answer.status().is_server_error() => {
            return ServerAnswer::Silent(format!("it answers {}", answer.status()));
        }
        Ok(answer) => answer,
        Err(error) => return ServerAnswer::Silent(http_client::describe(&error)),
    };
    let took = begin.elapsed();
    let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok()).and_then(http_date);
    ServerAnswer::Ready {
        took,
        clock: date.map(|seconds| ClockReading::new(shown(url), seconds, asked_ms, took)),
        other_shards: ours
            .and_then(|ours| differing_shards(answer.headers(), ours).map(|theirs| (theirs, ours))),
    }
}

async fn ask_index(url: &str) -> ServerAnswer {
    let store = match HttpStore::builder(url, url, ShardCount::MAINNET).heads(url).build() {
        Ok(store) => store,
        Err(error) => return ServerAnswer::Missing(error.to_string()),
    };
    let begin = Instant::now();
    match timeout(TIMEOUT, store.resolve(HeadIndexKey([0; 32]))).await {
        Ok(Ok(_)) => ServerAnswer::Ready { took: begin.elapsed(), clock: None, other_shards: None },
        Ok(Err(StoreError::Unavailable { reason, .. })) => ServerAnswer::Silent(reason),
        Ok(Err(error)) => ServerAnswer::Missing(error.to_string()),
        Err(_) => ServerAnswer::Silent(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

fn judge(check: &mut Check, codes: &StoreCodes, one_index: bool, answers: &[AskedServer<'_>]) {
    let is_ready = |answer: &ServerAnswer| matches!(answer, ServerAnswer::Ready { .. });
    let is_index = |role: &ServerRole| *role == ServerRole::HeadIndex;
    let has_index = answers.iter().any(|(role, _, answer)| is_index(role) && is_ready(answer));
    let needless = |role, answer| one_index && has_index && is_index(role) && !is_ready(answer);
    let answers = || answers.iter().filter(|(role, _, answer)| !needless(role, answer));
    let mut named = Vec::new();
    for (role, url, answer) in answers() {
        let server = format!("{} {url}", role.name());
        match answer {
            ServerAnswer::Silent(reason) => {
                let uses: Vec<_> = answers().filter(|(_, other, _)| other == url).collect();
                let all_silent = uses.iter().all(|(_, _, answer)| matches!(answer, ServerAnswer::Silent(_)));
                let code = match role {
                    _ if all_silent && uses.len() > 1 => codes.silent,
                    ServerRole::Publisher => codes.publisher_silent,
                    ServerRole::Aggregator => codes.aggregator_silent,
                    ServerRole::HeadIndex => codes.heads_silent,
                };
                if code != codes.silent {
                    check.found(code, failure_of(role.name(), url, reason));
                } else if !named.contains(url) {
                    named.push(url);
                    let roles: Vec<_> = uses.iter().map(|(role, ..)| role.name()).collect();
                    check.found(code, failure_of(&roles.join(", "), url, reason));
                }
            }
            ServerAnswer::Missing(reason) => {
                check.found(codes.heads_missing, failure_of(role.name(), url, reason));
            }
            ServerAnswer::Ready { took, other_shards, .. } => {
                let took_ms = took.as_millis();
                check.saw(format!("{server} answers in {took_ms} ms"));
                if *took > SLOW {
                    check.found(codes.slow, format!("{server} took {took_ms} ms"));
                }
                if let Some((theirs, ours)) = other_shards {
                    check.found(codes.shards_differ, format!("{server} has {theirs}, these settings {ours}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: StoreCodes = StoreCodes {
        silent: Code::problem("S1", "silent", "start it"),
        publisher_silent: Code::problem("S2", "publisher", "start it"),
        aggregator_silent: Code::problem("S3", "aggregator", "start it"),
        heads_silent: Code::problem("S4", "index", "start it"),
        heads_missing: Code::warning("S5", "no index", "name one"),
        slow: Code::warning("S6", "slow", "wait"),
        shards_differ: Code::problem("S7", "shards", "correct them"),
        unusable: Code::problem("S8", "unusable", "correct it"),
        refused: Code::problem("S9", "refused", "name a token"),
    };

    fn judged(one_index: bool, answers: &[AskedServer<'_>]) -> Check {
        let mut check = Check::new("store");
        judge(&mut check, &CODES, one_index, answers);
        check
    }

    #[test]
    fn one_silent_server_is_one_finding_and_its_url_is_named_once() {
        use ServerRole::{Aggregator, HeadIndex, Publisher};
        let silent = || ServerAnswer::Silent("could not connect to http://a (refused)".to_owned());
        let missing = || ServerAnswer::Missing("not found".to_owned());
        let ready = |took| ServerAnswer::Ready { took, clock: None, other_shards: None };
        let fast = || ready(Duration::ZERO);
        let other = ServerAnswer::Ready { took: Duration::ZERO, clock: None, other_shards: Some((10, 1000)) };
        let all = [Publisher, Aggregator, HeadIndex].map(|role| (role, "http://a", silent()));
        let check = judged(false, &all);
        assert_eq!(check.codes(), ["S1"]);
        let detail = "publisher, aggregator, head index: could not connect to http://a (refused)";
        assert_eq!(check.findings[0].detail, detail);
        for (answers, one_index, codes) in [
            (vec![(Publisher, "http://a", silent())], false, &["S2"][..]),
            (
                vec![(Aggregator, "http://a", silent()), (Publisher, "http://b", silent())],
                false,
                &["S3", "S2"],
            ),
            (vec![(Aggregator, "http://a", silent()), (Publisher, "http://a", fast())], false, &["S3"]),
            (vec![(HeadIndex, "http://a", silent()), (Publisher, "http://a", fast())], false, &["S4"]),
            (vec![(HeadIndex, "http://a", missing()), (HeadIndex, "http://b", fast())], false, &["S5"]),
            (vec![(HeadIndex, "http://a", missing()), (HeadIndex, "http://b", fast())], true, &[]),
            (vec![(Publisher, "http://a", ready(SLOW + Duration::from_millis(1)))], false, &["S6"]),
            (vec![(Publisher, "http://a", other)], false, &["S7"]),
        ] {
            assert_eq!(judged(one_index, &answers).codes(), codes, "{answers:?}");
        }
        let detail = &judged(false, &[(HeadIndex, "http://b", missing())]).findings[0].detail;
        assert_eq!(detail, "head index http://b: not found");
        assert_eq!(shown("http://x/?token=secret"), "http://x/");
    }
}
