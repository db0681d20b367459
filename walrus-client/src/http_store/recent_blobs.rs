//! Recently stored blobs, whose 404s may come from a cache.
//!
//! Pure, with the time as a parameter, and bounded. When full, it forgets the oldest blob, whose 404 then
//! counts like any other.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use baton_proto::ids::BlobId;
use tokio::time::Instant;

use super::fetch::after;

/// Most remembered blobs: a client that stores more within the window forgets the oldest.
const MAX_RECENT: usize = 1024;

#[derive(Debug)]
pub(super) struct RecentBlobs {
    window: Duration,
    stored: HashMap<BlobId, Instant>,
    oldest_first: VecDeque<(BlobId, Instant)>,
}

impl RecentBlobs {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, stored: HashMap::new(), oldest_first: VecDeque::new() }
    }

    pub(super) fn stored(&mut self, id: BlobId, now: Instant) {
        self.stored.insert(id, now);
        self.oldest_first.push_back((id, now));
        while let Some((id, at)) = self.oldest_first.front().copied() {
            if self.oldest_first.len() <= MAX_RECENT && now.saturating_duration_since(at) < self.window {
                break;
            }
            self.oldest_first.pop_front();
            // Keeps it if it was stored again since.
            if self.stored.get(&id) == Some(&at) {
                self.stored.remove(&id);
            }
        }
    }

    /// The time until which a 404 of this blob may be a cache's.
    pub(super) fn until(&self, id: BlobId, now: Instant) -> Option<Instant> {
        let until = after(*self.stored.get(&id)?, self.window);
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn id(number: usize) -> BlobId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        BlobId(bytes)
    }

    #[test]
    fn remembers_for_the_window_only() {
        let now = Instant::now();
        let mut recent = RecentBlobs::new(WINDOW);
        recent.stored(id(1), now);
        assert_eq!(recent.until(id(1), now), Some(now + WINDOW));
        assert_eq!(recent.until(id(1), now + WINDOW), None);
        assert_eq!(recent.until(id(2), now), None);
        let later = now + WINDOW / 2;
        recent.stored(id(1), later);
        recent.stored(id(2), now + WINDOW);
        assert_eq!(recent.until(id(1), later), Some(later + WINDOW), "stored again");
    }

    #[test]
    fn forgets_the_oldest_when_full() {
        let now = Instant::now();
        let mut recent = RecentBlobs::new(WINDOW);
        for number in 0..=MAX_RECENT {
            recent.stored(id(number), now);
        }
        assert_eq!((recent.stored.len(), recent.oldest_first.len()), (MAX_RECENT, MAX_RECENT));
        assert!(recent.until(id(0), now).is_none() && recent.until(id(1), now).is_some());
    }
}
