//! The tools over standard input and output, as a signed client of a remote relayer.

use std::{sync::Arc, time::Duration};

use baton_keys::{
    SIGNATURE_LEN,
    account::{AccountKey, addressed_to, verify_relayer_url},
    ids::PublicKey,
};
use baton_kit::endpoint::is_protected;
use baton_walrus_client::http_client;
use futures::future::BoxFuture;
use reqwest::{Client, Url};
use rmcp::{ServiceExt as _, model::Extensions, transport::stdio};
use serde_json::Value;

use super::{MemoryBackend, MemoryTools, ToolCall, lines::Pipes};

/// Time limit for a relayer's answer.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer of `/relayer` that is read; a real one has about a kilobyte.
const MAX_IDENTITY_BYTES: u64 = 64 * 1024;
/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The parts of `/relayer` that prove a relayer's URL.
#[derive(serde::Deserialize)]
struct UrlProof {
    relayer: String,
    url_signature: Option<String>,
}

/// A relayer to which requests are signed.
pub(crate) struct Remote {
    client: Client,
    base: Url,
    key: AccountKey,
    account: String,
    delegation: Option<String>,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The relayer's key, once it was asked; `None` if it proves none for this URL.
    audience: tokio::sync::OnceCell<Option<PublicKey>>,
}

impl Remote {
    /// A relayer at a URL, with a key for its own account, or for another's by a delegation. The delegation
    /// has the form of the `x-delegation` header, or is registered. `insecure` permits plain HTTP to another
    /// machine.
    ///
    /// # Errors
    /// A text for the user of the program.
    pub(crate) fn new(
        url: &str,
        key: AccountKey,
        account: Option<String>,
        delegation: Option<String>,
        insecure: bool,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<Self, String> {
        let base = Url::parse(url).map_err(|error| format!("the relayer's URL: {error}"))?;
        if !matches!(base.scheme(), "http" | "https") || base.path() != "/" || base.query().is_some() {
            return Err("the relayer's URL is like https://relayer.example".to_owned());
        }
        if !insecure && !is_protected(&base) {
            let reason = "plain HTTP to another machine shows the memories to others on the way";
            return Err(format!("{reason}: use https://, or permit it with --insecure"));
        }
        let client = http_client::builder(&base)
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| error.to_string())?;
        let account = account.unwrap_or_else(|| key.account_id());
        let audience = tokio::sync::OnceCell::new();
        Ok(Self { client, base, key, account, delegation, now_ms, audience })
    }

    /// The relayer's key, if the relayer proves that it serves at this URL. An older relayer proves nothing.
    async fn ask_audience(&self) -> Option<PublicKey> {
        let answer = self.client.get(self.base.join("/relayer").ok()?).send().await.ok()?;
        if !answer.status().is_success()
            || answer.content_length().is_none_or(|length| length > MAX_IDENTITY_BYTES)
        {
            return None;
        }
        let identity: UrlProof = serde_json::from_slice(&answer.bytes().await.ok()?).ok()?;
        let relayer = PublicKey::parse_hex(&identity.relayer).ok()?;
        let mut signature = [0; SIGNATURE_LEN];
        hex::decode_to_slice(identity.url_signature?, &mut signature).ok()?;
        // The signature is over this program's URL: another relayer's does not verify.
        verify_relayer_url(&relayer, self.base.as_str(), &signature).ok().map(|()| relayer)
    }

    /// Runs one request.
    ///
    /// # Errors
    /// The refusal's code, message and hint, or the connection error.
    pub(crate) async fn ask(&self, call: ToolCall) -> Result<Value, String> {
        let path = match self.audience.get_or_init(|| self.ask_audience()).await {
            Some(relayer) => addressed_to(&call.path_and_query(), relayer),
            None => call.path_and_query(),
        };
        let body = call.body.as_ref().map(ToString::to_string).unwrap_or_default();
        let url = self.base.join(&path).map_err(|error| format!("bad_request: {error}"))?;
        let seconds = (self.now_ms)() / 1_000;
        let method = call.method.as_str();
        let headers = self.key.request_headers(&self.account, method, &path, body.as_bytes(), seconds);
        let mut request = self.client.request(call.method.clone(), url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(delegation) = &self.delegation {
            request = request.header("x-delegation", delegation);
        }
        if call.body.is_some() {
            request = request.header("content-type", "application/json").body(body);
        }
        let failed = |error: reqwest::Error| format!("unavailable: the relayer does not answer: {error}");
        let mut response = request.send().await.map_err(failed)?;
        let success = response.status().is_success();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err("too_large: the answer is too long; ask for less".to_owned());
            }
            bytes.extend_from_slice(&chunk);
        }
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|_| "internal: the relayer's answer is not JSON".to_owned())?;
        if success {
            return Ok(value);
        }
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
        Err(format!("{}: {}; {}", field("code"), field("message"), field("hint")))
    }
}

impl MemoryBackend for Remote {
    fn call<'a>(&'a self, _: &'a Extensions, call: ToolCall) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(self.ask(call))
    }
}

/// Serves the tools on standard input and output until the agent closes it.
///
/// # Errors
/// When the agent does not speak the protocol.
pub(crate) async fn serve(remote: Remote) -> anyhow::Result<()> {
    let (input, output) = stdio();
    let Pipes { input, output, reader, mut tasks } = Pipes::between(input, output);
    let running = MemoryTools::new(Arc::new(remote)).serve((input, output)).await?;
    running.waiting().await?;
    reader.abort();
    // The last answers are still on their way.
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Err(stopped) if stopped.is_cancelled() => {}
            ended => ended??,
        }
    }
    Ok(())
}
