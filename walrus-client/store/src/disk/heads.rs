//! The head index on disk.

use baton_proto::ids::HeadIndexKey;

use super::{
    super::config::{HeadIdentity, PURGE_INTERVAL_MS},
    Disk, DiskError,
    record::Entry,
    state::IndexState,
};

impl Disk {
    /// Stores a head record. `force` skips the sequence rule.
    pub(crate) fn put_head(
        &self,
        head: HeadIdentity,
        record: &[u8],
        now_ms: u64,
        force: bool,
    ) -> Result<(), DiskError> {
        {
            let mut state = self.writable()?;
            let known = state.table.heads.get(&head.key.0).copied();
            if let Some(known) = known.filter(|_| !force) {
                let is_other =
                    || Ok::<_, DiskError>(self.head_in(&state, head.key)?.as_deref() != Some(record));
                if known.sequence > head.sequence || (known.sequence == head.sequence && is_other()?) {
                    return Err(DiskError::Superseded);
                }
            }
            if known.is_none() {
                self.make_room(&mut state, now_ms)?;
            }
            self.health.note(state.put_head(head.key, head.sequence, head.expires_ms, record))?;
            self.tidy(&mut state);
        }
        self.flush()?;
        self.health.works();
        Ok(())
    }

    /// Drops expired heads when the index is full, at most once a minute.
    fn make_room(&self, state: &mut IndexState, now_ms: u64) -> Result<(), DiskError> {
        if state.table.heads.len() < self.max_heads {
            return Ok(());
        }
        if now_ms < state.next_purge_ms {
            return Err(DiskError::HeadsFull);
        }
        state.next_purge_ms = now_ms.saturating_add(PURGE_INTERVAL_MS);
        state.table.heads.retain(|_, slot| slot.expires_ms > now_ms);
        if state.table.heads.len() < self.max_heads { Ok(()) } else { Err(DiskError::HeadsFull) }
    }

    /// A head record that has not expired.
    pub(crate) fn head(&self, key: HeadIndexKey, now_ms: u64) -> Result<Option<Vec<u8>>, DiskError> {
        let state = self.state();
        if state.table.heads.get(&key.0).is_none_or(|slot| slot.expires_ms <= now_ms) {
            return Ok(None);
        }
        self.head_in(&state, key)
    }

    /// The record under a key, or `None` when there is none or no copy of the log has it whole.
    fn head_in(&self, state: &IndexState, key: HeadIndexKey) -> Result<Option<Vec<u8>>, DiskError> {
        let Some(slot) = state.table.heads.get(&key.0) else { return Ok(None) };
        let payload = state.journal.view().read(slot.location)?;
        match payload.as_deref().and_then(Entry::decode) {
            Some(Entry::Head { key: found, record, .. }) if found == key => Ok(Some(record.to_vec())),
            _ => {
                tracing::error!(key = %key, "a head is damaged in both copies of the index and not served");
                Ok(None)
            }
        }
    }
}
