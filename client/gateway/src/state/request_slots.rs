//! The requests that are served at once. Each key with a name has a share of them, and some are the owner's alone.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Most requests served at once: more than one person's programs make.
const MAX_REQUESTS: usize = 64;
/// Most of them of one key with a name: its programs do not stop those of others.
const MAX_KEY_REQUESTS: usize = 8;
/// Those that no key with a name takes, however many keys there are.
const OWNER_REQUESTS: usize = 2;

/// The requests that are served, by the name of their key; `None` is the owner.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestSlots(Arc<Mutex<HashMap<Option<String>, usize>>>);

/// The right to be served, until it is dropped.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    slots: RequestSlots,
    name: Option<String>,
}

impl RequestSlots {
    /// Takes a slot; none while the caller or all callers have as many as they may.
    pub(crate) fn take(&self, name: Option<String>) -> Option<RequestSlot> {
        let mut taken = self.0.lock();
        let count = |name: &Option<String>| taken.get(name).copied().unwrap_or_default();
        let all: usize = taken.values().sum();
        let fits = match &name {
            None => all < MAX_REQUESTS,
            Some(_) => {
                let kept = OWNER_REQUESTS.saturating_sub(count(&None));
                count(&name) < MAX_KEY_REQUESTS && all + kept < MAX_REQUESTS
            }
        };
        if !fits {
            return None;
        }
        *taken.entry(name.clone()).or_default() += 1;
        Some(RequestSlot { slots: self.clone(), name })
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock();
        if let Some(count) = taken.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_share_and_all_keys_together_leave_some_to_the_owner() {
        let slots = RequestSlots::default();
        let key = |number: usize| Some(format!("key {number}"));
        let mut taken: Vec<_> = (0..MAX_KEY_REQUESTS).map(|_| slots.take(key(0)).unwrap()).collect();
        assert!(slots.take(key(0)).is_none(), "its share");
        taken.extend((1..100).map_while(|number| slots.take(key(number))));
        assert_eq!(taken.len(), MAX_REQUESTS - OWNER_REQUESTS);
        let own: Vec<_> = (0..OWNER_REQUESTS).map(|_| slots.take(None).unwrap()).collect();
        assert!(slots.take(None).is_none() && slots.take(key(200)).is_none(), "all of them");
        drop(taken.pop());
        drop((slots.take(key(200)).unwrap(), own));
        assert!(slots.take(key(200)).is_some() && slots.take(key(201)).is_some());
        taken.clear();
        assert!(slots.0.lock().is_empty(), "an ended request leaves nothing");
        let all: Vec<_> = std::iter::from_fn(|| slots.take(None)).collect();
        assert_eq!(all.len(), MAX_REQUESTS, "the owner may use all");
    }
}
