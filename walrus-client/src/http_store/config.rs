//! Settings of an [`HttpStore`], checked before the first request.

use std::time::Duration;

use reqwest::{Client, Url, redirect, retry};

use super::HttpStore;
use crate::ShardCount;

/// Default time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept: below the time after which stores close one (the embedded one after 30 s),
/// so that no PUT is sent on a connection that is just being closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Default part of a request's time that does not depend on its size. Walrus takes some 20 s to certify a
/// blob, and answers a PUT only then.
const BASE_TIMEOUT: Duration = Duration::from_secs(60);
/// Default slowest transfer that is waited for, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Default largest blob that is sent: the limit of Walrus's public publishers.
const MAX_PUT_BYTES: usize = 10_240 * 1024;

/// Why a store cannot be set up; every text names what to change.
#[derive(Debug, thiserror::Error)]
pub enum HttpStoreConfigError {
    /// A base URL that cannot be used.
    #[error("the {role} URL cannot be used: {problem}; give it as http://host:port or https://host")]
    Url {
        /// Publisher, aggregator or head index.
        role: &'static str,
        /// What is wrong with it.
        problem: String,
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

/// Builds an [`HttpStore`]. Take it from [`HttpStore::builder`].
#[derive(Debug, Clone)]
pub struct HttpStoreBuilder {
    publisher: String,
    aggregator: String,
    heads: Option<String>,
    shards: ShardCount,
    connect_timeout: Duration,
    base_timeout: Duration,
    min_bytes_per_second: u64,
    max_put_bytes: usize,
}

impl HttpStoreBuilder {
    pub(super) fn new(publisher: &str, aggregator: &str, shards: ShardCount) -> Self {
        Self {
            publisher: publisher.to_owned(),
            aggregator: aggregator.to_owned(),
            heads: None,
            shards,
            connect_timeout: CONNECT_TIMEOUT,
            base_timeout: BASE_TIMEOUT,
            min_bytes_per_second: MIN_BYTES_PER_SECOND,
            max_put_bytes: MAX_PUT_BYTES,
        }
    }

    /// Base URL of the store whose head index is used; the publisher's when not set.
    #[must_use]
    pub fn heads(mut self, url: &str) -> Self {
        self.heads = Some(url.to_owned());
        self
    }

    /// Time to establish a connection (5 s when not set).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The part of a request's time that does not depend on its size (60 s when not set).
    #[must_use]
    pub fn base_timeout(mut self, timeout: Duration) -> Self {
        self.base_timeout = timeout;
        self
    }

    /// Slowest transfer waited for, in bytes per second (65,536 when not set): a request for b bytes may take
    /// the base timeout and b divided by this.
    #[must_use]
    pub fn min_bytes_per_second(mut self, rate: u64) -> Self {
        self.min_bytes_per_second = rate;
        self
    }

    /// Largest blob that is sent, in bytes (10,240 KiB when not set).
    #[must_use]
    pub fn max_put_bytes(mut self, limit: usize) -> Self {
        self.max_put_bytes = limit;
        self
    }

    /// Checks the settings. Connects to nothing.
    ///
    /// # Errors
    /// [`HttpStoreConfigError`], naming the setting.
    pub fn build(self) -> Result<HttpStore, HttpStoreConfigError> {
        let publisher = base_url("publisher", &self.publisher)?;
        let aggregator = base_url("aggregator", &self.aggregator)?;
        let heads = match &self.heads {
            Some(url) => base_url("head index", url)?,
            None => publisher.clone(),
        };
        for (name, zero) in [
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("base_timeout", self.base_timeout.is_zero()),
            ("min_bytes_per_second", self.min_bytes_per_second == 0),
            ("max_put_bytes", self.max_put_bytes == 0),
        ] {
            if zero {
                return Err(HttpStoreConfigError::Zero { name });
            }
        }
        let client = Client::builder()
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .redirect(redirect::Policy::none())
            // A repeated PUT buys a second object, so not even a protocol's own refusals are repeated here.
            .retry(retry::never())
            .build()
            .map_err(HttpStoreConfigError::Client)?;
        Ok(HttpStore {
            client,
            publisher,
            aggregator,
            heads,
            shards: self.shards,
            base_timeout: self.base_timeout,
            min_bytes_per_second: self.min_bytes_per_second,
            max_put_bytes: self.max_put_bytes,
        })
    }
}

/// Parses a base URL and makes its path end with a slash, so that paths can be joined to it.
fn base_url(role: &'static str, text: &str) -> Result<Url, HttpStoreConfigError> {
    let refuse = |problem: &str| HttpStoreConfigError::Url { role, problem: problem.to_owned() };
    let mut url = Url::parse(text).map_err(|error| refuse(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("it is not http or https"));
    }
    // Names and passwords would end up in errors and logs.
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

    fn build(publisher: &str) -> Result<HttpStore, HttpStoreConfigError> {
        HttpStoreBuilder::new(publisher, "http://127.0.0.1:1", ShardCount::TESTBED).build()
    }

    #[test]
    fn refuses_urls_that_could_not_be_joined_or_would_leak() {
        for url in
            ["", "host:1", "ftp://host", "http://user@host", "http://u:p@host", "http://h?x=1", "http://h#x"]
        {
            assert!(matches!(build(url), Err(HttpStoreConfigError::Url { role: "publisher", .. })), "{url}");
        }
    }

    #[test]
    fn keeps_a_path_prefix() {
        let store = build("https://host/walrus").unwrap();
        assert_eq!(store.publisher.join("v1/blobs").unwrap().as_str(), "https://host/walrus/v1/blobs");
    }

    #[test]
    fn refuses_limits_of_zero() {
        let builder = HttpStoreBuilder::new("http://h", "http://h", ShardCount::TESTBED);
        let refused = builder.max_put_bytes(0).build();
        assert!(matches!(refused, Err(HttpStoreConfigError::Zero { name: "max_put_bytes" })));
    }
}
