//! A turn whose owner's memory is unreadable: the turn runs, and reads or writes no data of the owner.
//!
//! [`Memoryless`] replaces memory for one request. The root alone recovers the session from the store, and
//! its journal ends with the request. Leases are local: another relayer may drive the session at the same
//! time, and the chain of links then decides between them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use baton_memory::{
    api::{ItemView, MemoryError, Place, Recall, RecallMode, RecallRequest, Result, TurnRecord},
    ids::OwnerId,
};
use baton_proto::ids::SessionId;
use futures::future::BoxFuture;

use crate::{
    delegation::registry::{Change, Records},
    injection::Recollection,
};

/// Why memory is off for a turn, in words for the user; `None` if the error is not a failure of memory.
pub(super) fn reason(error: &MemoryError) -> Option<String> {
    match error {
        // The text names the operator's next step, as in a recall's answer.
        MemoryError::Lost(_) => Some(error.to_string()),
        // A storage's error text is for the operator, in the log.
        MemoryError::Damaged(_) => Some(
            "what is stored for this owner cannot be used: have the operator put a backup of the database back, or erase \
             the owner and import an export"
                .to_owned(),
        ),
        MemoryError::Unavailable(_) => Some(
            "memory is unavailable for now: the operator finds the reason and the fix at /readyz and in the log"
                .to_owned(),
        ),
        MemoryError::NotFound(_)
        | MemoryError::Invalid(_)
        | MemoryError::Conflict(_)
        | MemoryError::Full(_) => None,
    }
}

/// Sessions without memory that are in use now. Clones share them; their number is limited by concurrent
/// conversations.
#[derive(Clone, Default)]
pub(super) struct DrivenSessions(Arc<Mutex<HashSet<(OwnerId, SessionId)>>>);

impl DrivenSessions {
    /// The right to drive a session until the value is dropped; `None` while another request drives it.
    pub(super) fn take(&self, owner: OwnerId, session: SessionId) -> Option<DrivenSession> {
        let key = (owner, session);
        let mut driven = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        driven.insert(key).then(|| DrivenSession { all: self.clone(), key })
    }
}

/// The right to drive a session without memory.
pub(super) struct DrivenSession {
    all: DrivenSessions,
    key: (OwnerId, SessionId),
}

impl Drop for DrivenSession {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// The replacement of memory for one request. Its records end with it.
pub(super) struct Memoryless {
    reason: String,
    records: Mutex<HashMap<(OwnerId, String), Vec<u8>>>,
}

impl Memoryless {
    pub(super) fn new(reason: String) -> Self {
        Self { reason, records: Mutex::default() }
    }

    fn refused<T>(&self) -> Result<T> {
        Err(MemoryError::Unavailable(self.reason.clone()))
    }

    fn write(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes {
            Some(bytes) => drop(records.insert((owner, name), bytes)),
            None => drop(records.remove(&(owner, name))),
        }
    }

    fn read(&self, owner: OwnerId, name: String) -> Option<Vec<u8>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&(owner, name)).cloned()
    }
}

impl Records for Memoryless {
    /// Always succeeds: [`DrivenSessions`] decides on the right to drive a session.
    fn take_nonce(&self, _: [u8; 32], _: u64, _: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    fn take_nonce_to_read(&self, _: [u8; 32], _: u64, _: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    fn has_nonce(&self, _: [u8; 32], _: u64) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    fn get(&self, owner: OwnerId, name: String) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(async move { Ok(self.read(owner, name)) })
    }

    fn put(&self, owner: OwnerId, name: String, bytes: Option<Vec<u8>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.write(owner, name, bytes);
            Ok(())
        })
    }

    fn change<'a>(
        &'a self,
        owner: OwnerId,
        names: Vec<String>,
        mut change: Change<'a>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Only this request writes here, so nothing changes in between.
            let read: Vec<_> = names.into_iter().map(|name| self.read(owner, name)).collect();
            for (name, bytes) in change(&read)? {
                self.write(owner, name, bytes);
            }
            Ok(())
        })
    }
}

impl Recollection for Memoryless {
    fn recall(&self, _: OwnerId, _: RecallRequest) -> BoxFuture<'_, Recall> {
        let degraded = Some(self.reason.clone());
        let none =
            Recall { hits: Vec::new(), dropped: Vec::new(), mode: RecallMode::None, degraded, took_us: 0 };
        Box::pin(async { none })
    }

    fn profile(&self, _: OwnerId, _: Place) -> BoxFuture<'_, Result<Vec<ItemView>>> {
        Box::pin(async { self.refused() })
    }

    fn begin_session(&self, _: OwnerId, _: Place) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { self.refused() })
    }

    fn knows_session(&self, _: OwnerId, _: String) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { self.refused() })
    }

    fn record_turn(&self, _: OwnerId, _: TurnRecord) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { self.refused() })
    }
}
