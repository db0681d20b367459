//! The proxied engine: an OpenAI-compatible server (Ollama, vLLM, llama.cpp) behind this node.
//!
//! The server reports its own counts, the window is estimated, and token IDs are unknown. So an answer cannot
//! be resumed or replayed; [`EngineKind::Proxied`] says so in the receipt. The server is trusted with the
//! text but not with the node: every length and time is bounded.

mod calls;
mod fault;
mod request;
mod sse;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use baton_walrus_client::http_client;
use futures::StreamExt as _;
use reqwest::{Client, Response, Url, header};
use tokio::{runtime::Handle, sync::mpsc};
use zeroize::Zeroizing;

use self::{
    calls::Calls,
    sse::{Chunk, SseEvent, SseReader},
};
use super::{
    Engine, EngineError, EngineEvent, EngineInfo, EngineKind, FinishReason, GenerateHandle, GenerateJob,
    GenerateStats, check_sampling,
    language::{Constraint, ConstraintKind},
    refuse_logprobs,
    tasks::{JobRun, JobTasks, millis},
    unseen,
};
use crate::prompt::Prompt;

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum bytes of one answer's stream: many times the longest answer with its JSON.
const MAX_STREAM_BYTES: usize = 64 << 20;

/// Estimated bytes of a token. The low value makes estimates too high: a window cut too short is better than
/// a window that the server cuts or refuses.
const ESTIMATED_BYTES_PER_TOKEN: usize = 3;

/// Estimated tokens of a template around a message.
const ESTIMATED_MESSAGE_TOKENS: usize = 8;

/// The server and its limits.
#[derive(Clone)]
pub struct ProxiedConfig {
    /// Base URL, `http` or `https`; the engine appends `/v1/chat/completions`.
    pub base_url: String,
    /// The model's name at the server, and in logs.
    pub model: String,
    /// Bearer token, if the server requires one.
    pub bearer: Option<Zeroizing<String>>,
    /// The server's configured context, in tokens.
    pub context_tokens: u32,
    /// Maximum concurrent requests. Further ones are refused as busy, since the server has its own queue.
    pub max_concurrent: usize,
    /// Longest silence of the server, also before its first byte.
    pub idle_timeout: Duration,
}

impl std::fmt::Debug for ProxiedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxiedConfig")
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .field("bearer", &self.bearer.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a proxied engine cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ProxiedError {
    /// The base URL is invalid.
    #[error("{url} is not an http or https base URL")]
    BaseUrl {
        /// The configured URL.
        url: String,
    },
    /// The bearer token is not a valid header value.
    #[error("the bearer token holds characters that a header cannot have")]
    Bearer,
    /// The HTTP client cannot be built.
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// See the module.
pub struct ProxiedEngine {
    info: EngineInfo,
    backend: Arc<ProxiedBackend>,
    jobs: JobTasks,
}

struct ProxiedBackend {
    client: Client,
    url: Url,
    model: String,
    idle_timeout: Duration,
}

impl ProxiedEngine {
    /// Sets up the engine. It connects only for a job. Jobs run on `runtime`.
    ///
    /// # Errors
    /// [`ProxiedError`] on a configuration that cannot work.
    pub fn new(config: &ProxiedConfig, runtime: Handle) -> Result<Self, ProxiedError> {
        let bad_url = || ProxiedError::BaseUrl { url: config.base_url.clone() };
        let base = config.base_url.trim_end_matches('/');
        let url = Url::parse(&format!("{base}/v1/chat/completions")).map_err(|_| bad_url())?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err(bad_url());
        }
        let mut headers = header::HeaderMap::new();
        if let Some(bearer) = &config.bearer {
            let text = Zeroizing::new(format!("Bearer {}", bearer.as_str()));
            let mut value = header::HeaderValue::from_str(&text).map_err(|_| ProxiedError::Bearer)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let client = http_client::builder(&url)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(config.idle_timeout)
            // A redirect would send the conversation to a host outside the configuration.
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(headers)
            .build()
            .map_err(ProxiedError::Client)?;
        let manifest = unseen(format!("proxied:{}", config.model));
        let info = EngineInfo::new(&config.model, EngineKind::Proxied, config.context_tokens, manifest);
        // The server reports whether its model takes tools.
        let info = EngineInfo { takes_tools: true, ..info };
        let backend =
            ProxiedBackend { client, url, model: config.model.clone(), idle_timeout: config.idle_timeout };
        Ok(Self { info, backend: Arc::new(backend), jobs: JobTasks::new(runtime, config.max_concurrent) })
    }
}

/// Estimates high, see [`ESTIMATED_BYTES_PER_TOKEN`].
fn estimate_tokens(prompt: &Prompt) -> u32 {
    let message = |text: &str| text.len().div_ceil(ESTIMATED_BYTES_PER_TOKEN) + ESTIMATED_MESSAGE_TOKENS;
    let tools = prompt.tools().map_or(0, |tools| message(&tools.message().text));
    let tokens = prompt.rendered().map(|(_, text)| message(&text)).sum::<usize>() + tools;
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Engine for ProxiedEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        Ok(estimate_tokens(prompt))
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        baton_engine::language::grammar::check(schema)?;
        Ok(Constraint(ConstraintKind::Passed(Zeroizing::new(schema.to_owned()))))
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        check_sampling(&job)?;
        if !job.resume_tokens.is_empty() {
            return Err(EngineError::ResumeUnsupported);
        }
        // Servers report the text of tokens, but the wire has token IDs.
        refuse_logprobs(&job)?;
        if matches!(job.constraint, Some(Constraint(ConstraintKind::Grammar(_)))) {
            return Err(EngineError::Unsupported { what: "a constraint of another engine" });
        }
        let is_constrained = job.constraint.is_some();
        self.jobs.start(job, |events| ProxiedRun {
            backend: Arc::clone(&self.backend),
            events,
            begun: Instant::now(),
            stats: GenerateStats::default(),
            chunks: 0,
            parts: 0,
            whole: is_constrained.then(Zeroizing::default),
        })
    }

    fn shutdown(&self) {
        self.jobs.shutdown();
    }
}

impl Drop for ProxiedEngine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The error of an answer with another status.
async fn read_fault(mut response: Response) -> EngineError {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|pause| pause.to_str().ok());
    let retry_after = retry_after.map(str::to_owned);
    let mut body = Zeroizing::new(Vec::with_capacity(fault::MAX_BODY_BYTES));
    while let Ok(Some(bytes)) = response.chunk().await {
        let room = fault::MAX_BODY_BYTES - body.len();
        body.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        if body.len() == fault::MAX_BODY_BYTES {
            break;
        }
    }
    fault::classify(status, retry_after.as_deref(), &body)
}

/// One request, from its job to its last event.
struct ProxiedRun {
    backend: Arc<ProxiedBackend>,
    events: mpsc::Sender<EngineEvent>,
    begun: Instant,
    stats: GenerateStats,
    /// Texts sent to the reader.
    chunks: u32,
    /// Texts and parts of calls received.
    parts: u32,
    /// The whole answer, if the request had a schema: it reveals a server that ignored the schema.
    whole: Option<Zeroizing<String>>,
}

impl ProxiedRun {
    /// Checks the JSON: a server that does not know `response_format` answers in prose.
    fn check_json(&self, finish: FinishReason) -> Result<FinishReason, EngineError> {
        let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        match &self.whole {
            Some(whole) if finish == FinishReason::Stop && !is_json(whole) => Err(EngineError::Schema {
                reason: "the server behind this node does not hold answers to it".into(),
            }),
            _ => Ok(finish),
        }
    }

    async fn take(&mut self, chunk: Chunk, calls: &mut Calls) -> Result<(), EngineError> {
        let Chunk { mut text, calls: mut parts, message, .. } = chunk;
        if let Some((whole, all)) = message.map(|message| message.split()) {
            // It repeats the parts, if there were any.
            if text.is_empty() && self.chunks == 0 {
                text = whole;
            }
            if parts.is_empty() && calls.is_empty() {
                parts = all;
            }
        }
        if !text.is_empty() {
            self.parts += 1;
            self.emit(text).await;
        }
        for part in parts {
            self.parts += u32::from(!part.arguments.is_empty());
            let ended = calls.take(part, self.chunks > 0)?;
            self.emit(ended).await;
        }
        Ok(())
    }

    async fn emit(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if self.chunks == 0 {
            self.stats.prefill_ms = millis(self.begun.elapsed());
        }
        let index = self.chunks;
        self.chunks += 1;
        if let Some(whole) = &mut self.whole {
            whole.push_str(&text);
        }
        self.send(EngineEvent::Token { index, ids: Vec::new(), text, logprobs: Vec::new() }).await;
    }

    /// Sends an event, and waits for a slow reader; the connection's flow control then slows the server.
    async fn send(&self, event: EngineEvent) {
        // A closed reader ends the job from outside.
        let _ = self.events.send(event).await;
    }
}

impl JobRun for ProxiedRun {
    /// Dropping the future closes the connection, which cancels the request.
    async fn run(&mut self, job: &GenerateJob) -> Result<FinishReason, EngineError> {
        let body = request::body(&self.backend.model, job)
            .map_err(|_| EngineError::BackendProtocol { reason: "the request cannot be written" })?;
        let request = self
            .backend
            .client
            .post(self.backend.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        let sent = tokio::time::timeout(self.backend.idle_timeout, request.send()).await;
        let response = sent.ok().and_then(Result::ok).ok_or(EngineError::BackendUnreachable)?;
        if !response.status().is_success() {
            return Err(read_fault(response).await);
        }
        self.stats.input_tokens = estimate_tokens(&job.prompt);
        self.send(EngineEvent::Started { input_tokens: self.stats.input_tokens }).await;

        let mut stream = response.bytes_stream();
        let mut reader = SseReader::default();
        let mut calls = Calls::default();
        let (mut events, mut finish, mut received) = (Vec::new(), None, 0);
        loop {
            // A stream that breaks after the end of the answer still counts as complete.
            let bytes = stream.next().await.and_then(Result::ok);
            match &bytes {
                Some(bytes) => {
                    received += bytes.len();
                    if received > MAX_STREAM_BYTES {
                        return Err(EngineError::BackendProtocol { reason: "the answer is too long" });
                    }
                    reader.push(bytes, &mut events)?;
                }
                None => {
                    let rest = reader.end(&mut events);
                    rest.or_else(|error| finish.map(drop).ok_or(error))?;
                }
            }
            let mut ended = bytes.is_none();
            for event in events.drain(..) {
                let SseEvent::Chunk(chunk) = event else {
                    ended = true;
                    break;
                };
                finish = chunk.finish.or(finish);
                let [input, output] = chunk.usage;
                self.stats.input_tokens = input.unwrap_or(self.stats.input_tokens);
                self.stats.output_tokens = output.unwrap_or(self.stats.output_tokens);
                self.take(chunk, &mut calls).await?;
                if self.parts >= job.max_tokens && finish.is_none() {
                    // Every chunk has at least one token, so a server that continues ignores the limit.
                    finish = Some(FinishReason::Length);
                    ended = true;
                    break;
                }
            }
            if ended {
                self.emit(calls.finish(self.chunks > 0)).await;
                return finish.ok_or(EngineError::BackendTruncated);
            }
        }
    }

    fn end(
        mut self,
        outcome: Result<FinishReason, EngineError>,
    ) -> Result<(FinishReason, GenerateStats), EngineError> {
        let finish = self.check_json(outcome?)?;
        if self.stats.output_tokens == 0 {
            self.stats.output_tokens = self.chunks;
        }
        Ok((finish, self.stats))
    }
}
