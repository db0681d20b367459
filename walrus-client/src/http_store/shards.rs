//! The shard count that a store announces. Walrus's own daemons announce none, and both their networks have
//! [`ShardCount::MAINNET`].

use futures::future::join_all;
use reqwest::header::HeaderMap;
use tokio::time::timeout;

use super::{HttpStore, join};
use crate::ShardCount;

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

impl HttpStore {
    /// The shard count that the first server with one announces. Asks all publishers and aggregators at once, with the
    /// base timeout for each; none if no server answers with one in time.
    pub async fn announced_shards(&self) -> Option<ShardCount> {
        let inner = &self.inner;
        let asked = inner.publishers.urls().chain(inner.aggregators.urls()).map(|base| async move {
            let url = join(base, "v1/api").ok()?;
            let answer = inner.client(&url).get(url).send();
            announced(timeout(inner.policy.base_timeout, answer).await.ok()?.ok()?.headers())
        });
        join_all(asked).await.into_iter().flatten().next()
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
