//! The shard count that a store announces. Walrus's own daemons announce none, and both their networks have
//! [`ShardCount::MAINNET`].

use reqwest::header::HeaderMap;

use crate::ShardCount;

/// The header of the answer to `GET /v1/api` with the store's shard count.
pub const SHARDS_HEADER: &str = "x-baton-shards";

/// The shard count in a store's answer if it differs from ours. With a wrong count, no blob has the ID that is
/// computed for it.
#[must_use]
pub fn differing_shards(answer: &HeaderMap, ours: u16) -> Option<u16> {
    let text = answer.get(SHARDS_HEADER)?.to_str().ok()?;
    let theirs = ShardCount::new(text.parse().ok()?).ok()?.get();
    (theirs != ours).then_some(theirs)
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
