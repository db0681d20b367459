//! Rates by client: token buckets in a bounded table, as a node has them. Pure; the caller has the clock.

use std::collections::HashMap;

use baton_proto::ids::NodeId;

/// Clients whose rates are remembered. When full, those that were quiet longest are forgotten, which gives them
/// their burst back.
const MAX_RATE_ENTRIES: usize = 4096;

/// A token of a bucket, in the table's unit: so many thousandths refill each millisecond at one a minute.
const TOKEN: u64 = 60_000;

/// Buckets that hold a minute's worth and refill evenly.
#[derive(Debug)]
pub(crate) struct Rates {
    per_minute: u64,
    buckets: HashMap<NodeId, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// What is left, in 60,000ths of a request.
    level: u64,
    at_ms: u64,
}

impl Rates {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: u64::from(per_minute).max(1), buckets: HashMap::new() }
    }

    /// Takes one request of `client`; otherwise says after how many milliseconds there is one again.
    pub(crate) fn take(&mut self, client: NodeId, now_ms: u64) -> Result<(), u32> {
        self.make_room(&client, now_ms);
        let full = self.per_minute * TOKEN;
        let bucket = self.buckets.entry(client).or_insert(Bucket { level: full, at_ms: now_ms });
        let refill = now_ms.saturating_sub(bucket.at_ms).saturating_mul(self.per_minute);
        bucket.level = bucket.level.saturating_add(refill).min(full);
        bucket.at_ms = bucket.at_ms.max(now_ms);
        match bucket.level.checked_sub(TOKEN) {
            Some(left) => {
                bucket.level = left;
                Ok(())
            }
            None => {
                let wait = (TOKEN - bucket.level).div_ceil(self.per_minute);
                Err(u32::try_from(wait).unwrap_or(u32::MAX))
            }
        }
    }

    fn make_room(&mut self, client: &NodeId, now_ms: u64) {
        if self.buckets.len() < MAX_RATE_ENTRIES || self.buckets.contains_key(client) {
            return;
        }
        // A bucket untouched for a minute is full again, so forgetting it changes nothing.
        self.buckets.retain(|_, bucket| now_ms.saturating_sub(bucket.at_ms) < 60_000);
        if self.buckets.len() >= MAX_RATE_ENTRIES
            && let Some(oldest) =
                self.buckets.iter().min_by_key(|(_, bucket)| bucket.at_ms).map(|(client, _)| *client)
        {
            self.buckets.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_use_up_the_rate_of_another() {
        let mut rates = Rates::new(3);
        let (alice, bob) = (NodeId([1; 32]), NodeId([2; 32]));
        for _ in 0..3 {
            assert_eq!(rates.take(alice, 0), Ok(()));
        }
        assert_eq!(rates.take(alice, 0), Err(20_000));
        assert_eq!(rates.take(bob, 0), Ok(()));
        assert_eq!(rates.take(alice, 20_000), Ok(()));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut rates = Rates::new(1);
        for number in 0..MAX_RATE_ENTRIES as u64 + 100 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            rates.take(NodeId(id), number).unwrap();
        }
        assert!(rates.buckets.len() <= MAX_RATE_ENTRIES);
    }
}
