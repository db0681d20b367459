//! The head index on disk.

use baton_proto::ids::HeadIndexKey;

use super::{
    super::config::{HeadIdentity, PURGE_INTERVAL_MS},
    Disk, DiskError, HEADS, Totals,
    record::HeadEntry,
    warn_corrupt,
};

impl Disk {
    /// Stores a head record. With `force` the sequence rule is not applied.
    pub(in crate::embedded) fn put_head(
        &self,
        head: HeadIdentity,
        record: &[u8],
        now_ms: u64,
        force: bool,
    ) -> Result<(), DiskError> {
        {
            let mut totals = self.totals();
            let old = self.heads.get(head.key.0)?;
            let known = old.as_deref().and_then(|value| HeadEntry::decode(&head.key.0, value));
            if let Some(known) = known.filter(|_| !force)
                && (known.sequence > head.sequence
                    || (known.sequence == head.sequence && known.record != record))
            {
                return Err(DiskError::Superseded);
            }
            if old.is_none() {
                self.make_room(&mut totals, now_ms)?;
                totals.heads += 1;
            }
            let entry = HeadEntry { sequence: head.sequence, expires_ms: head.expires_ms, record };
            self.heads.insert(head.key.0, entry.encode(head.key))?;
        }
        self.flush()
    }

    /// Drops expired heads when the index is full, at most once a minute.
    fn make_room(&self, totals: &mut Totals, now_ms: u64) -> Result<(), DiskError> {
        if totals.heads < self.max_heads {
            return Ok(());
        }
        if now_ms < totals.next_purge_ms {
            return Err(DiskError::HeadsFull);
        }
        totals.next_purge_ms = now_ms.saturating_add(PURGE_INTERVAL_MS);
        for entry in &self.heads {
            let (key, value) = entry?;
            let live = HeadEntry::decode(&key, &value).is_some_and(|entry| entry.expires_ms > now_ms);
            if !live && self.heads.remove(&key)?.is_some() {
                totals.heads -= 1;
            }
        }
        if totals.heads < self.max_heads { Ok(()) } else { Err(DiskError::HeadsFull) }
    }

    /// A head record that has not expired.
    pub(in crate::embedded) fn head(
        &self,
        key: HeadIndexKey,
        now_ms: u64,
    ) -> Result<Option<Vec<u8>>, DiskError> {
        let Some(value) = self.heads.get(key.0)? else { return Ok(None) };
        let Some(entry) = HeadEntry::decode(&key.0, &value) else {
            warn_corrupt(HEADS, &key.0);
            return Ok(None);
        };
        Ok((entry.expires_ms > now_ms).then(|| entry.record.to_vec()))
    }
}
