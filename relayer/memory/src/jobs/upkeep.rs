//! Upkeep: packs of features.

use super::Step;
use crate::{api::Result, ids::OwnerId, service::Memory};

impl Memory {
    /// Packs the features of full segments, so that the owner opens faster.
    pub(super) async fn pack(&self, owner: OwnerId) -> Result<Step> {
        let packed = self.hold(owner, async |owner| owner.pack_features().await).await?;
        Ok(if packed { Step::Done } else { Step::Idle })
    }
}

#[cfg(test)]
mod tests;
