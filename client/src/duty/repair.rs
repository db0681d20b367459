//! Repair of the store's copies of a session, once a node could not get the history: the client has the text of every
//! turn, so it can rebuild what is gone. Each PUT may be paid for, so a copy counts as gone only when the store showed
//! other bytes, or said twice that it has none.

use std::sync::Arc;

use baton_proto::{
    ids::BlobId,
    limits::{MAX_BLOB_BYTES, MAX_READ_BLOBS},
    link::BlobRef,
    store::StoreError,
};
use futures::future::join_all;

use crate::{client::Client, error::ClientError, session::Session, state::Entry};

/// What a look at the store's copy of a blob showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copy {
    /// It is there.
    Good,
    /// Other bytes are there.
    Wrong,
    /// The store says that it has none.
    Missing,
    /// The store says nothing, which is no reason to change anything.
    Unknown,
}

impl Client {
    /// Looks at the store's copies of what the next turn reads, and puts the client's own back where they are wrong
    /// or gone.
    pub(crate) async fn repair(&self, session: &Arc<Session>) {
        let ends: Vec<(u64, BlobRef)> = session.read(|state| {
            let ends = state.segment_ends(MAX_READ_BLOBS).into_iter();
            ends.filter_map(|seq| Some((seq, state.blob_ref(seq)?))).collect()
        });
        let first = self.look_at(&ends).await;
        let missing: Vec<(u64, BlobRef)> = with(&first, Copy::Missing).collect();
        let mut lost: Vec<(u64, BlobRef)> = with(&first, Copy::Wrong).collect();
        if !missing.is_empty() {
            tokio::time::sleep(self.inner.config.timeouts.second_look).await;
            let second = self.look_at(&missing).await;
            lost.extend(with(&second, Copy::Missing).chain(with(&second, Copy::Wrong)));
        }
        for (seq, blob) in lost {
            if let Err(error) = self.put_back(session, seq, blob.blob_id).await {
                tracing::warn!(%error, "a lost blob was not put back");
            }
        }
    }

    async fn look_at(&self, blobs: &[(u64, BlobRef)]) -> Vec<((u64, BlobRef), Copy)> {
        let look = |found: &(u64, BlobRef)| {
            let found = *found;
            async move { (found, self.look(&found.1).await) }
        };
        // At most as many as one turn reads.
        join_all(blobs.iter().map(look)).await
    }

    async fn look(&self, blob: &BlobRef) -> Copy {
        match self.inner.config.store.get_checked(blob.blob_id, MAX_BLOB_BYTES, blob.digest).await {
            Ok(bytes) if blob.check(&bytes).is_ok() => Copy::Good,
            Ok(_) | Err(StoreError::WrongContent | StoreError::TooLarge { .. }) => Copy::Wrong,
            Err(StoreError::NotFound) => Copy::Missing,
            Err(error) => {
                tracing::debug!(%error, "a blob could not be looked at");
                Copy::Unknown
            }
        }
    }

    /// Puts a blob without a probe first, because a read just showed that it is not there as it should be.
    pub(crate) async fn put_back(
        &self,
        session: &Arc<Session>,
        seq: u64,
        id: BlobId,
    ) -> Result<(), ClientError> {
        let signals = session.read(|state| state.signals.clone());
        let _permit = signals.puts.acquire().await.map_err(|_| ClientError::TaskEnded)?;
        session.record(vec![Entry::Lost { seq }]).await?;
        let bought = self.put(session, seq, id).await?;
        session.record(bought.entries(seq)).await
    }
}

fn with(looks: &[((u64, BlobRef), Copy)], wanted: Copy) -> impl Iterator<Item = (u64, BlobRef)> + '_ {
    looks.iter().filter(move |(_, copy)| *copy == wanted).map(|(found, _)| *found)
}
