//! The shard count that a store announces. Walrus's own daemons announce none, and both their networks have
//! [`ShardCount::MAINNET`].

use std::time::Duration;

use baton_proto::store::StoreError;
use futures::{StreamExt as _, stream::FuturesUnordered};
use reqwest::{Url, header::HeaderMap};
use tokio::time::timeout;

use super::{HttpStoreInner, join, sources::origin};
use crate::{ShardCount, http_client::describe};

/// Time for a store to announce its shard count: three round trips to the other side of the world.
pub const SHARDS_WAIT: Duration = Duration::from_millis(750);

/// The header of the answer to `GET /v1/api` with the store's shard count.
pub const SHARDS_HEADER: &str = "x-baton-shards";

/// The shard count in a store's answer if it differs from ours. With a wrong count, no blob has the ID that is
/// computed for it.
#[must_use]
pub fn differing_shards(answer: &HeaderMap, ours: u16) -> Option<u16> {
    announced(answer).map(ShardCount::get).filter(|theirs| *theirs != ours)
}

fn announced(answer: &HeaderMap) -> Option<ShardCount> {
    ShardCount::new(answer.get(SHARDS_HEADER)?.to_str().ok()?.parse().ok()?).ok()
}

impl HttpStoreInner {
    /// The shard count for blob IDs: the announced one if it counts, or else the given one.
    pub(super) fn shards(&self) -> ShardCount {
        self.announced.get().copied().flatten().unwrap_or(self.shards)
    }

    /// Asks for the shard count before an ID is computed, if the announced one counts and no server has answered so far.
    pub(super) async fn ask_shards_once(&self) {
        if self.announced.get().is_none()
            && let Err(error) = self.ask_shards(SHARDS_WAIT).await
        {
            tracing::debug!(%error, "the store's number of shards is unknown");
        }
    }

    /// Asks all publishers and aggregators at once for their shard count, and takes the first that one announces.
    pub(super) async fn ask_shards(&self, wait: Duration) -> Result<Option<ShardCount>, StoreError> {
        let bases = self.publishers.urls().chain(self.aggregators.urls());
        let mut asked: FuturesUnordered<_> = bases.map(|base| self.ask_server(base, wait)).collect();
        let (mut answered, mut failed) = (false, Vec::new());
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(Some(theirs)) => {
                    self.announced.get_or_init(|| Some(theirs));
                    return Ok(Some(theirs));
                }
                Ok(None) => answered = true,
                Err(reason) if failed.contains(&reason) => {}
                Err(reason) => failed.push(reason),
            }
        }
        if answered {
            self.announced.get_or_init(|| None);
            return Ok(None);
        }
        Err(StoreError::Unavailable { reason: failed.join("; "), retry_after: None })
    }

    async fn ask_server(&self, base: &Url, wait: Duration) -> Result<Option<ShardCount>, String> {
        let url = join(base, "v1/api").map_err(|error| error.to_string())?;
        match timeout(wait, self.client(&url).get(url).send()).await {
            Ok(Ok(answer)) => Ok(announced(answer.headers())),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("{} did not answer in time", origin(base))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_with_another_count_is_noticed_and_nonsense_is_not_believed() {
        let answer =
            |value: &str| HeaderMap::from_iter([(SHARDS_HEADER.parse().unwrap(), value.parse().unwrap())]);
        assert_eq!(differing_shards(&answer("10"), 1000), Some(10));
        for same in ["1000", "", "ten", "3", "70000"] {
            assert_eq!(differing_shards(&answer(same), 1000), None, "{same}");
        }
        assert_eq!(differing_shards(&HeaderMap::new(), 1000), None);
    }
}
