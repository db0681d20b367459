//! A turn whose owner's memory is unreadable: the turn runs, and reads or writes no data of the owner.
//!
//! Its records ([`RecordStore::Request`](super::session_records::RecordStore)) live for one request. The root alone
//! recovers the session from the store, and its journal ends with the request. Leases are local: another relayer may
//! drive the session at the same time, and the chain of links then decides between them.

use std::{collections::HashSet, sync::Arc};

use baton_memory::{api::MemoryError, ids::OwnerId};
use baton_proto::ids::SessionId;
use parking_lot::Mutex;

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
        self.0.lock().insert(key).then(|| DrivenSession { all: self.clone(), key })
    }
}

/// The right to drive a session without memory.
pub(super) struct DrivenSession {
    all: DrivenSessions,
    key: (OwnerId, SessionId),
}

impl Drop for DrivenSession {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.key);
    }
}
