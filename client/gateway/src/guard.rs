//! Admits requests by the bearer key, the endpoint's host name, and the page's origin.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq as _;

use crate::{
    apis::ApiForm,
    clock::rfc3339,
    http::api_error::ApiError,
    keys::Caller,
    state::{GatewayState, Inner},
};

/// The headers that a page of an allowed origin may read.
const EXPOSED_HEADERS: &str = "x-baton-session, x-request-id, request-id, retry-after, www-authenticate, \
    content-disposition, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
    x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
/// Longest list of header names that a preflight may ask for.
const MAX_ASKED_BYTES: usize = 4096;
/// A random name of each answer, which OpenAI's clients show beside an error.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same for Anthropic's clients.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// The scheme of the header in which all others send it. The standard has it in any case.
const SCHEME: &[u8] = b"Bearer ";
/// The header in which Anthropic's clients send the key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
/// Time for which a browser caches the preflight answer, in seconds.
const PREFLIGHT_SECONDS: HeaderValue = HeaderValue::from_static("600");
/// Names of this machine.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Admits a request, or refuses it. Names the answer.
pub(crate) async fn admit(State(inner): State<GatewayState>, request: Request, next: Next) -> Response {
    let id = format!("req_{}", hex::encode(baton_keys::secret::random_bytes::<16>()));
    let form = ApiForm::of(request.uri().path(), request.headers());
    let origin = check(&inner, request.headers());
    let answered = match &origin {
        Ok(_) => admit_caller(&inner, request, next).await,
        Err(api_error) => Err(api_error.clone()),
    };
    let mut response = form.rewritten(answered.into_response(), &id);
    if let Ok(Some(origin)) = origin {
        name_origin(response.headers_mut(), origin);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        tracing::debug!(request = ?id, status = response.status().as_u16(), "answered");
        let header = if form == ApiForm::Anthropic { ANTHROPIC_REQUEST_ID } else { REQUEST_ID };
        response.headers_mut().insert(header, id);
    }
    response
}

async fn admit_caller(inner: &Inner, mut request: Request, next: Next) -> Result<Response, ApiError> {
    if request.method() == Method::OPTIONS {
        // A browser asks without the key whether the page may use it; so do probes, without an origin.
        return Ok(preflight(request.headers()));
    }
    let caller = caller(inner, request.headers())?;
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let message = format!("the body is encoded as {encoding:?}; send it without content-encoding");
        return Err(ApiError::new("unsupported_encoding", message));
    }
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    name_quotas(response.headers_mut(), inner, &caller);
    Ok(response)
}

/// Names the rest of a key's quotas in the headers of a response, as OpenAI's API does.
fn name_quotas(headers: &mut HeaderMap, inner: &Inner, caller: &Caller) {
    let (Caller::Key(key), Some(keys)) = (caller, &inner.config.keys) else { return };
    let rest = keys.rest(key, inner.client.now_ms() / 1000);
    let quotas = [
        ("requests", key.quotas.requests_per_hour, rest.requests, rest.next_hour_s),
        ("tokens", key.quotas.tokens_per_day, rest.tokens, rest.next_day_s),
    ];
    for (kind, limit, rest, reset_s) in quotas {
        let (Some(limit), Some(rest)) = (limit, rest) else { continue };
        let values =
            [("limit", limit.to_string()), ("remaining", rest.to_string()), ("reset", format!("{reset_s}s"))];
        for (part, value) in values {
            let name = HeaderName::try_from(format!("x-ratelimit-{part}-{kind}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }
}

/// Admits every request under an allowed host name, without a key.
pub(crate) async fn by_allowed_name(
    State(inner): State<GatewayState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check(&inner, request.headers())?;
    Ok(next.run(request).await)
}

/// The allowed origin of a page's request; `None` for a program's.
fn check(inner: &Inner, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    // With DNS rebinding, a page's server points its own name here. Serving it would make this endpoint part
    // of that page's origin.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = without_port(host);
    let own = |allowed: &str| allowed.eq_ignore_ascii_case(name);
    if !LOOPBACK_NAMES.into_iter().any(own) && !inner.config.hosts.iter().any(|host| own(host)) {
        return Err(ApiError::new(
            "origin_not_allowed",
            "this name of the endpoint is not allowed; baton serve --allow-host NAME allows it",
        ));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or_default();
    let origin_host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let same = origin_host.is_some_and(|origin_host| origin_host.eq_ignore_ascii_case(host));
    if same || inner.config.origins.iter().any(|allowed| allowed == text) {
        return Ok(Some(origin.clone()));
    }
    Err(ApiError::new(
        "origin_not_allowed",
        "pages of this origin are not allowed; baton serve --allow-origin ORIGIN allows them",
    ))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The caller of a request, by the key that it carries. Without a key of the owner, every program is the owner.
pub(crate) fn caller(inner: &Inner, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let bearer = match bearer.split_at_checked(SCHEME.len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(SCHEME) => key.trim_ascii(),
        _ => b"".as_slice(),
    };
    let own = headers.get(API_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_owner = |key: &str| bool::from(bearer.ct_eq(key.as_bytes()) | own.ct_eq(key.as_bytes()));
    if inner.config.key.as_ref().is_some_and(|key| is_owner(key)) {
        return Ok(Caller::Owner);
    }
    let sent = if bearer.is_empty() { own } else { bearer };
    let named = inner.config.keys.as_ref().filter(|_| !sent.is_empty());
    match named.and_then(|keys| keys.find(sent)) {
        Some(key) => match key.expires_s {
            Some(end_s) if end_s <= inner.client.now_ms() / 1000 => {
                let (name, end) = (&key.name, rfc3339(end_s));
                let message = format!(
                    "the key {name:?} ended at {end}; its owner extends it with baton serve keys change"
                );
                Err(ApiError::new("key_expired", message))
            }
            _ => Ok(Caller::Key(key)),
        },
        None if inner.config.key.is_none() => Ok(Caller::Owner),
        None => Err(ApiError::key()),
    }
}

/// The answer to a browser that asks what an allowed page may send: all header names that it asks for. A page that may
/// send requests at all does no more harm with one name than with another, and clients add names of their own.
fn preflight(headers: &HeaderMap) -> Response {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let is_list = |names: &&HeaderValue| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, ".contains(byte);
        names.len() <= MAX_ASKED_BYTES && names.as_bytes().iter().all(is_name)
    };
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    if let Some(names) = asked.filter(is_list) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS);
    if headers.contains_key("access-control-request-private-network") {
        // A public page asks so before it reaches this machine.
        answer.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
    }
    response
}

/// Names the allowed origin of a page in the answer to it.
fn name_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.extend([
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin),
        (header::VARY, HeaderValue::from_static("origin, access-control-request-headers")),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS)),
    ]);
}

/// Any other path.
pub(crate) async fn nothing_here() -> ApiError {
    ApiError::new(
        "unknown_url",
        "there is nothing at this address; served are /v1/chat/completions, /v1/completions, /v1/responses, \
         /v1/messages, /v1/embeddings, /v1/models, and Ollama's /api/chat, /api/generate, /api/embed and /api/tags",
    )
}

/// A known path with another method.
pub(crate) async fn wrong_method() -> Response {
    let api_error = ApiError::new("unknown_url", "this address is asked by another method");
    let mut response = api_error.into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
