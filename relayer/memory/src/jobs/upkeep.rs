//! Upkeep: packs of features, and the key of a database's index.

use super::Step;
use crate::{api::Result, dates::millis, ids::OwnerId, limits::INDEX_KEY_LINGERS, service::Memory};

impl Memory {
    /// Packs the features of full segments, so that the owner opens faster.
    pub(super) async fn pack(&self, owner: OwnerId) -> Result<Step> {
        let packed = self.hold(owner, async |owner| owner.pack_features().await).await?;
        Ok(if packed { Step::Done } else { Step::Idle })
    }

    /// Replaces the key of a database's index rows some time after a deletion. Rewrites the rows under a
    /// fresh key and destroys the old one. Then no guess can be tested against deleted rows on old pages and
    /// logs. Searches use both keys meanwhile. After a crash it starts again with the same fresh key.
    pub(super) async fn reindex(&self, owner: OwnerId) -> Result<Step> {
        if !self.in_database() {
            return Ok(Step::Idle);
        }
        let from_ms = self.read(owner, |owner| Ok(owner.vault().reindex_from_ms())).await?;
        let lingers = millis(INDEX_KEY_LINGERS);
        if from_ms.is_none_or(|from| from > 0 && from.saturating_add(lingers) > self.now_ms()) {
            return Ok(Step::Idle);
        }
        let generation = self
            .hold(owner, async |owner| {
                owner.vault().begin_reindex().await?;
                Ok(owner.vault().index_keys().last().map_or(0, crate::keyring::IndexKeys::generation))
            })
            .await?;
        let mut from = Some(0);
        while let Some(number) = from {
            from = self.hold(owner, async |owner| owner.reindex_page(number).await).await?;
        }
        self.hold(owner, async |owner| Ok(owner.vault().end_reindex(generation).await?)).await?;
        Ok(Step::Done)
    }
}

#[cfg(test)]
mod tests;
