//! A Baton store's head route as a [`HeadIndex`]. Each call is one request; the caller decides on retries.

use baton_proto::{
    ids::HeadIndexKey,
    store::{HeadIndex, StoreError, StoreFuture},
};
use reqwest::{RequestBuilder, Response, StatusCode};
use tokio::time::timeout;

use super::{HttpStore, HttpStoreInner, fetch::failure, join};
use crate::{
    MAX_HEAD_BYTES,
    http_client::{describe, read_bounded},
};

impl HttpStoreInner {
    fn heads(&self, path: &str) -> Result<reqwest::Url, StoreError> {
        let base = self.heads.as_ref();
        join(
            base.ok_or_else(|| StoreError::Refused { reason: "no head index is configured".to_owned() })?,
            path,
        )
    }

    async fn publish_head(&self, record: Vec<u8>) -> Result<(), StoreError> {
        let length = record.len() as u64;
        if record.len() > MAX_HEAD_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_HEAD_BYTES as u64 });
        }
        let url = self.heads("v1/baton/heads")?;
        let response = self.send_head(self.client(&url).put(url).body(record)).await?;
        if response.status().is_success() {
            return Ok(());
        }
        Err(failure(response).await.of_publish(length))
    }

    async fn resolve_head(&self, key: HeadIndexKey) -> Result<Option<Vec<u8>>, StoreError> {
        let url = self.heads(&format!("v1/baton/heads/{key}"))?;
        let response = self.send_head(self.client(&url).get(url)).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        if !response.status().is_success() {
            return failure(response).await.of_resolve().map_or(Ok(None), Err);
        }
        let limit = MAX_HEAD_BYTES as u64;
        match read_bounded(response, limit).await {
            Ok(record) => Ok(Some(record)),
            Err(None) => Err(StoreError::TooLarge { length: limit + 1, limit }),
            Err(Some(error)) => Err(unavailable(describe(&error))),
        }
    }

    async fn send_head(&self, request: RequestBuilder) -> Result<Response, StoreError> {
        request.send().await.map_err(|error| unavailable(describe(&error)))
    }

    /// Runs within the base timeout: head records are small.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let done = timeout(self.policy.base_timeout, work).await;
        done.unwrap_or_else(|_| Err(unavailable("timed out".to_owned())))
    }
}

fn unavailable(reason: String) -> StoreError {
    StoreError::Unavailable { reason, retry_after: None }
}

impl HeadIndex for HttpStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(self.inner.in_time(self.inner.publish_head(record)))
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(self.inner.in_time(self.inner.resolve_head(key)))
    }
}
