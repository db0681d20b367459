//! Places for blobs on their way to the store. Blobs of unknown peers never delay those of the others, and when
//! too many of them wait, the node takes no more turns of unknown peers: each would wait for the store in vain.

use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::limits::{MAX_CONCURRENT_PUTS, MAX_STORING, MAX_STORING_UNKNOWN};
use crate::lock::lock;

/// The blobs that are being stored.
#[derive(Debug)]
pub(crate) struct StoreQueue {
    /// Limits concurrent PUTs.
    puts: Semaphore,
    /// Limits those of unknown peers, to half.
    puts_of_unknown: Semaphore,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    unknown: usize,
}

/// The place of a blob; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct StorePlace {
    queue: Arc<StoreQueue>,
    unknown: bool,
}

/// The right to one PUT.
#[derive(Debug)]
pub(crate) struct PutPermit<'a> {
    _put: SemaphorePermit<'a>,
    _of_unknown: Option<SemaphorePermit<'a>>,
}

impl StoreQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            puts: Semaphore::new(MAX_CONCURRENT_PUTS),
            puts_of_unknown: Semaphore::new(MAX_CONCURRENT_PUTS / 2),
            counts: Mutex::default(),
        })
    }

    /// Whether the node may take one more turn. Turns that are already admitted may exceed the limits by their
    /// number.
    pub(crate) fn has_room(&self, unknown: bool) -> bool {
        let counts = lock(&self.counts);
        counts.all < MAX_STORING && (!unknown || counts.unknown < MAX_STORING_UNKNOWN)
    }

    /// Adds a blob of an unknown peer, or of another.
    pub(crate) fn enter(self: &Arc<Self>, unknown: bool) -> StorePlace {
        let mut counts = lock(&self.counts);
        counts.all += 1;
        counts.unknown += usize::from(unknown);
        StorePlace { queue: self.clone(), unknown }
    }
}

impl StorePlace {
    /// Waits for the right to a PUT. Cancel safe.
    pub(crate) async fn permit(&self) -> PutPermit<'_> {
        let open = "the semaphore is never closed";
        let of_unknown = match self.unknown {
            true => Some(self.queue.puts_of_unknown.acquire().await.expect(open)),
            false => None,
        };
        PutPermit { _put: self.queue.puts.acquire().await.expect(open), _of_unknown: of_unknown }
    }
}

impl Drop for StorePlace {
    fn drop(&mut self) {
        let mut counts = lock(&self.queue.counts);
        counts.all -= 1;
        counts.unknown -= usize::from(self.unknown);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn unknown_peers_have_half_of_the_puts_and_wait_behind_no_one_else() {
        let queue = StoreQueue::new();
        let unknown: Vec<StorePlace> = (0..MAX_CONCURRENT_PUTS).map(|_| queue.enter(true)).collect();
        let begun: Vec<_> = unknown.iter().filter_map(|place| place.permit().now_or_never()).collect();
        assert_eq!(begun.len(), MAX_CONCURRENT_PUTS / 2);
        let known: Vec<StorePlace> = (0..MAX_CONCURRENT_PUTS).map(|_| queue.enter(false)).collect();
        let others: Vec<_> = known.iter().filter_map(|place| place.permit().now_or_never()).collect();
        assert_eq!(others.len(), MAX_CONCURRENT_PUTS / 2, "the other half");
    }

    #[tokio::test]
    async fn turns_of_unknown_peers_are_refused_while_many_of_their_blobs_wait() {
        let queue = StoreQueue::new();
        let mut places: Vec<StorePlace> = (0..MAX_STORING_UNKNOWN).map(|_| queue.enter(true)).collect();
        assert!(!queue.has_room(true) && queue.has_room(false));
        places.pop();
        assert!(queue.has_room(true), "a place is free again");
        places.extend((places.len()..MAX_STORING).map(|_| queue.enter(false)));
        assert!(!queue.has_room(true) && !queue.has_room(false));
        drop(places);
        assert!(queue.has_room(true) && queue.has_room(false));
    }
}
