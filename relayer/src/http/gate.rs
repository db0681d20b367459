//! The gate: limits concurrent requests and body sizes, authenticates callers, limits rates, and refuses
//! replays.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header::CONNECTION, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use baton_keys::account::body_sha256;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    AppState,
    api_error::{ApiError, BUSY, CLOCK, DEADLINE, INTERNAL, RATE, TOO_LARGE, UNAUTHENTICATED},
    body,
    limits::{ANSWER_TIMEOUT, BODY_BYTES, CHAT_BODY_BYTES, IMPORT_BODY_BYTES, OPEN_BODY_BYTES},
};
use crate::{
    auth::{AuthError, Caller, SignedHead, VerifiedHead},
    stacks::SecretUse,
};

/// The route whose requests and answers carry keys of sessions.
const CHAT: &str = "/v1/chat";

/// Most bytes of a body on a route.
fn body_limit(path: &str) -> usize {
    match path {
        "/v1/memory/import" => IMPORT_BODY_BYTES,
        CHAT => CHAT_BODY_BYTES,
        _ => BODY_BYTES,
    }
}

/// Reads the body of an open route, which no gate reads.
pub(super) async fn open(request: Request, next: Next) -> Response {
    let (parts, sent) = request.into_parts();
    match body::read(sent, OPEN_BODY_BYTES, |_| Ok(())).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(error) if error.code() == "too_large" => {
            ApiError::bad(format!("a body of this route has at most {OPEN_BODY_BYTES} bytes")).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// Admits a request with its [`Caller`], or answers it.
pub(super) async fn gate(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let is_chat = request.uri().path() == CHAT;
    let _secret = is_chat.then(SecretUse::begin);
    let mut response = admit_and_run(&app, request, next).await;
    if is_chat {
        // A kept-alive connection keeps the bytes of its last request, which contain a session's key.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn admit_and_run(app: &AppState, request: Request, next: Next) -> Response {
    match admit(app, request).await {
        Err(error) => error.into_response(),
        Ok((request, permits)) => {
            let quota = request.extensions().get::<Caller>().map(|caller| quota(app, caller));
            // A separate task: a client that disconnects must not interrupt a write.
            let task = app.inner.tasks.spawn(async move {
                let _permits = permits;
                tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await
            });
            let mut response = match task.await {
                Ok(Ok(response)) => response,
                Ok(Err(_)) => ApiError::new(DEADLINE).into_response(),
                // A panic has ended the process already; only the runtime's shutdown reaches this.
                Err(_) => ApiError::new(INTERNAL).into_response(),
            };
            if let Some(quota) = quota {
                response.headers_mut().extend(quota);
            }
            response
        }
    }
}

/// The permits of a running request: one for the request, and one for a large body.
#[derive(Default)]
struct Permits {
    _request: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl Permits {
    fn take(app: &AppState) -> Result<Self, ApiError> {
        let request = app.inner.requests.clone().try_acquire_owned().map_err(|_| busy())?;
        Ok(Self { _request: Some(request), large: None })
    }

    /// Reports the present size of a body.
    fn grow(&mut self, app: &AppState, bytes: usize) -> Result<(), ApiError> {
        if bytes > BODY_BYTES && self.large.is_none() {
            self.large = Some(app.inner.large_bodies.clone().try_acquire_owned().map_err(|_| busy())?);
        }
        Ok(())
    }
}

fn busy() -> ApiError {
    ApiError::new(BUSY).after_ms(1_000)
}

/// Admits a request: returns it with caller, body and permits.
///
/// No request takes a permit before its signature is verified. A head with its body's hash is verified before
/// the body is read. Any other is verified after a body of moderate length, which until then occupies only
/// its connection.
async fn admit(app: &AppState, request: Request) -> Result<(Request, Permits), ApiError> {
    let (mut parts, sent) = request.into_parts();
    let most = body_limit(parts.uri.path());
    let head = SignedHead::read(&parts.headers).map_err(refuse)?;
    let (caller, bytes, permits) = match head.stated_body_sha256().map(str::to_owned) {
        Some(stated) => {
            let (caller, mut permits) = identify(app, &parts, head, &stated).await?;
            let bytes = body::read(sent, most, |length| permits.grow(app, length)).await?;
            if body_sha256(&bytes) != stated {
                return Err(ApiError::new(UNAUTHENTICATED));
            }
            (caller, bytes, permits)
        }
        None => {
            let bytes = body::read(sent, most.min(BODY_BYTES), |_| Ok(())).await;
            let bytes = bytes.map_err(|error| unstated(error, most))?;
            let (caller, permits) = identify(app, &parts, head, &body_sha256(&bytes)).await?;
            (caller, bytes, permits)
        }
    };
    parts.extensions.insert(caller);
    Ok((Request::from_parts(parts, Body::from(bytes)), permits))
}

/// The answer for a body that is too long to read before its signature is verified.
fn unstated(error: ApiError, most: usize) -> ApiError {
    if error.code() != "too_large" || most <= BODY_BYTES {
        return error;
    }
    ApiError::new(TOO_LARGE)
        .saying(format!("a body of more than {BODY_BYTES} bytes needs the header x-body-sha256"))
        .hinting("send the SHA-256 of the body, in hex, in x-body-sha256: the signature is then checked before the body")
}

/// Authenticates a head; returns the caller and the permits, with the nonce taken.
async fn identify(
    app: &AppState,
    parts: &Parts,
    head: SignedHead<'_>,
    body_sha256: &str,
) -> Result<(Caller, Permits), ApiError> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let now_ms = app.now_ms();
    let verified: VerifiedHead<'_> = head.verify(&parts.method, path, body_sha256, now_ms).map_err(refuse)?;
    // Before any lookup for the key, which may be unknown.
    let limited = |wait: u32| ApiError::new(RATE).after_ms(wait.into());
    super::lock(&app.inner.key_rates).take(verified.key(), now_ms).map_err(limited)?;
    let permits = Permits::take(app)?;
    let identified = verified.identify(app.registry(), now_ms).await.map_err(refuse)?;
    super::lock(&app.inner.owner_rates).take(identified.caller.owner, now_ms).map_err(limited)?;
    let caller = identified.admit(app.registry().records(), now_ms).await.map_err(refuse)?;
    Ok((caller, permits))
}

fn refuse(error: AuthError) -> ApiError {
    match error {
        AuthError::Signature => ApiError::new(UNAUTHENTICATED),
        AuthError::Clock => ApiError::new(CLOCK),
        AuthError::Memory(error) => error.into(),
    }
}

/// The caller's remaining rate, as headers.
fn quota(app: &AppState, caller: &Caller) -> HeaderMap {
    let now_ms = app.now_ms();
    let of_owner = super::lock(&app.inner.owner_rates).left(&caller.owner, now_ms);
    let of_key = super::lock(&app.inner.key_rates).left(&caller.key, now_ms);
    let limits = &app.inner.limits;
    [
        ("x-ratelimit-limit", u64::from(limits.owner_per_minute.min(limits.key_per_minute))),
        ("x-ratelimit-remaining", of_owner.min(of_key)),
    ]
    .into_iter()
    .map(|(name, value)| (axum::http::HeaderName::from_static(name), HeaderValue::from(value)))
    .collect()
}
