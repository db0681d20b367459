//! The call that reads a blob, and its requests.

use baton_proto::{ids::BlobId, store::StoreError};

use super::{
    HttpStore, Verification,
    read::{ReadPlan, Verb},
    verify::ContentCheck,
};

impl HttpStore {
    /// Reads a blob of at most `limit` bytes into memory, verified. A hedged read may hold several answers of this size at
    /// once.
    ///
    /// Cancel safe: dropping it ends all its requests. A started ID computation runs to its end, and its
    /// result is unused.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`] when every reachable aggregator says so.
    /// - [`StoreError::WrongContent`] when none has the right bytes.
    /// - [`StoreError::TooLarge`] over the limit.
    /// - [`StoreError::Refused`] with the reason.
    /// - [`StoreError::Unavailable`] when a later try may help.
    pub async fn read(
        &self,
        id: BlobId,
        limit: u64,
        verification: Verification,
    ) -> Result<Vec<u8>, StoreError> {
        if verification == Verification::BlobId {
            self.inner.ask_shards_once().await;
        }
        let check = ContentCheck::of(verification, id);
        let plan = ReadPlan { id: Some(id), ..ReadPlan::get(blob_path(id), check, limit) };
        self.inner.read(&plan).await
    }
}

/// A HEAD of a blob.
pub(super) fn head_plan(id: BlobId, check: ContentCheck) -> ReadPlan {
    ReadPlan { verb: Verb::Head, id: Some(id), ..ReadPlan::get(blob_path(id), check, 0) }
}

fn blob_path(id: BlobId) -> String {
    format!("v1/blobs/{id}")
}

pub(super) fn refused(reason: String) -> StoreError {
    StoreError::Refused { reason }
}
