//! Which lies were told, so that what clients made of them can be compared.

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

/// An attempt as both sides know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The session.
    pub session: SessionId,
    /// The turn's place.
    pub seq: u64,
    /// The attempt.
    pub attempt: u32,
}

impl AttemptKey {
    /// Of an authorisation.
    #[must_use]
    pub fn of(auth: &TurnAuth) -> Self {
        Self { session: auth.session_id, seq: auth.seq, attempt: auth.attempt }
    }
}

/// A lie that was told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Which.
    pub lie: Lie,
    /// When.
    pub at: Instant,
    /// The link that was committed first, where there are two.
    pub first_link: Option<LinkHash>,
}

/// All that was told; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<HashMap<AttemptKey, Told>>>);

impl Ledger {
    pub(super) fn tell(&self, key: AttemptKey, lie: Lie, first_link: Option<LinkHash>) {
        let told = Told { lie, at: Instant::now(), first_link };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, told);
    }

    /// What was told in an attempt.
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
