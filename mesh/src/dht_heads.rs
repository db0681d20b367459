//! Head records of sessions in the DHT, for callers.

use std::time::Duration;

use baton_proto::{
    SignedObject,
    head::HeadRecord,
    ids::HeadIndexKey,
    store::{HeadIndex, StoreError, StoreFuture},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    dht::{DhtError, LookupResult},
    handle::MeshHandle,
    limits::DHT_QUERY_TIMEOUT,
    records::DhtKey,
};

/// Head records in the DHT.
///
/// A member that stores a record learns neither the session nor its blobs. Dishonest members can harm
/// liveness, never integrity: records are signed, all members near the key are queried, and the highest
/// sequence wins. To hide a record, all of these members must withhold it or return an old one.
#[derive(Debug, Clone)]
pub struct DhtHeads {
    mesh: MeshHandle,
    patience: Duration,
}

impl DhtHeads {
    /// A head index that queries through `mesh`.
    #[must_use]
    pub fn new(mesh: MeshHandle) -> Self {
        Self { mesh, patience: DHT_QUERY_TIMEOUT + Duration::from_secs(2) }
    }

    async fn find(&self, key: HeadIndexKey) -> Result<Option<LookupResult>, StoreError> {
        let search = self.mesh.dht_get(DhtKey::Head(key));
        let found =
            timeout_at(Instant::now() + self.patience, search).await.unwrap_or(Err(DhtError::Timeout));
        let found = found.map_err(unavailable)?;
        if let Some(LookupResult { agreeing, behind, .. }) = &found
            && *behind > 0
        {
            tracing::info!(agreeing, behind, "some members of the DHT show an older head record");
        }
        Ok(found)
    }

    async fn put(&self, record: Vec<u8>) -> Result<(), StoreError> {
        let verified = SignedObject::<HeadRecord>::verify_encoded(&record)
            .map_err(|error| StoreError::Refused { reason: error.to_string() })?;
        let (key, sequence, expires_ms) = (verified.index_key(), verified.sequence, verified.expires_ms);
        // Check for a newer record first: a member accepts any valid record and does not report the one it
        // holds.
        match self.find(key).await {
            Ok(Some(found)) if found.summary.sequence > sequence => return Err(StoreError::HeadSuperseded),
            Ok(Some(found)) if found.summary.sequence == sequence && found.value != record => {
                return Err(StoreError::HeadSuperseded);
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        let put = self.mesh.dht_put(DhtKey::Head(key), record, expires_ms);
        let done = timeout_at(Instant::now() + self.patience, put).await.unwrap_or(Err(DhtError::Timeout));
        done.map_err(unavailable)
    }
}

fn unavailable(error: DhtError) -> StoreError {
    StoreError::Unavailable { reason: error.to_string(), retry_after: None }
}

impl HeadIndex for DhtHeads {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(self.put(record))
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { Ok(self.find(key).await?.map(|found| found.value)) })
    }
}
