//! A Walrus-compatible store over `fetch`: blobs from an aggregator, head records from an index.
//!
//! A page reads far more than it writes: nodes store the blobs of turns. Nothing is believed: the client compares
//! each blob with its hash, and each head record with its signature. All bodies are bounded.

use std::sync::Arc;

use baton_proto::{
    ids::{BlobId, HeadIndexKey},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use baton_walrus_client::{MAX_HEAD_BYTES, ShardCount, blob_id, wire};
use js_sys::{Reflect, Uint8Array};
use send_wrapper::SendWrapper;
use tokio::time::timeout;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{ReadableStreamDefaultReader, Request, RequestCache, RequestInit, RequestRedirect, Response};

/// Time limit of a request. Walrus takes some 20 s to certify a blob.
const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Longest answer to a PUT; Walrus's own are below 2 KiB.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The URLs of a store.
pub(crate) struct FetchStore {
    publisher: String,
    aggregator: String,
    heads: String,
    shards: ShardCount,
}

/// An answer: its status and its bounded body.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl FetchStore {
    /// A store with these base URLs.
    pub(crate) fn new(publisher: &str, aggregator: &str, heads: &str, shards: ShardCount) -> Arc<Self> {
        let base = |url: &str| url.trim_end_matches('/').to_owned();
        Arc::new(Self {
            publisher: base(publisher),
            aggregator: base(aggregator),
            heads: base(heads),
            shards,
        })
    }

    async fn put_blob(&self, bytes: Vec<u8>, options: PutOptions) -> Result<PutOutcome, StoreError> {
        let own = blob_id(&bytes, self.shards)
            .map_err(|error| StoreError::Refused { reason: error.to_string() })?;
        let lifetime = if options.permanent { "permanent" } else { "deletable" };
        let owner = options.send_object_to.map(|to| format!("&send_object_to={to}")).unwrap_or_default();
        let url = format!("{}/v1/blobs?epochs={}&{lifetime}=true{owner}", self.publisher, options.epochs);
        // After this point the blob may be stored, whatever the answer.
        let answer = ask("PUT", &url, Some(&bytes), MAX_ANSWER_BYTES).await.map_err(|error| match error {
            StoreError::Unavailable { reason, .. } => StoreError::OutcomeUnknown { reason },
            StoreError::TooLarge { .. } => {
                StoreError::OutcomeUnknown { reason: "the answer is too long".to_owned() }
            }
            other => other,
        })?;
        let lost = |reason: &str| StoreError::OutcomeUnknown { reason: reason.to_owned() };
        match answer.status {
            200 => {}
            // A proxy may answer so after the publisher has bought the blob.
            500.. => return Err(lost("the publisher failed")),
            _ => return Err(answer.error()),
        }
        let result: wire::StoreResult =
            serde_json::from_slice(&answer.body).map_err(|_| lost("the answer cannot be read"))?;
        let (named, newly_created, end_epoch) = match result {
            wire::StoreResult::NewlyCreated(created) => {
                let object = created.blob_object;
                (object.blob_id, true, object.storage.map(|storage| storage.end_epoch))
            }
            wire::StoreResult::AlreadyCertified(known) => (known.blob_id, false, Some(known.end_epoch)),
            _ => return Err(lost("the publisher did not store the blob")),
        };
        if named != own.to_string() {
            return Err(StoreError::WrongContent);
        }
        Ok(PutOutcome { blob_id: own, newly_created, end_epoch })
    }

    async fn get_blob(&self, id: BlobId, limit: usize) -> Result<Vec<u8>, StoreError> {
        let answer = ask("GET", &format!("{}/v1/blobs/{id}", self.aggregator), None, limit).await?;
        match answer.status {
            200 => Ok(answer.body),
            _ => Err(answer.error()),
        }
    }

    async fn has_blob(&self, id: BlobId) -> Result<bool, StoreError> {
        let answer = ask("HEAD", &format!("{}/v1/blobs/{id}", self.aggregator), None, 0).await?;
        match answer.status {
            200 => Ok(true),
            404 => Ok(false),
            _ => Err(answer.error()),
        }
    }

    async fn put_head(&self, record: Vec<u8>) -> Result<(), StoreError> {
        let url = format!("{}/v1/baton/heads", self.heads);
        let answer = ask("PUT", &url, Some(&record), MAX_ANSWER_BYTES).await?;
        match answer.status {
            200 => Ok(()),
            409 => Err(StoreError::HeadSuperseded),
            _ => Err(answer.error()),
        }
    }

    async fn get_head(&self, key: HeadIndexKey) -> Result<Option<Vec<u8>>, StoreError> {
        let url = format!("{}/v1/baton/heads/{key}", self.heads);
        let answer = ask("GET", &url, None, MAX_HEAD_BYTES).await?;
        match answer.status {
            200 => Ok(Some(answer.body)),
            404 => Ok(None),
            _ => Err(answer.error()),
        }
    }
}

impl Answer {
    /// The error of an answer without success.
    fn error(&self) -> StoreError {
        let parsed = serde_json::from_slice::<wire::ErrorAnswer>(&self.body).ok();
        let reason = parsed.map_or_else(|| format!("HTTP {}", self.status), |answer| answer.error.message);
        match self.status {
            404 => StoreError::NotFound,
            408 | 425 | 429 | 500.. => StoreError::Unavailable { reason, retry_after: None },
            _ => StoreError::Refused { reason },
        }
    }
}

/// Sends a request, and reads the answer up to a limit. Boxed for the traits: a page has one thread, which the
/// wrapper checks.
fn sent<'a, T>(work: impl Future<Output = Result<T, StoreError>> + 'a) -> StoreFuture<'a, T>
where
    T: 'a,
{
    Box::pin(SendWrapper::new(work))
}

impl BlobStore for FetchStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        sent(self.put_blob(bytes, options))
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        sent(self.get_blob(id, limit))
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        sent(self.has_blob(id))
    }
}

impl HeadIndex for FetchStore {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        sent(self.put_head(record))
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        sent(self.get_head(key))
    }
}

async fn ask(method: &str, url: &str, body: Option<&[u8]>, limit: usize) -> Result<Answer, StoreError> {
    let unavailable = |reason: String| StoreError::Unavailable { reason, retry_after: None };
    let exchange = async {
        let options = RequestInit::new();
        options.set_method(method);
        // A browser's cache may keep an answer that is no longer true.
        options.set_cache(RequestCache::NoStore);
        // A redirected PUT would be sent twice.
        options.set_redirect(RequestRedirect::Error);
        if let Some(bytes) = body {
            options.set_body(&Uint8Array::from(bytes));
        }
        let request = Request::new_with_str_and_init(url, &options)
            .map_err(|error| StoreError::Refused { reason: format!("the store's URL: {}", words(&error)) })?;
        let response = JsFuture::from(fetch(&request)).await.map_err(|error| unavailable(words(&error)))?;
        let response: Response = response.dyn_into().map_err(|_| unavailable("no answer".to_owned()))?;
        let status = response.status();
        // The limit is for the asked bytes; an error has words of its own.
        let limit = if status == 200 { limit } else { limit.max(MAX_ANSWER_BYTES) };
        let body = if method == "HEAD" { Vec::new() } else { read(&response, limit).await? };
        Ok(Answer { status, body })
    };
    timeout(TIME_LIMIT, exchange).await.unwrap_or_else(|_| Err(unavailable("timed out".to_owned())))
}

/// The `fetch` of a page, or of a worker.
fn fetch(request: &Request) -> js_sys::Promise {
    #[wasm_bindgen::prelude::wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_name = fetch)]
        fn fetch_of_scope(request: &Request) -> js_sys::Promise;
    }
    fetch_of_scope(request)
}

async fn read(response: &Response, limit: usize) -> Result<Vec<u8>, StoreError> {
    let broken = |error: JsValue| StoreError::Unavailable { reason: words(&error), retry_after: None };
    let Some(body) = response.body() else { return Ok(Vec::new()) };
    let reader: ReadableStreamDefaultReader =
        body.get_reader().dyn_into().map_err(|object| broken(object.into()))?;
    let mut bytes = Vec::new();
    loop {
        let part = JsFuture::from(reader.read()).await.map_err(broken)?;
        if Reflect::get(&part, &"done".into()).map_err(broken)?.is_truthy() {
            return Ok(bytes);
        }
        let chunk = Uint8Array::new(&Reflect::get(&part, &"value".into()).map_err(broken)?);
        let length = bytes.len() + chunk.length() as usize;
        if length > limit {
            // The rest is not wanted; the outcome of giving it up says nothing.
            drop(reader.cancel());
            return Err(StoreError::TooLarge { length: length as u64, limit: limit as u64 });
        }
        let start = bytes.len();
        bytes.resize(length, 0);
        chunk.copy_to(bytes.get_mut(start..).unwrap_or_default());
    }
}

/// The words of a JavaScript error.
fn words(error: &JsValue) -> String {
    let message = Reflect::get(error, &"message".into()).ok().and_then(|message| message.as_string());
    message.unwrap_or_else(|| "the request failed".to_owned())
}
