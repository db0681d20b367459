//! The head indexes of a client without the setting for them.

use std::sync::Arc;

use baton_client::{FirstIndex, NamedIndex};
use baton_walrus_client::HttpStore;

use super::{Settings, unique};
use crate::failure::Failure;

impl Settings {
    /// Servers that may have a head index: those of other hosts than the first publisher's, and at last the first
    /// publisher. It sees a blob with each turn, so another operator's index sees less.
    pub(super) fn default_indexes(&self) -> Vec<String> {
        let host =
            |url: &String| reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
        let (publishers, aggregators) = (self.options.publisher(), self.options.aggregator());
        let first = publishers.first();
        let stores = first.and_then(host);
        let servers = publishers.iter().chain(&aggregators);
        let others = servers.filter(|url| host(url).is_some_and(|host| Some(host) != stores));
        unique(others.chain(first).cloned().collect())
    }

    /// The default index: the first of these servers that has one.
    pub(super) fn default_index(&self) -> Result<NamedIndex, Failure> {
        let urls = self.default_indexes();
        let servers = urls.iter().map(|url| self.index_at(url)).collect::<Result<_, _>>()?;
        Ok(NamedIndex { name: urls.join(", or else "), index: Arc::new(FirstIndex::new(servers)) })
    }

    /// The index of a server.
    pub(super) fn index_at(&self, url: &str) -> Result<NamedIndex, Failure> {
        let index = HttpStore::builder(url, url, self.shards()).heads(url).build();
        let index = index.map_err(|error| Failure::wrong(format!("--heads {url}: {error}")))?;
        Ok(NamedIndex { name: url.to_owned(), index: Arc::new(index) })
    }
}
