//! The head index on disk.

use baton_kit::entries::EntryDatabase;
use baton_proto::ids::HeadIndexKey;

use super::{
    super::config::{HeadIdentity, PURGE_INTERVAL_MS},
    super::error::OperationError,
    Disk,
    record::{Entry, EntryKey},
    state::HeadSlot,
};

impl Disk {
    /// Stores a head record. `force` skips the sequence rule.
    pub(crate) fn put_head(
        &self,
        head: HeadIdentity,
        record: &[u8],
        now_ms: u64,
        force: bool,
    ) -> Result<(), OperationError> {
        {
            let index = self.writable()?;
            let HeadIdentity { key, sequence, expires_ms } = head;
            let known = self.state().table.heads.get(&key.0).copied();
            if let Some(known) = known.filter(|_| !force) {
                let is_other = || Ok::<_, OperationError>(head_in(&index, key)?.as_deref() != Some(record));
                if known.sequence > sequence || (known.sequence == sequence && is_other()?) {
                    return Err(OperationError::Superseded);
                }
            }
            if known.is_none() {
                self.make_room(&index, now_ms)?;
            }
            let entry = Entry::Head { key, sequence, expires_ms, record };
            self.write(&index, &[entry.put(self.next_number())])?;
            self.state().table.heads.insert(key.0, HeadSlot { sequence, expires_ms });
        }
        self.flush()?;
        self.health.works();
        Ok(())
    }

    /// Drops expired heads when the index is full, at most once a minute.
    fn make_room(&self, index: &EntryDatabase, now_ms: u64) -> Result<(), OperationError> {
        let expired = {
            let mut state = self.state();
            if state.table.heads.len() < self.max_heads {
                return Ok(());
            }
            if now_ms < state.next_purge_ms {
                return Err(OperationError::HeadsFull);
            }
            state.next_purge_ms = now_ms.saturating_add(PURGE_INTERVAL_MS);
            state.table.expired_heads(now_ms)
        };
        self.forget(index, &expired)?;
        if self.state().table.heads.len() < self.max_heads { Ok(()) } else { Err(OperationError::HeadsFull) }
    }

    /// A head record that has not expired.
    pub(crate) fn head(&self, key: HeadIndexKey, now_ms: u64) -> Result<Option<Vec<u8>>, OperationError> {
        let expires_ms = self.state().table.heads.get(&key.0).map(|slot| slot.expires_ms);
        if expires_ms.is_none_or(|expires_ms| expires_ms <= now_ms) {
            return Ok(None);
        }
        head_in(&self.index(), key)
    }
}

/// The record under a known key, or `None` when no copy of the index has it whole.
fn head_in(index: &EntryDatabase, key: HeadIndexKey) -> Result<Option<Vec<u8>>, OperationError> {
    let value = index.read(EntryKey::Head(key).parts())?;
    match value.as_deref().and_then(|value| Entry::decode(EntryKey::Head(key), value)) {
        Some(Entry::Head { record, .. }) => Ok(Some(record.to_vec())),
        _ => {
            tracing::error!(key = %key, "a head is damaged in both copies of the index and not served");
            Ok(None)
        }
    }
}
