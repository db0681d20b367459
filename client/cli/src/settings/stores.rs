//! The stores of the settings: the number of shards, set or announced by the store, and the head indexes without the
//! setting for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{FirstIndex, NamedIndex};
use baton_proto::store::BlobStore as _;
use baton_walrus_client::{HttpStore, SHARDS_WAIT, ShardCount};

use super::{Settings, unique};
use crate::failure::Failure;

/// Time for a precautionary look at the head indexes if a store was silent. A turn thus waits one second in all.
pub(super) const LOOK_AFTER_SILENCE: Duration = Duration::from_millis(250);

impl Settings {
    /// Shards of the store's network: the set number, or the one that the store announced.
    pub(crate) fn shards(&self) -> ShardCount {
        self.set_shards().or(self.announced.get().copied()).unwrap_or(ShardCount::MAINNET)
    }

    /// The number in the settings, whose range is that of all networks.
    fn set_shards(&self) -> Option<ShardCount> {
        ShardCount::new(self.options.shards?).ok()
    }

    /// Asks the store for its number of shards. A store that does not answer soon, or announces none, delays nothing.
    ///
    /// # Errors
    /// A usage error if the settings have another number: the store would keep nothing under the session's IDs.
    pub(crate) async fn ask_shards(&self) -> Result<(), Failure> {
        let asked = Instant::now();
        let announced = self.store()?.announced_shards(SHARDS_WAIT).await;
        if asked.elapsed() >= SHARDS_WAIT {
            self.silence.get_or_init(|| ());
        }
        let announced = announced.ok().flatten().and_then(|theirs| ShardCount::new(theirs).ok());
        let Some(theirs) = announced else { return Ok(()) };
        match self.set_shards().filter(|ours| *ours != theirs) {
            Some(ours) => Err(Failure::usage(
                format!("The store has {} shards, and the settings have {}.", theirs.get(), ours.get()),
                format!(
                    "leave shards out, so that the store's number counts; or set it: --shards {}",
                    theirs.get()
                ),
            )),
            None => {
                self.announced.get_or_init(|| theirs);
                Ok(())
            }
        }
    }

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
