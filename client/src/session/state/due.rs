//! When a session's blobs become due for renewal, as far as known, and the terms of their storage.
//! [`crate::session::lifetime`] computes both from the state.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

/// Most changed blobs to track between two looks; beyond it, the next look is at all blobs.
const MAX_CHANGED: usize = 64;

/// When a session's blobs become due, as far as known, so that a turn examines only the blobs that changed
/// since the last look.
#[derive(Debug, Clone, Default)]
pub(crate) struct DueWatch {
    /// No unchanged blob is due before this; none before the first look.
    pub(crate) from_ms: Option<u64>,
    /// Last turns of blobs that changed since the last look.
    pub(crate) changed: BTreeSet<u64>,
}

impl DueWatch {
    /// Marks a turn's blob as changed.
    pub(crate) fn changed(&mut self, seq: u64) {
        if self.from_ms.is_some() {
            self.changed.insert(seq);
        }
        if self.changed.len() > MAX_CHANGED {
            self.all_changed();
        }
    }

    /// Forces the next look to examine every blob.
    pub(crate) fn all_changed(&mut self) {
        *self = Self::default();
    }
}

/// Length of an epoch, and epochs for which blobs are stored if a blob's own number is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StorageTerms {
    pub(crate) epoch: Duration,
    pub(crate) open_epochs: u32,
    pub(crate) closed_epochs: u32,
}

impl StorageTerms {
    /// Length of an epoch in milliseconds.
    pub(crate) fn epoch_ms(self) -> u64 {
        u64::try_from(self.epoch.as_millis()).unwrap_or(u64::MAX)
    }
}
