//! The record of all misbehaviour, for comparison with the clients' findings.

use std::{collections::HashMap, sync::Arc, time::Instant};

use baton_proto::{
    ids::{LinkHash, SessionId},
    turn::TurnAuth,
};
use parking_lot::Mutex;

use super::Misbehaviour;

/// The key of an attempt, known to both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The session.
    pub session: SessionId,
    /// The turn's sequence number.
    pub seq: u64,
    /// The attempt's number.
    pub attempt: u32,
}

impl AttemptKey {
    /// The key of an authorisation's attempt.
    #[must_use]
    pub fn of(auth: &TurnAuth) -> Self {
        Self { session: auth.session_id, seq: auth.seq, attempt: auth.attempt }
    }
}

/// One misbehaviour, as it happened.
#[derive(Clone, Copy, Debug)]
pub struct MisbehaviourEntry {
    /// Which misbehaviour.
    pub misbehaviour: Misbehaviour,
    /// When it happened.
    pub at: Instant,
    /// The accepted link: the first of two, or the only one of a turn whose blob is not stored.
    pub first_link: Option<LinkHash>,
}

/// All misbehaviour of a run; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MisbehaviourLog(Arc<Mutex<HashMap<AttemptKey, MisbehaviourEntry>>>);

impl MisbehaviourLog {
    pub(super) fn record(&self, key: AttemptKey, misbehaviour: Misbehaviour, first_link: Option<LinkHash>) {
        let entry = MisbehaviourEntry { misbehaviour, at: Instant::now(), first_link };
        self.0.lock().insert(key, entry);
    }

    /// The misbehaviour in an attempt, if any.
    #[must_use]
    pub fn entry(&self, key: &AttemptKey) -> Option<MisbehaviourEntry> {
        self.0.lock().get(key).copied()
    }

    /// How often each misbehaviour happened.
    #[must_use]
    pub fn counts(&self) -> HashMap<Misbehaviour, u64> {
        let mut counts = HashMap::new();
        for entry in self.0.lock().values() {
            *counts.entry(entry.misbehaviour).or_default() += 1;
        }
        counts
    }
}
