//! Embedding endpoints that speak OpenAI's `POST …/embeddings`.
//!
//! The texts leave this machine, so an endpoint is used only if the operator configured it. Vectors of plain
//! text can be inverted, so the endpoint learns the texts.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use baton_keys::files::read_secret;
use baton_walrus_client::http_client;
use futures::StreamExt as _;
use reqwest::{Client, StatusCode, Url, redirect};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::embed::{EmbedError, EmbedFuture, EmbedRole, Embedder, beginning, unit};

/// Most bytes of a response: a full batch of the longest vectors takes some 8 MB as text.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Most texts of a request, whatever the configuration says.
const MAX_BATCH: usize = 256;
/// Most dimensions of a vector.
const MAX_DIMENSIONS: usize = 8_192;
/// Most bytes of a key file.
const MAX_KEY_BYTES: u64 = 4_096;
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How the endpoint distinguishes queries from documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum Roles {
    /// Not at all.
    #[default]
    None,
    /// By the request field `input_type`.
    InputType {
        /// Its value for queries, such as `search_query`.
        query: String,
        /// Its value for documents, such as `search_document`.
        document: String,
    },
    /// By a prefix of the text.
    Prefix {
        /// Before queries, such as `query: `.
        query: String,
        /// Before documents, such as `passage: `.
        document: String,
    },
}

/// Configuration of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// The URL before `/embeddings`, such as `http://127.0.0.1:8080/v1`.
    pub base_url: String,
    /// The model's name at the endpoint.
    pub model: String,
    /// Length of its vectors. An endpoint that returns another length is refused.
    pub dimensions: usize,
    /// Whether to request that length by the field `dimensions`, for models whose vectors can be shortened.
    #[serde(default)]
    pub send_dimensions: bool,
    /// File with the API key, readable by its owner alone; `None` for an endpoint without a key.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// How it distinguishes queries from documents.
    #[serde(default)]
    pub roles: Roles,
    /// Longest time of a request.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// Most texts of a request.
    #[serde(default = "default_batch")]
    pub batch: usize,
}

fn default_timeout_ms() -> u64 {
    10_000
}

fn default_batch() -> usize {
    64
}

/// The remote embedder.
pub struct Remote {
    id: String,
    config: RemoteConfig,
    url: Url,
    key: Option<Zeroizing<String>>,
    client: Client,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_type: Option<&'a str>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Remote {
    /// Opens an endpoint and requests one vector in each role, so that an unusable one is refused at the
    /// start (D4).
    ///
    /// # Errors
    /// [`EmbedError::Unusable`], which names the fix.
    pub async fn open(config: &RemoteConfig) -> Result<Self, EmbedError> {
        let remote = Self::new(config)?;
        for role in [EmbedRole::Query, EmbedRole::Document] {
            let probed = remote.request(role, &["a probe".to_owned()]).await;
            probed.map_err(|error| match error {
                EmbedError::Unavailable(reason) => remote.refuse(&format!(
                    "it does not answer ({reason}); start it, correct base_url, or configure another embedder"
                )),
                refused @ EmbedError::Unusable(_) => refused,
            })?;
        }
        Ok(remote)
    }

    fn new(config: &RemoteConfig) -> Result<Self, EmbedError> {
        let unusable = |what: &str| EmbedError::Unusable(format!("the configured endpoint: {what}"));
        let base = config.base_url.trim_end_matches('/');
        let url: Url = format!("{base}/embeddings").parse().map_err(|_| unusable("base_url is not a URL"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(unusable("base_url has to begin with http:// or https:// and a host"));
        }
        if config.model.is_empty() {
            return Err(unusable("model has to be named"));
        }
        if !(1..=MAX_DIMENSIONS).contains(&config.dimensions) {
            return Err(unusable(&format!("dimensions has to be 1 to {MAX_DIMENSIONS}")));
        }
        if !(1..=MAX_BATCH).contains(&config.batch) || config.timeout_ms == 0 {
            return Err(unusable(&format!("batch has to be 1 to {MAX_BATCH}, and timeout_ms above 0")));
        }
        let key = config.api_key_file.as_deref().map(read_key).transpose()?;
        let client = http_client::builder_for(&config.base_url)
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(Duration::from_millis(config.timeout_ms))
            .build()
            .map_err(|error| unusable(&error.to_string()))?;
        let id = format!("{}-{}", config.model, config.dimensions);
        Ok(Self { id, config: config.clone(), url, key, client })
    }

    fn refuse(&self, what: &str) -> EmbedError {
        EmbedError::Unusable(format!(
            "the endpoint {} with model {}: {what}",
            self.config.base_url, self.config.model
        ))
    }

    /// Requests the vectors of at most one batch of texts, each with a word.
    async fn request(&self, role: EmbedRole, input: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let input_type = match (&self.config.roles, role) {
            (Roles::InputType { query, .. }, EmbedRole::Query) => Some(query.as_str()),
            (Roles::InputType { document, .. }, EmbedRole::Document) => Some(document.as_str()),
            _ => None,
        };
        let body = Request {
            model: &self.config.model,
            input,
            encoding_format: "float",
            dimensions: self.config.send_dimensions.then_some(self.config.dimensions),
            input_type,
        };
        let mut request = self.client.post(self.url.clone()).json(&body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.as_str());
        }
        // Errors of the client would repeat the URL.
        let unavailable = |error: reqwest::Error| EmbedError::Unavailable(http_client::describe(&error));
        let answer = request.send().await.map_err(unavailable)?;
        self.check_status(answer.status())?;
        let mut bytes = Vec::new();
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(unavailable)?;
            if bytes.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(self.refuse("its answer is too long; configure a smaller batch"));
            }
            bytes.extend_from_slice(&piece);
        }
        self.vectors(&bytes, input.len())
    }

    fn check_status(&self, status: StatusCode) -> Result<(), EmbedError> {
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.refuse(&format!("it refused the API key ({status}); correct api_key_file")))
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Err(EmbedError::Unavailable(format!("it answered {status}")))
            }
            status if status.is_server_error() => {
                Err(EmbedError::Unavailable(format!("it answered {status}")))
            }
            status => Err(self.refuse(&format!(
                "it refused the request ({status}); correct base_url, model or dimensions"
            ))),
        }
    }

    /// Parses and checks a response; nothing in it is trusted.
    fn vectors(&self, bytes: &[u8], expected: usize) -> Result<Vec<Vec<f32>>, EmbedError> {
        let answer: Answer = serde_json::from_slice(bytes)
            .map_err(|_| self.refuse("its answer is not one of embeddings; correct base_url"))?;
        if answer.data.len() != expected {
            return Err(self.refuse(&format!("it gave {} vectors for {expected} texts", answer.data.len())));
        }
        let mut vectors: Vec<Option<Vec<f32>>> = vec![None; expected];
        for (position, vector) in answer.data.into_iter().enumerate() {
            let length = vector.embedding.len();
            if length != self.config.dimensions {
                let configured = self.config.dimensions;
                return Err(self.refuse(&format!(
                    "its vectors have {length} dimensions, configured are {configured}; correct dimensions"
                )));
            }
            if vector.embedding.iter().any(|x| !x.is_finite()) {
                return Err(self.refuse("its vectors have numbers that are none"));
            }
            match vectors.get_mut(vector.index.unwrap_or(position)) {
                Some(place) if place.is_none() => *place = Some(unit(vector.embedding)),
                _ => return Err(self.refuse("its vectors are numbered wrongly")),
            }
        }
        Ok(vectors.into_iter().flatten().collect())
    }

    fn prepared(&self, role: EmbedRole, text: &str) -> String {
        let text = beginning(text);
        match (&self.config.roles, role) {
            (Roles::Prefix { query, .. }, EmbedRole::Query) => format!("{query}{text}"),
            (Roles::Prefix { document, .. }, EmbedRole::Document) => format!("{document}{text}"),
            _ => text.to_owned(),
        }
    }
}

impl Embedder for Remote {
    fn id(&self) -> &str {
        &self.id
    }

    fn dimensions(&self) -> usize {
        self.config.dimensions
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        Box::pin(async move {
            let mut vectors = vec![vec![0.0; self.config.dimensions]; texts.len()];
            // Endpoints refuse texts without words.
            let with_words: Vec<usize> = texts
                .iter()
                .enumerate()
                .filter(|(_, text)| text.chars().any(char::is_alphanumeric))
                .map(|(at, _)| at)
                .collect();
            for batch in with_words.chunks(self.config.batch) {
                let input: Vec<String> = batch
                    .iter()
                    .filter_map(|at| texts.get(*at))
                    .map(|text| self.prepared(role, text))
                    .collect();
                let input = Zeroizing::new(input);
                for (at, vector) in batch.iter().zip(self.request(role, &input).await?) {
                    if let Some(place) = vectors.get_mut(*at) {
                        *place = vector;
                    }
                }
            }
            Ok(vectors)
        })
    }
}

/// Reads an API key from a file that only its owner can read.
fn read_key(path: &Path) -> Result<Zeroizing<String>, EmbedError> {
    let refuse = |what: &str| EmbedError::Unusable(format!("api_key_file {}: {what}", path.display()));
    let text = read_secret(path, "an API key", MAX_KEY_BYTES).map_err(|error| refuse(&error.to_string()))?;
    let text = text.ok_or_else(|| refuse("it does not exist"))?;
    let key = std::str::from_utf8(&text).map(str::trim).unwrap_or_default();
    if key.is_empty() || key.chars().any(|c| c.is_control() || !c.is_ascii()) {
        return Err(refuse("it has to hold one key, as one line of plain characters"));
    }
    Ok(Zeroizing::new(key.to_owned()))
}

#[cfg(test)]
mod tests;
