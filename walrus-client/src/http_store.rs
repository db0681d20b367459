//! A Walrus publisher and aggregator as a [`BlobStore`], and a Baton store's head route as a [`HeadIndex`].
//!
//! Node and client call it through those traits. It never repeats a PUT, never follows a redirect, and never
//! takes more of an answer into memory than it was allowed. It does not retry at all: what to do about a
//! failure is its caller's decision, and [`StoreError`] says what is known.
//!
//! All calls are cancel safe in that nothing here is left half done; a PUT dropped after it was sent may of
//! course have been stored.

mod answer;
mod config;

use std::time::Duration;

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, header};

use crate::{MAX_HEAD_BYTES, ShardCount, blob_id, encoded_length};
use answer::Failure;
pub use config::{HttpStoreBuilder, HttpStoreConfigError};

/// Largest answer to a PUT, and largest error body, that is read: Walrus's own are below 2 KiB.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Memory reserved for a body at once on the word of its announced length; more grows as bytes arrive.
const MAX_RESERVE_BYTES: usize = 1024 * 1024;

/// A publisher and an aggregator (often one daemon), spoken to over HTTP. Cloning shares the connections.
#[derive(Debug, Clone)]
pub struct HttpStore {
    client: Client,
    publisher: Url,
    aggregator: Url,
    heads: Url,
    shards: ShardCount,
    base_timeout: Duration,
    min_bytes_per_second: u64,
    max_put_bytes: usize,
}

impl HttpStore {
    /// Starts from the base URLs of publisher and aggregator, and the network's shard count, without which
    /// no returned ID can be checked.
    #[must_use]
    pub fn builder(publisher: &str, aggregator: &str, shards: ShardCount) -> HttpStoreBuilder {
        HttpStoreBuilder::new(publisher, aggregator, shards)
    }

    /// The shard count that IDs are computed for.
    #[must_use]
    pub fn shards(&self) -> ShardCount {
        self.shards
    }

    /// As [`BlobStore::put`], for a caller that has computed the ID already.
    ///
    /// # Errors
    /// [`StoreError`]; in particular [`StoreError::WrongContent`] when the store names another ID.
    pub async fn put_with_id(
        &self,
        bytes: Vec<u8>,
        options: PutOptions,
        id: BlobId,
    ) -> Result<PutOutcome, StoreError> {
        self.check_put(bytes.len())?;
        let answer = self.send_put(Bytes::from(bytes), options).await?;
        answer::put_outcome(&answer, id)
    }

    /// As [`BlobStore::get`], and checks that the bytes are those of the ID (0.1 s of CPU and more at a
    /// thousand shards, on a blocking thread).
    ///
    /// # Errors
    /// [`StoreError`]; in particular [`StoreError::WrongContent`] when the bytes have another ID.
    pub async fn get_verified(&self, id: BlobId, limit: usize) -> Result<Vec<u8>, StoreError> {
        let bytes = Bytes::from(self.fetch(id, limit).await?);
        match self.compute_id(bytes.clone()).await {
            Ok(found) if found == id => Ok(bytes.into()),
            Ok(_) | Err(StoreError::TooLarge { .. }) => Err(StoreError::WrongContent),
            Err(error) => Err(error),
        }
    }

    /// Refuses what the settings or the encoding cannot take, before anything is sent.
    fn check_put(&self, length: usize) -> Result<(), StoreError> {
        let limit = self.shards.max_blob_length().min(self.max_put_bytes as u64);
        let length = length as u64;
        if length > limit || encoded_length(length, self.shards).is_err() {
            return Err(StoreError::TooLarge { length, limit });
        }
        Ok(())
    }

    /// Sends the one PUT; the body of its 200.
    async fn send_put(&self, bytes: Bytes, options: PutOptions) -> Result<Vec<u8>, StoreError> {
        let length = bytes.len() as u64;
        let mut url = join(&self.publisher, "v1/blobs")?;
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("epochs", &options.epochs.to_string());
            query.append_pair(if options.permanent { "permanent" } else { "deletable" }, "true");
            if let Some(owner) = options.send_object_to {
                query.append_pair("send_object_to", &format!("0x{owner}"));
            }
        }
        let request =
            self.client.put(url).header(header::CONTENT_TYPE, "application/octet-stream").body(bytes);
        let response = self.send(request, length).await.map_err(|error| put_error(&error))?;
        if response.status() != StatusCode::OK {
            return Err(failure(response).await.of_put(length));
        }
        match read_bounded(response, MAX_ANSWER_BYTES).await {
            Ok(body) => Ok(body),
            Err(ReadError::Broken(error)) => Err(StoreError::OutcomeUnknown { reason: describe(&error) }),
            Err(ReadError::TooLarge(_)) => {
                Err(StoreError::OutcomeUnknown { reason: "the answer is too long".to_owned() })
            }
        }
    }

    /// The whole blob, unverified.
    async fn fetch(&self, id: BlobId, limit: usize) -> Result<Vec<u8>, StoreError> {
        let request = self.client.get(join(&self.aggregator, &format!("v1/blobs/{id}"))?);
        let response = self.send_read(request, limit).await?;
        if response.status() != StatusCode::OK {
            return Err(failure(response).await.of_get());
        }
        self.read_body(response, limit).await
    }

    async fn probe(&self, id: BlobId) -> Result<bool, StoreError> {
        let request = self.client.head(join(&self.aggregator, &format!("v1/blobs/{id}"))?);
        let response = self.send_read(request, 0).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(failure(response).await.of_get()),
        }
    }

    async fn publish_head(&self, record: Vec<u8>) -> Result<(), StoreError> {
        let length = record.len() as u64;
        if record.len() > MAX_HEAD_BYTES {
            return Err(StoreError::TooLarge { length, limit: MAX_HEAD_BYTES as u64 });
        }
        let request = self.client.put(join(&self.heads, "v1/baton/heads")?).body(record);
        let response = self.send(request, length).await.map_err(|error| read_error(&error))?;
        if response.status() == StatusCode::OK {
            return Ok(());
        }
        Err(failure(response).await.of_publish(length))
    }

    async fn resolve_head(&self, key: HeadIndexKey) -> Result<Option<Vec<u8>>, StoreError> {
        let request = self.client.get(join(&self.heads, &format!("v1/baton/heads/{key}"))?);
        let response = self.send_read(request, MAX_HEAD_BYTES).await?;
        if response.status() == StatusCode::OK {
            return self.read_body(response, MAX_HEAD_BYTES).await.map(Some);
        }
        failure(response).await.of_resolve().map_or(Ok(None), Err)
    }

    /// Sends a request under the deadline for a body of `length` bytes, in whichever direction it goes.
    async fn send(&self, request: RequestBuilder, length: u64) -> Result<Response, reqwest::Error> {
        request.timeout(self.deadline(length)).send().await
    }

    /// Sends a request for at most `limit` bytes. The answer must begin within the base timeout: only its
    /// body earns more time, and `limit` may be far above what there is.
    async fn send_read(&self, request: RequestBuilder, limit: usize) -> Result<Response, StoreError> {
        match tokio::time::timeout(self.base_timeout, self.send(request, limit as u64)).await {
            Ok(answer) => answer.map_err(|error| read_error(&error)),
            Err(_) => Err(timed_out()),
        }
    }

    /// Reads the body of such an answer, in the time that its announced length earns.
    async fn read_body(&self, response: Response, limit: usize) -> Result<Vec<u8>, StoreError> {
        let length = response.content_length().unwrap_or(limit as u64);
        match tokio::time::timeout(self.deadline(length), read_bounded(response, limit)).await {
            Ok(body) => body.map_err(|error| error.of_read(limit)),
            Err(_) => Err(timed_out()),
        }
    }

    /// The time that a transfer of `length` bytes may take.
    fn deadline(&self, length: u64) -> Duration {
        self.base_timeout.saturating_add(Duration::from_secs(length / self.min_bytes_per_second))
    }

    /// The ID of these bytes, computed off the reactor.
    async fn compute_id(&self, bytes: Bytes) -> Result<BlobId, StoreError> {
        let shards = self.shards;
        match tokio::task::spawn_blocking(move || blob_id(&bytes, shards)).await {
            Ok(Ok(id)) => Ok(id),
            Ok(Err(crate::BlobIdError::TooLarge { length, limit, .. })) => {
                Err(StoreError::TooLarge { length, limit })
            }
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => {
                    Err(StoreError::OutcomeUnknown { reason: "the runtime is shutting down".to_owned() })
                }
            },
        }
    }
}

impl BlobStore for HttpStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move {
            self.check_put(bytes.len())?;
            let bytes = Bytes::from(bytes);
            // The ID is needed only once the answer is there, and a store takes its time.
            let (id, answer) = tokio::join!(self.compute_id(bytes.clone()), self.send_put(bytes, options));
            let answer = answer?;
            answer::put_outcome(&answer, id?)
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(self.fetch(id, limit))
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(self.probe(id))
    }
}

impl HeadIndex for HttpStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(self.publish_head(record))
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(self.resolve_head(key))
    }
}

/// Joins a relative path of this crate's own making to a checked base URL.
fn join(base: &Url, path: &str) -> Result<Url, StoreError> {
    base.join(path).map_err(|error| StoreError::Refused { reason: format!("the store's URL: {error}") })
}

/// Why a body could not be read whole.
enum ReadError {
    /// More than allowed: announced, or read so far.
    TooLarge(u64),
    Broken(reqwest::Error),
}

impl ReadError {
    fn of_read(&self, limit: usize) -> StoreError {
        match self {
            Self::TooLarge(length) => StoreError::TooLarge { length: *length, limit: limit as u64 },
            Self::Broken(error) => read_error(error),
        }
    }
}

/// Reads a body of at most `limit` bytes; at most one chunk more is ever held.
async fn read_bounded(mut response: Response, limit: usize) -> Result<Vec<u8>, ReadError> {
    let announced = response.content_length();
    if let Some(length) = announced.filter(|length| *length > limit as u64) {
        return Err(ReadError::TooLarge(length));
    }
    let reserve = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let mut body = Vec::with_capacity(reserve.min(MAX_RESERVE_BYTES));
    while let Some(chunk) = response.chunk().await.map_err(ReadError::Broken)? {
        if chunk.len() > limit - body.len() {
            return Err(ReadError::TooLarge(body.len() as u64 + chunk.len() as u64));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Takes what is needed of an answer that is not a success. A broken error body is no error of its own.
async fn failure(response: Response) -> Failure {
    let status = response.status().as_u16();
    let header = response.headers().get(header::RETRY_AFTER);
    let retry_after = header.and_then(|value| value.to_str().ok()).and_then(answer::retry_after);
    let body = read_bounded(response, MAX_ANSWER_BYTES).await.unwrap_or_default();
    Failure { status, retry_after, body }
}

/// A PUT that got no answer: only when no connection came about is it certain that nothing was sent.
fn put_error(error: &reqwest::Error) -> StoreError {
    let reason = describe(error);
    if error.is_connect() || error.is_builder() {
        StoreError::Unavailable { reason, retry_after: None }
    } else {
        StoreError::OutcomeUnknown { reason }
    }
}

/// A request that may be repeated got no whole answer.
fn read_error(error: &reqwest::Error) -> StoreError {
    StoreError::Unavailable { reason: describe(error), retry_after: None }
}

fn timed_out() -> StoreError {
    StoreError::Unavailable { reason: "timed out".to_owned(), retry_after: None }
}

/// The innermost cause, which is what an operator can act on; never the URL, which holds a blob's ID.
fn describe(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let kind = if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "could not connect"
    } else {
        "the connection failed"
    };
    if std::ptr::addr_eq(cause, error) { kind.to_owned() } else { format!("{kind}: {cause}") }
}
