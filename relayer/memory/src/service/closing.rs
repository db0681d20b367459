//! Closes owners and stores their markers; handles a database with lost data.

use std::sync::atomic::Ordering;

use super::{Memory, OwnerSlot, is_held};
use crate::{
    api::Result,
    dates::millis,
    ids::OwnerId,
    limits::{MAX_OPEN_OWNERS, OWNER_IDLE},
    owner::filler,
    vault::{Loss, Marker},
};

impl Memory {
    /// Closes and wipes owners without a recent request.
    pub fn close_idle(&self) {
        let before = self.now_ms().saturating_sub(millis(OWNER_IDLE));
        self.slots().retain(|_, slot| {
            let stays = is_held(slot) || slot.used_ms.load(Ordering::Relaxed) >= before;
            if !stays {
                self.note_closed(slot);
            }
            stays
        });
    }

    /// Closes one owner, if no task holds it: its next request reads it again.
    pub fn close(&self, owner: OwnerId) {
        if let Some(slot) = self.slots().remove(&owner) {
            self.note_closed(&slot);
        }
    }

    /// Closes all owners and stores their markers, before an orderly exit. A later loss in the database is
    /// noticed from these markers on. After another exit, it is noticed from the last new key on, at most 256
    /// events earlier.
    pub async fn close_all(&self) {
        let slots: Vec<_> = self.slots().drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            // A task that still uses the owner ends first.
            let marker = slot.owner.read().await.as_ref().and_then(|owner| owner.vault.marker());
            self.write_marks(marker.into_iter().collect()).await;
        }
        self.write_closed().await;
    }

    /// Queues the marker of a closed owner.
    pub(super) fn note_closed(&self, slot: &OwnerSlot) {
        let marker = slot.owner.try_read().ok().and_then(|owner| owner.as_ref()?.vault.marker());
        let mut closed = self.inner.closed.lock();
        // Beyond the limit, a loss is noticed from an earlier marker on.
        if closed.len() < MAX_OPEN_OWNERS {
            closed.extend(marker);
        }
    }

    /// Stores the markers of closed owners.
    pub(crate) async fn write_closed(&self) {
        let closed = std::mem::take(&mut *self.inner.closed.lock());
        self.write_marks(closed).await;
    }

    async fn write_marks(&self, markers: Vec<Marker>) {
        for marker in markers {
            if let Err(error) = marker.write().await {
                tracing::warn!(%error, "how far an owner's memory came could not be written down");
            }
        }
    }

    /// Owners whose database part holds less than before.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`](crate::api::MemoryError::Unavailable),
    /// [`MemoryError::Damaged`](crate::api::MemoryError::Damaged).
    pub async fn owners_with_loss(&self) -> Result<Vec<OwnerId>> {
        Ok(self.inner.parts.vault.refused().await?.behind)
    }

    /// Gives up an owner's lost data; the rest is used from then on. This cannot be undone, and no other
    /// relayer may run meanwhile.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`](crate::api::MemoryError::Unavailable);
    /// [`MemoryError::Damaged`](crate::api::MemoryError::Damaged) without the owner's key file.
    pub async fn accept_loss(&self, owner: OwnerId) -> Result<Loss> {
        let slot = self.slot(owner);
        let mut guard = slot.owner.write().await;
        *guard = None;
        let accepted = self.inner.parts.vault.accept_loss(owner, &filler(), self.now_ms()).await;
        drop(guard);
        Ok(accepted?)
    }
}
