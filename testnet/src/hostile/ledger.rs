//! The record of all lies, for comparison with the clients' findings.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use baton_proto::{
    ids::{LinkHash, SessionId},
    turn::TurnAuth,
};

use super::Lie;

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

/// A lie that was told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Which lie.
    pub lie: Lie,
    /// When it was told.
    pub at: Instant,
    /// The first committed link, if there are two.
    pub first_link: Option<LinkHash>,
}

/// All lies told; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<HashMap<AttemptKey, Told>>>);

impl Ledger {
    pub(super) fn tell(&self, key: AttemptKey, lie: Lie, first_link: Option<LinkHash>) {
        let told = Told { lie, at: Instant::now(), first_link };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, told);
    }

    /// The lie told in an attempt, if any.
    #[must_use]
    pub fn told(&self, key: &AttemptKey) -> Option<Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    /// How often each lie was told.
    #[must_use]
    pub fn counts(&self) -> HashMap<Lie, u64> {
        let mut counts = HashMap::new();
        for told in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            *counts.entry(told.lie).or_default() += 1;
        }
        counts
    }
}
