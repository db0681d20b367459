//! A model behind any OpenAI-compatible `/v1/chat/completions`. Time, size and concurrency are bounded. It
//! follows no redirects, since the key goes with the request. Errors never contain sent text.

use std::{path::Path, sync::Arc, time::Duration};

use baton_keys::files::{KeyFileError, read_secret};
use futures::future::BoxFuture;
use reqwest::{StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::model::{Complete, ModelError, PromptMessage};
use crate::model::Text;

/// Most bytes of an answer's body: many times the tokens that [`super::model`] asks for.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Most bytes of a key file: no service's key is longer.
const MAX_KEY_BYTES: u64 = 4 * 1024;
/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent requests.
const CONCURRENCY: usize = 4;
/// The longest `Retry-After` that is accepted.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// The address and limits of a model.
#[derive(Clone)]
pub struct EndpointConfig {
    /// For example `https://models.example/v1`; `/chat/completions` is added.
    pub base_url: String,
    /// The model's name at the endpoint.
    pub model: String,
    /// The key, if the endpoint needs one; see [`read_key`].
    pub key: Option<Zeroizing<String>>,
    /// Time limit for a whole answer, including the wait for a slot.
    pub timeout: Duration,
}

impl std::fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// Reads a key from a file that only its owner may read: one line.
///
/// # Errors
/// [`KeyFileError`], by cause.
pub fn read_key(path: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    const KIND: &str = "a model or database: it must hold one line of text";
    let missing = || KeyFileError::Io {
        action: "open",
        path: path.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    let bytes = read_secret(path, KIND, MAX_KEY_BYTES)?.ok_or_else(missing)?;
    let key = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_graphic()) {
        return Err(KeyFileError::Format { path: path.to_owned(), kind: KIND.to_owned() });
    }
    Ok(Zeroizing::new(key.to_owned()))
}

/// A model behind an OpenAI-compatible endpoint. Clones share connections and slots.
#[derive(Clone)]
pub struct Endpoint {
    client: reqwest::Client,
    url: String,
    model: String,
    timeout: Duration,
    places: Arc<Semaphore>,
}

impl Endpoint {
    /// A client for an endpoint; it does not connect yet.
    ///
    /// # Errors
    /// [`ModelError::Unavailable`] when the address or the key is unusable.
    pub fn new(config: &EndpointConfig) -> Result<Self, ModelError> {
        let unusable = |what: &str| ModelError::Unavailable(format!("{what} of the model cannot be used"));
        let url = format!("{}/chat/completions", config.base_url.trim_end_matches('/'));
        let parsed = reqwest::Url::parse(&url).map_err(|_| unusable("the address"))?;
        if !matches!(parsed.scheme(), "http" | "https")
            || !parsed.username().is_empty()
            || parsed.password().is_some()
        {
            return Err(unusable("the address"));
        }
        let mut headers = header::HeaderMap::new();
        if let Some(key) = &config.key {
            let bearer = Zeroizing::new(format!("Bearer {}", key.as_str()));
            let mut value = header::HeaderValue::from_str(&bearer).map_err(|_| unusable("the key"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .default_headers(headers)
            .build()
            .map_err(|_| unusable("the client"))?;
        let places = Arc::new(Semaphore::new(CONCURRENCY));
        Ok(Self { client, url, model: config.model.clone(), timeout: config.timeout, places })
    }

    async fn ask(&self, messages: &[PromptMessage], max_tokens: u32) -> Result<Text, ModelError> {
        let _place =
            self.places.acquire().await.map_err(|_| ModelError::Unavailable("it is closed".into()))?;
        let told: Vec<Value> =
            messages.iter().map(|one| json!({"role": one.role.name(), "content": one.text.0})).collect();
        let body = json!({
            "model": self.model, "messages": told, "max_tokens": max_tokens, "temperature": 0, "stream": false,
        });
        let response =
            self.client.post(&self.url).json(&body).send().await.map_err(|error| unreachable(&error))?;
        check(&response)?;
        let bytes = read_body(response).await?;
        content(&bytes)
    }
}

impl Complete for Endpoint {
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        max_tokens: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>> {
        Box::pin(async move {
            tokio::time::timeout(self.timeout, self.ask(messages, max_tokens))
                .await
                .map_err(|_| ModelError::TimedOut)?
        })
    }
}

/// The kind of failure, without addresses or texts.
fn unreachable(error: &reqwest::Error) -> ModelError {
    let kind = match () {
        () if error.is_timeout() => return ModelError::TimedOut,
        () if error.is_connect() => "no connection",
        () if error.is_body() || error.is_decode() => "the answer broke off",
        () => "the request failed",
    };
    ModelError::Unavailable(kind.to_owned())
}

fn check(response: &reqwest::Response) -> Result<(), ModelError> {
    let status = response.status();
    let patience = || {
        let seconds: u64 = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
    };
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(ModelError::Busy { retry_after: patience() })
        }
        StatusCode::REQUEST_TIMEOUT => Err(ModelError::TimedOut),
        refused if refused.is_client_error() => Err(ModelError::Refused(refused.as_u16())),
        other => Err(ModelError::Unavailable(format!("status {}", other.as_u16()))),
    }
}

async fn read_body(mut response: reqwest::Response) -> Result<Zeroizing<Vec<u8>>, ModelError> {
    let mut bytes = Zeroizing::new(Vec::new());
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(&error))? {
        if bytes.len() + chunk.len() > MAX_BODY_BYTES {
            return Err(ModelError::TooLong);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The text of the first choice; some servers send it in parts.
fn content(bytes: &[u8]) -> Result<Text, ModelError> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|_| ModelError::Malformed("the body is not JSON"))?;
    let content =
        value.pointer("/choices/0/message/content").ok_or(ModelError::Malformed("the body has no choice"))?;
    match content {
        Value::String(text) => Ok(Text(text.clone())),
        Value::Array(parts) => {
            Ok(Text(parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()))
        }
        _ => Err(ModelError::Malformed("the choice has no text")),
    }
}
