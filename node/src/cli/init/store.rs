//! The store that `init` writes into a new configuration. Decides only: `init` asks, writes and prints.
//!
//! A preset sets what is known of the network for certain. No publisher or aggregator of Walrus is built in:
//! a publisher pays for each blob, so its operator decides who may use it.

use std::{path::PathBuf, str::FromStr};

use baton_kit::config::Value;

use crate::config::parse_store_url;

/// Shards of Walrus's mainnet and testnet.
const WALRUS_SHARDS: i64 = 1000;
/// The address of `baton-testnet store` without options.
const EMBEDDED_URL: &str = "http://127.0.0.1:31415";

/// A store in one word, or the URL of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum StoreChoice {
    /// Walrus's test network.
    WalrusTestnet,
    /// Walrus's main network.
    WalrusMainnet,
    /// `baton-testnet store` on this machine.
    Embedded,
    /// No store yet.
    None,
    /// Any other publisher.
    Url(String),
}

impl FromStr for StoreChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "walrus-testnet" => Ok(Self::WalrusTestnet),
            "walrus-mainnet" => Ok(Self::WalrusMainnet),
            "embedded" => Ok(Self::Embedded),
            "none" => Ok(Self::None),
            url => parse_store_url(url).map(Self::Url).map_err(|_| {
                "expected walrus-testnet, walrus-mainnet, embedded, none, or a URL such as https://host"
                    .to_owned()
            }),
        }
    }
}

impl StoreChoice {
    /// Whether the operator must name a publisher.
    pub(super) fn needs_publisher(&self) -> bool {
        matches!(self, Self::WalrusTestnet | Self::WalrusMainnet)
    }

    /// Facts about this store that no option can hold.
    pub(super) fn note(&self) -> Option<&'static str> {
        match self {
            Self::WalrusTestnet => Some(
                "Walrus's testnet keeps a blob for epochs of one day: clients set epoch_hours = 24 (docs/STORAGE.md).",
            ),
            Self::WalrusMainnet => Some(
                "Walrus's mainnet has no public publisher: use your own, and name its token with \
                 --publisher-secret-file or --publisher-token-file if it asks for one.",
            ),
            Self::Embedded => Some(
                "The embedded store is a process of its own, for one machine: start it first, with `baton-testnet store`.",
            ),
            Self::None | Self::Url(_) => None,
        }
    }
}

/// The store options of `init`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreRequest {
    pub(super) store: Option<StoreChoice>,
    pub(super) publishers: Vec<String>,
    pub(super) aggregators: Vec<String>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) secret_file: Option<PathBuf>,
}

impl StoreRequest {
    /// Whether the operator named a store, or said that there is none.
    pub(super) fn is_given(&self) -> bool {
        self.store.is_some() || !self.publishers.is_empty() || !self.aggregators.is_empty()
    }

    /// The lines of the configuration: key and value. Empty without a store.
    ///
    /// # Errors
    /// The missing or conflicting option, in words.
    pub(super) fn lines(&self) -> Result<Vec<(&'static str, Value)>, String> {
        let (mut publishers, mut aggregators) = (self.publishers.clone(), self.aggregators.clone());
        let is_named = !publishers.is_empty() || !aggregators.is_empty();
        match &self.store {
            Some(StoreChoice::None) if is_named => {
                return Err("--store none excludes --publisher and --aggregator".to_owned());
            }
            Some(StoreChoice::None) => return Ok(Vec::new()),
            Some(StoreChoice::Url(url)) if !publishers.contains(url) => publishers.insert(0, url.clone()),
            Some(StoreChoice::Embedded) if publishers.is_empty() => publishers.push(EMBEDDED_URL.to_owned()),
            Some(choice) if choice.needs_publisher() && publishers.is_empty() => {
                return Err("this store needs a publisher, which pays for the blobs: name yours with --publisher URL, and \
                     an aggregator with --aggregator URL if the publisher's server is none; baton-node has no public \
                     one built in"
                    .to_owned());
            }
            None if publishers.is_empty() && !aggregators.is_empty() => {
                return Err(
                    "--aggregator only reads: name a publisher with --publisher URL as well".to_owned()
                );
            }
            None if publishers.is_empty() => return Ok(Vec::new()),
            Some(_) | None => {}
        }
        if self.token_file.is_some() && self.secret_file.is_some() {
            return Err("--publisher-token-file and --publisher-secret-file exclude each other".to_owned());
        }
        if aggregators.is_empty() {
            aggregators.clone_from(&publishers);
        }
        let list = |urls: Vec<String>| Value::Array(urls.into_iter().map(Value::String).collect());
        let mut lines = vec![("publisher", list(publishers)), ("aggregator", list(aggregators))];
        if self.store.as_ref().is_some_and(StoreChoice::needs_publisher) {
            // Walrus has no head index: clients find their sessions through the nodes' DHT.
            lines.push(("heads", Value::String("none".to_owned())));
            lines.push(("shards", Value::Integer(WALRUS_SHARDS)));
        }
        let files =
            [("publisher_token_file", &self.token_file), ("publisher_secret_file", &self.secret_file)];
        for (key, file) in files {
            lines.extend(file.as_ref().map(|file| (key, Value::String(file.display().to_string()))));
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(store: &str, publisher: &[&str], aggregator: &[&str]) -> StoreRequest {
        let urls = |list: &[&str]| list.iter().map(|url| (*url).to_owned()).collect();
        StoreRequest {
            store: (!store.is_empty()).then(|| store.parse().unwrap()),
            publishers: urls(publisher),
            aggregators: urls(aggregator),
            ..StoreRequest::default()
        }
    }

    fn text(request: &StoreRequest) -> String {
        let lines = request.lines().unwrap();
        lines.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn presets_and_urls_become_lines_of_the_configuration() {
        for (store, publisher, aggregator, expected) in [
            ("", &[][..], &[][..], ""),
            ("none", &[], &[], ""),
            ("", &["https://p"], &[], "publisher=[\"https://p\"] aggregator=[\"https://p\"]"),
            ("https://p", &[], &["https://a"], "publisher=[\"https://p\"] aggregator=[\"https://a\"]"),
            (
                "embedded",
                &[],
                &[],
                "publisher=[\"http://127.0.0.1:31415\"] aggregator=[\"http://127.0.0.1:31415\"]",
            ),
            (
                "walrus-testnet",
                &["https://p"],
                &["https://a"],
                "publisher=[\"https://p\"] aggregator=[\"https://a\"] heads=\"none\" shards=1000",
            ),
        ] {
            assert_eq!(text(&request(store, publisher, aggregator)), expected, "{store}");
        }
        let mut with_secret = request("walrus-mainnet", &["https://p"], &[]);
        with_secret.secret_file = Some("/s".into());
        assert!(text(&with_secret).ends_with("publisher_secret_file=\"/s\""));
    }

    #[test]
    fn a_store_without_a_publisher_is_refused_with_the_next_step() {
        for store in ["walrus-testnet", "walrus-mainnet"] {
            assert!(request(store, &[], &["https://a"]).lines().unwrap_err().contains("--publisher URL"));
        }
        assert!(request("", &[], &["https://a"]).lines().unwrap_err().contains("--publisher URL"));
        assert!(request("none", &["https://p"], &[]).lines().is_err());
        let mut both = request("", &["https://p"], &[]);
        (both.token_file, both.secret_file) = (Some("/t".into()), Some("/s".into()));
        assert!(both.lines().unwrap_err().contains("exclude each other"));
        for wrong in ["walrus", "", "ftp://host", "https://user:word@host"] {
            assert!(wrong.parse::<StoreChoice>().unwrap_err().contains("walrus-testnet"), "{wrong}");
        }
    }
}
