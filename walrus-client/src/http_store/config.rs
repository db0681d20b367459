//! Settings of an [`HttpStore`], checked before the first request.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{ClientBuilder, Url, retry};

use super::{Clients, HttpStore, HttpStoreInner, recent_blobs::RecentBlobs, sources::StoreSources};
use crate::{
    ShardCount,
    http_client::{self, redirects},
    jwt::PublisherToken,
};

/// Time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection stays open. Stores close theirs later (the embedded store after 30 s), so no
/// PUT goes to a connection that is being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Slowest accepted transfer, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Most sources of one role: each call may ask all of them, and a longer list has no use.
const MAX_SOURCES: usize = 16;

/// The reason why a store cannot be set up: it names the setting to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HttpStoreConfigError(String);

/// When requests end, and when they are repeated.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// The part of a request's time that does not depend on its size. Walrus takes some 20 s to certify a blob,
    /// and answers a PUT only then.
    pub base_timeout: Duration,
    /// How often to ask all sources again that failed on their side. Three rounds take a second with their
    /// pauses. Patient callers have their own plans, and impatient callers have other sources.
    pub retries: u32,
    /// Longest wait for a slow aggregator before a further one is asked beside it. A second aggregator costs a
    /// request, a slow one costs the user's time.
    pub hedge: Duration,
    /// How long after a PUT a 404 of that blob is blamed on a cache, and the read repeated.
    pub recently_stored_window: Duration,
    /// How long to look for a blob whose PUT is in doubt, before it counts as lost. It must outlast a 404 in
    /// caches on the way: CloudFront keeps one for 10 s.
    pub probe_window: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base_timeout: Duration::from_secs(60),
            retries: 3,
            hedge: Duration::from_secs(2),
            recently_stored_window: Duration::from_secs(15),
            probe_window: Duration::from_secs(15),
        }
    }
}

impl RetryPolicy {
    /// The time that one transfer of `length` bytes may take.
    pub(super) fn transfer(&self, length: u64) -> Duration {
        self.base_timeout.saturating_add(self.moving(length))
    }

    /// The share of it for the bytes alone.
    pub(super) fn moving(&self, length: u64) -> Duration {
        Duration::from_secs(length / MIN_BYTES_PER_SECOND)
    }

    /// The wait for a source that usually takes this long: twice its time, from a fortieth of the longest wait
    /// on. A quarter of the longest wait if its time is unknown.
    pub(super) fn hedge_delay(&self, latency: Option<Duration>) -> Duration {
        let usual = latency.map_or(self.hedge / 4, |latency| latency.saturating_mul(2));
        usual.clamp(self.hedge / 40, self.hedge)
    }
}

/// Builds an [`HttpStore`]. Take it from [`HttpStore::builder`] or [`HttpStore::endpoints`].
#[derive(Debug, Clone)]
pub struct HttpStoreBuilder {
    publishers: Vec<String>,
    aggregators: Vec<String>,
    token: Option<PublisherToken>,
    heads: Option<String>,
    shards: ShardCount,
    announced: OnceLock<Option<ShardCount>>,
    policy: RetryPolicy,
}

impl HttpStoreBuilder {
    pub(super) fn new(publishers: &[&str], aggregators: &[&str], shards: ShardCount) -> Self {
        let owned = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect();
        Self {
            publishers: owned(publishers),
            aggregators: owned(aggregators),
            token: None,
            heads: None,
            shards,
            announced: OnceLock::from(None),
            policy: RetryPolicy::default(),
        }
    }

    /// Takes the shard count that a server announces, as soon as one does. The given one counts until then, and if none is
    /// announced.
    #[must_use]
    pub fn adopt_shards(mut self) -> Self {
        self.announced = OnceLock::new();
        self
    }

    /// The token for the publishers.
    #[must_use]
    pub fn token(mut self, token: PublisherToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Base URL of the store with the head index; the first publisher's if not set.
    #[must_use]
    pub fn heads(mut self, url: &str) -> Self {
        self.heads = Some(url.to_owned());
        self
    }

    /// When requests end, and when they are repeated.
    #[must_use]
    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Checks the settings. Connects to nothing.
    ///
    /// # Errors
    /// [`HttpStoreConfigError`], naming the setting.
    pub fn build(self) -> Result<HttpStore, HttpStoreConfigError> {
        let publishers = distinct("publisher", &self.publishers)?;
        let aggregators = distinct("aggregator", &self.aggregators)?;
        if aggregators.is_empty() {
            return Err(HttpStoreConfigError("at least one aggregator is needed".to_owned()));
        }
        let heads = match &self.heads {
            Some(url) => Some(base_url("head index", url)?),
            None => publishers.first().cloned(),
        };
        let client = |builder: ClientBuilder| {
            builder
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(POOL_IDLE_TIMEOUT)
                .redirect(redirects())
                // A repeated PUT buys a second object, so not even a protocol's own refusals are retried here.
                .retry(retry::never())
                .build()
                .map_err(|error| {
                    HttpStoreConfigError(format!("the HTTP client could not be set up: {error}"))
                })
        };
        let clients = Clients {
            direct: client(http_client::builder_for("http://localhost"))?,
            elsewhere: client(http_client::for_any_server())?,
        };
        Ok(HttpStore {
            inner: Arc::new(HttpStoreInner {
                clients,
                publishers: StoreSources::new(publishers),
                aggregators: StoreSources::new(aggregators),
                token: self.token,
                heads,
                shards: self.shards,
                announced: self.announced,
                policy: self.policy,
                recent: Mutex::new(RecentBlobs::new(self.policy.recently_stored_window)),
            }),
        })
    }
}

/// Checks the base URLs of one role and drops repeated URLs; the first mention counts.
fn distinct(role: &'static str, given: &[String]) -> Result<Vec<Url>, HttpStoreConfigError> {
    let mut urls: Vec<Url> = Vec::new();
    for text in given {
        let url = base_url(role, text)?;
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    if urls.len() > MAX_SOURCES {
        return Err(HttpStoreConfigError(format!(
            "there are more than {MAX_SOURCES} {role} URLs; name fewer"
        )));
    }
    Ok(urls)
}

/// Parses a base URL and makes its path end with a slash, so that paths can be joined.
fn base_url(role: &'static str, text: &str) -> Result<Url, HttpStoreConfigError> {
    let refuse = |problem: &str| {
        HttpStoreConfigError(format!(
            "the {role} URL cannot be used: {problem}; give it as http://host:port or https://host"
        ))
    };
    let mut url = Url::parse(text).map_err(|error| refuse(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("it is not http or https"));
    }
    // User names and passwords would enter errors and logs.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("it carries a user name or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("it carries a query or fragment"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGGREGATOR: &str = "http://127.0.0.1:1";

    fn builder(publisher: &str) -> HttpStoreBuilder {
        HttpStoreBuilder::new(&[publisher], &[AGGREGATOR], ShardCount::TESTBED)
    }

    #[test]
    fn refuses_urls_that_could_not_be_joined_or_would_leak() {
        for url in
            ["", "host:1", "ftp://host", "http://user@host", "http://u:p@host", "http://h?x=1", "http://h#x"]
        {
            let refused = builder(url).build().unwrap_err().to_string();
            assert!(refused.starts_with("the publisher URL cannot be used"), "{url}: {refused}");
        }
    }

    #[test]
    fn keeps_a_path_prefix() {
        let url = base_url("publisher", "https://host/walrus").unwrap();
        assert_eq!(url.join("v1/blobs").unwrap().as_str(), "https://host/walrus/v1/blobs");
    }

    #[test]
    fn each_source_counts_once_and_their_number_is_bounded() {
        let twice = ["http://h".to_owned(), "http://h/".to_owned(), "http://b".to_owned()];
        assert_eq!(distinct("aggregator", &twice).unwrap().len(), 2);
        let many: Vec<String> = (0..=MAX_SOURCES).map(|number| format!("http://a{number}")).collect();
        let refused = distinct("aggregator", &many).unwrap_err().to_string();
        assert!(refused.contains("more than 16 aggregator URLs"), "{refused}");
    }

    #[test]
    fn a_store_may_be_without_publishers_but_not_without_aggregators() {
        assert!(HttpStoreBuilder::new(&[], &[AGGREGATOR], ShardCount::TESTBED).build().is_ok());
        assert!(HttpStoreBuilder::new(&[AGGREGATOR], &[], ShardCount::TESTBED).build().is_err());
    }

    #[test]
    fn the_hedge_follows_the_latency_within_its_bounds() {
        let ms = Duration::from_millis;
        let policy = RetryPolicy::default();
        for (latency, delay) in [(None, 500), (Some(ms(1)), 50), (Some(ms(100)), 200), (Some(ms(9000)), 2000)]
        {
            assert_eq!(policy.hedge_delay(latency), ms(delay), "{latency:?}");
        }
    }
}
