//! Settings of an [`HttpStore`], checked before the first request.

use std::time::Duration;

use reqwest::{ClientBuilder, Url, retry};

use super::{Clients, HttpStore, sources::Sources};
use crate::{
    ShardCount,
    http_client::{self, redirects},
    jwt::PublisherToken,
};

/// Default time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection stays open. Stores close theirs later (the embedded store after 30 s), so no
/// PUT goes to a connection that is being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Default part of a request's time that does not depend on its size. Walrus takes some 20 s to certify a
/// blob, and answers a PUT only then.
const BASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Default slowest accepted transfer, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Default largest blob to send: the limit of Walrus's public publishers.
const MAX_PUT_BYTES: u64 = 10_240 * 1024;
/// Default largest quilt to send: the limit of Walrus's public publishers.
const MAX_QUILT_BYTES: u64 = 102_400 * 1024;
/// Default hedging: a second aggregator costs a request, a slow first aggregator costs the user's time.
const HEDGE: Hedge = Hedge::Adaptive { least: Duration::from_millis(50), most: Duration::from_secs(2) };
/// Default rounds repeated over sources that failed on their side. With their pauses they take about a
/// second. Patient callers have their own plans, and impatient callers have other sources.
const RETRIES: u32 = 3;
/// Default time in which a 404 of a stored blob is blamed on a cache.
const RECENTLY_STORED_WINDOW: Duration = Duration::from_secs(15);
/// Default time to look for a PUT in doubt.
const PROBE_WINDOW: Duration = Duration::from_secs(15);
/// Most sources of one role: each call may ask all of them, and a longer list has no use.
const MAX_SOURCES: usize = 16;

/// The reason why a store cannot be set up; every text names the setting to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpStoreConfigError {
    /// An unusable base URL.
    #[error("the {role} URL cannot be used: {problem}; give it as http://host:port or https://host")]
    Url {
        /// Publisher, aggregator or head index.
        role: &'static str,
        /// The problem.
        problem: String,
    },
    /// No aggregator to read from.
    #[error("at least one aggregator is needed")]
    NoAggregator,
    /// Too many sources.
    #[error("there are more than {MAX_SOURCES} {role} URLs; name fewer")]
    TooMany {
        /// Publisher or aggregator.
        role: &'static str,
    },
    /// A limit of zero.
    #[error("{name} must be above zero")]
    Zero {
        /// The setting.
        name: &'static str,
    },
    /// The HTTP client could not be set up (usually its TLS roots).
    #[error("the HTTP client could not be set up: {0}")]
    Client(#[source] reqwest::Error),
}

/// The delay before a further aggregator is asked beside a slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hedge {
    /// Twice the usual time of the slow source, within these bounds. A quarter of the upper bound if the
    /// usual time is unknown.
    Adaptive {
        /// Shortest delay.
        least: Duration,
        /// Longest delay.
        most: Duration,
    },
    /// This time.
    After(Duration),
    /// Never: one aggregator at a time.
    Off,
}

impl Hedge {
    /// The delay for a source that usually takes this long.
    pub(super) fn delay(self, latency: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Adaptive { least, most } => {
                let usual = latency.map_or(most / 4, |latency| latency.saturating_mul(2));
                Some(usual.clamp(least, most.max(least)))
            }
            Self::After(delay) => Some(delay),
            Self::Off => None,
        }
    }
}

/// The checked settings of a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) shards: ShardCount,
    pub(super) connect_timeout: Duration,
    pub(super) base_timeout: Duration,
    pub(super) min_bytes_per_second: u64,
    pub(super) max_put_bytes: u64,
    pub(super) max_quilt_bytes: u64,
    pub(super) hedge: Hedge,
    pub(super) retries: u32,
    pub(super) recently_stored_window: Duration,
    pub(super) probe_window: Duration,
}

impl Settings {
    /// The time that one transfer of `length` bytes may take.
    pub(super) fn transfer(&self, length: u64) -> Duration {
        self.base_timeout.saturating_add(self.moving(length))
    }

    /// The share of it for the bytes alone.
    pub(super) fn moving(&self, length: u64) -> Duration {
        Duration::from_secs(length / self.min_bytes_per_second)
    }

    /// Refuses limits of zero, which would make a useless store.
    fn check(&self) -> Result<(), HttpStoreConfigError> {
        let hedge_is_zero = match self.hedge {
            Hedge::Adaptive { most, .. } => most.is_zero(),
            Hedge::After(delay) => delay.is_zero(),
            Hedge::Off => false,
        };
        for (name, zero) in [
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("base_timeout", self.base_timeout.is_zero()),
            ("min_bytes_per_second", self.min_bytes_per_second == 0),
            ("max_put_bytes", self.max_put_bytes == 0),
            ("max_quilt_bytes", self.max_quilt_bytes == 0),
            ("hedge", hedge_is_zero),
            ("recently_stored_window", self.recently_stored_window.is_zero()),
            ("probe_window", self.probe_window.is_zero()),
        ] {
            if zero {
                return Err(HttpStoreConfigError::Zero { name });
            }
        }
        Ok(())
    }
}

/// Builds an [`HttpStore`]. Take it from [`HttpStore::builder`] or [`HttpStore::endpoints`].
#[derive(Debug, Clone)]
pub struct HttpStoreBuilder {
    publishers: Vec<(String, Option<PublisherToken>)>,
    aggregators: Vec<String>,
    token: Option<PublisherToken>,
    heads: Option<String>,
    settings: Settings,
}

impl HttpStoreBuilder {
    pub(super) fn new(publishers: &[&str], aggregators: &[&str], shards: ShardCount) -> Self {
        Self {
            publishers: publishers.iter().map(|url| ((*url).to_owned(), None)).collect(),
            aggregators: aggregators.iter().map(|url| (*url).to_owned()).collect(),
            token: None,
            heads: None,
            settings: Settings {
                shards,
                connect_timeout: CONNECT_TIMEOUT,
                base_timeout: BASE_TIMEOUT,
                min_bytes_per_second: MIN_BYTES_PER_SECOND,
                max_put_bytes: MAX_PUT_BYTES,
                max_quilt_bytes: MAX_QUILT_BYTES,
                hedge: HEDGE,
                retries: RETRIES,
                recently_stored_window: RECENTLY_STORED_WINDOW,
                probe_window: PROBE_WINDOW,
            },
        }
    }

    /// Adds a publisher. The first is preferred as long as it does well.
    #[must_use]
    pub fn publisher(mut self, url: &str) -> Self {
        self.publishers.push((url.to_owned(), None));
        self
    }

    /// Adds a publisher with a token of its own.
    #[must_use]
    pub fn publisher_with_token(mut self, url: &str, token: PublisherToken) -> Self {
        self.publishers.push((url.to_owned(), Some(token)));
        self
    }

    /// Adds an aggregator. The first is preferred as long as it does well.
    #[must_use]
    pub fn aggregator(mut self, url: &str) -> Self {
        self.aggregators.push(url.to_owned());
        self
    }

    /// The token for every publisher without its own. All of those publishers see it: give separate tokens to
    /// hide them from each other.
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

    /// Time to establish a connection (5 s when not set).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The part of a request's time that does not depend on its size (60 s when not set).
    #[must_use]
    pub fn base_timeout(mut self, timeout: Duration) -> Self {
        self.settings.base_timeout = timeout;
        self
    }

    /// Slowest accepted transfer, in bytes per second (65,536 when not set). A request for b bytes may take
    /// the base timeout plus b divided by this.
    #[must_use]
    pub fn min_bytes_per_second(mut self, rate: u64) -> Self {
        self.settings.min_bytes_per_second = rate;
        self
    }

    /// Largest blob to send, in bytes (10,240 KiB when not set).
    #[must_use]
    pub fn max_put_bytes(mut self, limit: usize) -> Self {
        self.settings.max_put_bytes = limit as u64;
        self
    }

    /// Largest quilt to send, in bytes of its patches (102,400 KiB when not set).
    #[must_use]
    pub fn max_quilt_bytes(mut self, limit: usize) -> Self {
        self.settings.max_quilt_bytes = limit as u64;
        self
    }

    /// When to ask a further aggregator (adaptive, from 50 ms to 2 s, when not set).
    #[must_use]
    pub fn hedge(mut self, hedge: Hedge) -> Self {
        self.settings.hedge = hedge;
        self
    }

    /// How often to ask all sources again that failed on their side (3 when not set). Three rounds take a
    /// second with their pauses. 0 asks each source once.
    #[must_use]
    pub fn retries(mut self, rounds: u32) -> Self {
        self.settings.retries = rounds;
        self
    }

    /// How long after a PUT a 404 of that blob is blamed on a cache, and the read repeated (15 s when not
    /// set).
    #[must_use]
    pub fn recently_stored_window(mut self, window: Duration) -> Self {
        self.settings.recently_stored_window = window;
        self
    }

    /// How long to look for a blob whose PUT is in doubt, before it counts as lost (15 s when not set). It
    /// must outlast a 404 in caches on the way: CloudFront keeps one for 10 s.
    #[must_use]
    pub fn probe_window(mut self, window: Duration) -> Self {
        self.settings.probe_window = window;
        self
    }

    /// Checks the settings. Connects to nothing.
    ///
    /// # Errors
    /// [`HttpStoreConfigError`], naming the setting.
    pub fn build(self) -> Result<HttpStore, HttpStoreConfigError> {
        let publishers = distinct("publisher", self.publishers)?;
        let aggregators =
            distinct("aggregator", self.aggregators.into_iter().map(|url| (url, None)).collect())?;
        if aggregators.is_empty() {
            return Err(HttpStoreConfigError::NoAggregator);
        }
        let heads = match &self.heads {
            Some(url) => Some(base_url("head index", url)?),
            None => publishers.first().map(|(url, _)| url.clone()),
        };
        self.settings.check()?;
        let client = |builder: ClientBuilder| {
            builder
                .connect_timeout(self.settings.connect_timeout)
                .pool_idle_timeout(POOL_IDLE_TIMEOUT)
                .redirect(redirects())
                // A repeated PUT buys a second object, so not even a protocol's own refusals are retried here.
                .retry(retry::never())
                .build()
                .map_err(HttpStoreConfigError::Client)
        };
        let clients = Clients {
            here: client(http_client::builder_for("http://localhost"))?,
            elsewhere: client(http_client::for_any_server())?,
        };
        let token = self.token;
        let publishers = publishers.into_iter().map(|(url, own)| (url, own.or_else(|| token.clone())));
        Ok(HttpStore::new(clients, Sources::new(publishers), Sources::new(aggregators), heads, self.settings))
    }
}

/// Checks the base URLs of one role and drops repeated URLs; the first mention counts.
fn distinct(
    role: &'static str,
    given: Vec<(String, Option<PublisherToken>)>,
) -> Result<Vec<(Url, Option<PublisherToken>)>, HttpStoreConfigError> {
    let mut urls: Vec<(Url, Option<PublisherToken>)> = Vec::new();
    for (text, token) in given {
        let url = base_url(role, &text)?;
        if !urls.iter().any(|(known, _)| *known == url) {
            urls.push((url, token));
        }
    }
    if urls.len() > MAX_SOURCES {
        return Err(HttpStoreConfigError::TooMany { role });
    }
    Ok(urls)
}

/// Parses a base URL and makes its path end with a slash, so that paths can be joined.
fn base_url(role: &'static str, text: &str) -> Result<Url, HttpStoreConfigError> {
    let refuse = |problem: &str| HttpStoreConfigError::Url { role, problem: problem.to_owned() };
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
            let refused = builder(url).build();
            assert!(matches!(refused, Err(HttpStoreConfigError::Url { role: "publisher", .. })), "{url}");
        }
        let refused = builder("http://h").aggregator("nowhere").build();
        assert!(matches!(refused, Err(HttpStoreConfigError::Url { role: "aggregator", .. })));
    }

    #[test]
    fn keeps_a_path_prefix() {
        let url = base_url("publisher", "https://host/walrus").unwrap();
        assert_eq!(url.join("v1/blobs").unwrap().as_str(), "https://host/walrus/v1/blobs");
    }

    #[test]
    fn each_source_counts_once_and_their_number_is_bounded() {
        let store = builder("http://h").publisher("http://h/").aggregator("http://b").build().unwrap();
        let metrics = store.metrics();
        assert_eq!((metrics.publishers.len(), metrics.aggregators.len()), (1, 2));
        let many = (0..MAX_SOURCES)
            .fold(builder("http://h"), |builder, number| builder.aggregator(&format!("http://a{number}")));
        assert!(matches!(many.build(), Err(HttpStoreConfigError::TooMany { role: "aggregator" })));
    }

    #[test]
    fn a_store_may_be_without_publishers_but_not_without_aggregators() {
        assert!(HttpStoreBuilder::new(&[], &[AGGREGATOR], ShardCount::TESTBED).build().is_ok());
        let refused = HttpStoreBuilder::new(&[AGGREGATOR], &[], ShardCount::TESTBED).build();
        assert!(matches!(refused, Err(HttpStoreConfigError::NoAggregator)));
    }

    #[test]
    fn refuses_limits_of_zero() {
        let zero = Duration::ZERO;
        for (builder, expected) in [
            (builder("http://h").connect_timeout(zero), "connect_timeout"),
            (builder("http://h").base_timeout(zero), "base_timeout"),
            (builder("http://h").min_bytes_per_second(0), "min_bytes_per_second"),
            (builder("http://h").max_put_bytes(0), "max_put_bytes"),
            (builder("http://h").max_quilt_bytes(0), "max_quilt_bytes"),
            (builder("http://h").hedge(Hedge::After(zero)), "hedge"),
            (builder("http://h").hedge(Hedge::Adaptive { least: zero, most: zero }), "hedge"),
            (builder("http://h").recently_stored_window(zero), "recently_stored_window"),
            (builder("http://h").probe_window(zero), "probe_window"),
        ] {
            let refused = builder.build();
            let Err(HttpStoreConfigError::Zero { name }) = refused else { panic!("{expected} is taken") };
            assert_eq!(name, expected);
        }
    }

    #[test]
    fn the_hedge_follows_the_latency_within_its_bounds() {
        let ms = Duration::from_millis;
        let hedge = Hedge::Adaptive { least: ms(50), most: ms(2000) };
        for (latency, delay) in [(None, 500), (Some(ms(1)), 50), (Some(ms(100)), 200), (Some(ms(9000)), 2000)]
        {
            assert_eq!(hedge.delay(latency), Some(ms(delay)), "{latency:?}");
        }
        assert_eq!(Hedge::After(ms(7)).delay(Some(ms(100))), Some(ms(7)));
        assert_eq!(Hedge::Off.delay(None), None);
    }
}
