//! The gate: how many requests are in hand, how long bodies are, who asks, how often, and that no request counts twice.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Doors,
    fault::{BUSY, CLOCK, DEADLINE, Fault, INTERNAL, RATE, SLOW_BODY, TOO_LARGE, UNAUTHENTICATED},
    limits::{ANSWER_TIMEOUT, BODY_BYTES, BODY_TIMEOUT, CHAT_BODY_BYTES, IMPORT_BODY_BYTES, IMPORT_TIMEOUT},
};
use crate::auth::{self, Caller, Unknown};

/// How much of a body a route takes, and for how long.
struct BodyLimit {
    bytes: usize,
    time: Duration,
}

impl BodyLimit {
    fn of(path: &str) -> Self {
        match path {
            "/v1/memory/import" => Self { bytes: IMPORT_BODY_BYTES, time: IMPORT_TIMEOUT },
            "/v1/chat" => Self { bytes: CHAT_BODY_BYTES, time: BODY_TIMEOUT },
            _ => Self { bytes: BODY_BYTES, time: BODY_TIMEOUT },
        }
    }
}

/// Lets a request through with its [`Caller`], or answers it.
pub(super) async fn gate(State(doors): State<Doors>, request: Request, next: Next) -> Response {
    match admit(&doors, request).await {
        Err(fault) => fault.into_response(),
        Ok((request, permits)) => {
            let quota = request.extensions().get::<Caller>().map(|caller| quota(&doors, caller));
            // In a task of its own: a client that goes away must not stop a write half way.
            let task = doors.inner.tasks.spawn(async move {
                let _permits = permits;
                tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await
            });
            let mut response = match task.await {
                Ok(Ok(response)) => response,
                Ok(Err(_)) => Fault::new(DEADLINE).into_response(),
                // A panic has ended the process already; only the runtime's shutdown comes here.
                Err(_) => Fault::new(INTERNAL).into_response(),
            };
            if let Some(quota) = quota {
                response.headers_mut().extend(quota);
            }
            response
        }
    }
}

type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

async fn admit(doors: &Doors, request: Request) -> Result<(Request, Permits), Fault> {
    let busy = |_| Fault::new(BUSY).after_ms(1_000);
    let permit = doors.inner.requests.clone().try_acquire_owned().map_err(busy)?;
    let limit = BodyLimit::of(request.uri().path());
    let large = match limit.bytes > BODY_BYTES {
        true => Some(doors.inner.large_bodies.clone().try_acquire_owned().map_err(busy)?),
        false => None,
    };
    let (mut parts, body) = request.into_parts();
    let body = read(body, &limit).await?;
    // A route that may have a large body has a small one most of the time.
    let large = large.filter(|_| body.len() > BODY_BYTES);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let now_ms = doors.now_ms();
    let verified = auth::verify(&parts.method, path, &parts.headers, &body, now_ms).map_err(refuse)?;
    // Before anything is looked up for the key, which may be a stranger's.
    let limited = |wait: u32| Fault::new(RATE).after_ms(wait.into());
    super::lock(&doors.inner.key_rates).take(verified.key(), now_ms).map_err(limited)?;
    let identified = verified.identify(doors.registry(), now_ms).await.map_err(refuse)?;
    super::lock(&doors.inner.owner_rates).take(identified.caller.owner, now_ms).map_err(limited)?;
    let caller = identified.admit(doors.registry().records(), now_ms).await.map_err(refuse)?;
    parts.extensions.insert(caller);
    Ok((Request::from_parts(parts, Body::from(body)), (permit, large)))
}

async fn read(body: Body, limit: &BodyLimit) -> Result<Bytes, Fault> {
    let most = limit.bytes;
    match tokio::time::timeout(limit.time, to_bytes(body, most)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => {
            Err(Fault::new(TOO_LARGE).saying(format!("a body of this route has at most {most} bytes")))
        }
        Err(_) => Err(Fault::new(SLOW_BODY)),
    }
}

fn refuse(unknown: Unknown) -> Fault {
    match unknown {
        Unknown::Signature => Fault::new(UNAUTHENTICATED),
        Unknown::Clock => Fault::new(CLOCK),
        Unknown::Memory(error) => error.into(),
    }
}

/// What is left of the caller's rate, as headers.
fn quota(doors: &Doors, caller: &Caller) -> HeaderMap {
    let now_ms = doors.now_ms();
    let of_owner = super::lock(&doors.inner.owner_rates).left(&caller.owner, now_ms);
    let of_key = super::lock(&doors.inner.key_rates).left(&caller.key, now_ms);
    let limits = &doors.inner.limits;
    [
        ("x-ratelimit-limit", u64::from(limits.owner_per_minute.min(limits.key_per_minute))),
        ("x-ratelimit-remaining", of_owner.min(of_key)),
    ]
    .into_iter()
    .map(|(name, value)| (axum::http::HeaderName::from_static(name), HeaderValue::from(value)))
    .collect()
}
