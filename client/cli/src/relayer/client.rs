//! Signed requests to a relayer's HTTP endpoint.

use std::time::Duration;

use baton_client::{AccountKey, ClientError};
use baton_keys::{
    SIGNATURE_LEN,
    account::{addressed_to, body_sha256, export_digest, verify_relayer_url},
    contexts::MEMORY_EXPORT,
    ids::PublicKey,
};
use baton_kit::endpoint::is_protected;
use baton_walrus_client::http_client;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    clock::now_ms,
    failure::Failure,
    relayer::authority::{self, RequestAuthority},
    settings::{Settings, ask_identity, relayer_name},
};

/// Time for a whole answer: an export of a large memory takes a while.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time for the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read: the largest export.
const MAX_ANSWER_BYTES: u64 = 256 * 1024 * 1024;

/// A relayer, called for an account.
pub(crate) struct RelayerClient {
    http: reqwest::Client,
    url: String,
    key: AccountKey,
    /// The account that owns the memory, and the delegation.
    authority: RequestAuthority,
    /// The relayer's key, once it was asked; `None` if it proves none for this URL.
    audience: tokio::sync::OnceCell<Option<PublicKey>>,
}

impl RelayerClient {
    /// The relayer of the settings, with this machine's account key: for its own account, or for the owner that
    /// it is a delegate of.
    pub(crate) fn open(settings: &Settings) -> Result<Self, Failure> {
        let key = authority::load(settings)?;
        let authority = RequestAuthority::from(settings, &key)?;
        Self::new(settings, key, authority)
    }

    /// The relayer of the settings, with this account key for its own account alone.
    pub(crate) fn of_owner(settings: &Settings, key: AccountKey) -> Result<Self, Failure> {
        let authority = RequestAuthority { owner: key.account_id(), header: None };
        Self::new(settings, key, authority)
    }

    /// The account that owns the memory.
    pub(crate) fn owner(&self) -> &str {
        &self.authority.owner
    }

    /// The relayer's name for people.
    pub(crate) fn name(&self) -> String {
        relayer_name(&self.url)
    }

    /// The address of memory's tools for agents.
    pub(crate) fn agents_url(&self) -> String {
        format!("{}/mcp", self.url)
    }

    /// The relayer of the settings, with this account key and what it may do.
    pub(crate) fn new(
        settings: &Settings,
        key: AccountKey,
        authority: RequestAuthority,
    ) -> Result<Self, Failure> {
        let url = settings.options.relayer_url.clone().ok_or_else(|| {
            Failure::usage(
                "No relayer is named by its URL, which memories need.",
                "name it with --relayer https://HOST, or relayer = \"https://HOST\" in the settings file",
            )
        })?;
        let url = url.trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else {
            return Err(Failure::wrong(format!(
                "the relayer's URL {url} does not begin with http:// or https://"
            )));
        };
        if !is_protected(&parsed) && !settings.options.insecure() {
            return Err(Failure::usage(
                format!("{url} is plain HTTP to another machine: others on the way can read your memories."),
                "use https://, or permit it: --insecure",
            ));
        }
        // A redirect would send the signed request to another server.
        let http = http_client::builder(&parsed).timeout(TIMEOUT).connect_timeout(CONNECT_TIMEOUT);
        let http = http.redirect(reqwest::redirect::Policy::none()).build();
        let http = http.map_err(|error| ClientError::Config(error.to_string()))?;
        Ok(Self { http, url, key, authority, audience: tokio::sync::OnceCell::new() })
    }

    /// The line that endorses an export of the account's own memory: a signature over all lines. It is
    /// checked at import, also after the relayer destroyed the owner's keys. `None` for a delegate.
    pub(crate) fn endorsement(&self, export: &str) -> Option<String> {
        if self.key.account_id() != self.authority.owner {
            return None;
        }
        let signature = self.key.signing_key().sign(MEMORY_EXPORT, &export_digest(export.lines()));
        let public_key = self.key.public_key().to_string();
        let line =
            json!({ "endorsement": { "public_key": public_key, "signature": hex::encode(signature) } });
        Some(line.to_string())
    }

    /// The relayer's key, if the relayer proves that it serves at this URL. An older relayer proves nothing.
    async fn ask_audience(&self) -> Option<PublicKey> {
        let asked = tokio::time::timeout(CONNECT_TIMEOUT, ask_identity(&self.http, &self.url)).await;
        let identity = asked.ok()?.ok()?;
        let relayer = PublicKey::parse_hex(&identity.relayer?).ok()?;
        let mut signature = [0; SIGNATURE_LEN];
        hex::decode_to_slice(identity.url_signature?, &mut signature).ok()?;
        // The signature is over this client's URL: another relayer's does not verify.
        verify_relayer_url(&relayer, &self.url, &signature).ok().map(|()| relayer)
    }

    /// Sends a request, and reads the answer as JSON. A body's fields that are null are left out.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut body = body.cloned().unwrap_or_default();
        if let Value::Object(fields) = &mut body {
            fields.retain(|_, value| !value.is_null());
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let text = self.text(method, path, body).await?;
        let hint = Some("check that --relayer names a Baton relayer");
        serde_json::from_str(&text)
            .map_err(|_| refused("Answer", "the relayer answered something that is not JSON", hint))
    }

    /// Sends a request, and reads the answer as text.
    pub(crate) async fn text(&self, method: Method, path: &str, body: String) -> Result<String, Failure> {
        self.send(method, path, body, &[]).await
    }

    /// Hands an agent's message to memory's tools, in this version of the protocol. A message that takes no
    /// answer has an empty one.
    pub(crate) async fn agent_message(
        &self,
        message: &str,
        version: Option<&str>,
    ) -> Result<String, Failure> {
        let mut headers = vec![("accept", "application/json, text/event-stream")];
        headers.extend(version.map(|version| ("mcp-protocol-version", version)));
        self.send(Method::POST, "/mcp", message.to_owned(), &headers).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        more: &[(&str, &str)],
    ) -> Result<String, Failure> {
        let path = &match self.audience.get_or_init(|| self.ask_audience()).await {
            Some(relayer) => addressed_to(path, relayer),
            None => path.to_owned(),
        };
        let now = now_ms() / 1000;
        let headers = self.key.request_headers(self.owner(), method.as_str(), path, body.as_bytes(), now);
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        if let Some(delegation) = &self.authority.header {
            request = request.header("x-delegation", delegation);
        }
        if !body.is_empty() {
            // The relayer checks the signature before it reads the body.
            let hash = body_sha256(body.as_bytes());
            request =
                request.header("content-type", "application/json").header("x-body-sha256", hash).body(body);
        }
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let too_large = || refused("TooLarge", "the relayer's answer is too large", None);
        let bytes = http_client::read_bounded(answer, MAX_ANSWER_BYTES).await;
        let bytes = bytes.map_err(|error| error.map_or_else(too_large, unreachable))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if status.is_success() { Ok(text) } else { Err(fault(status, &text)) }
    }
}

/// Leaves out the path of the request's URL, which reveals the request.
fn unreachable(error: reqwest::Error) -> Failure {
    let message = format!("the relayer cannot be reached: {}", http_client::describe(&error));
    refused("Unreachable", &message, Some("check --relayer, and that the relayer runs"))
}

fn refused(name: &str, message: &str, hint: Option<&str>) -> Failure {
    Failure::of_relayer(name, message.to_owned(), hint.map(str::to_owned))
}

/// A relayer's error.
fn fault(status: StatusCode, text: &str) -> Failure {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let said = |field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    let name = said("code").unwrap_or_else(|| format!("Http{}", status.as_u16()));
    let message = said("message").unwrap_or_else(|| format!("the relayer answered {status}"));
    Failure::of_relayer(name, message, said("hint"))
}
