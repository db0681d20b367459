//! The effect of a chosen fault on a request and its answer.

use std::time::{Duration, Instant};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use baton_walrus_client::wire::{ERROR_DOMAIN, ERROR_INFO, reason};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    Fault, Faults,
    active::{ActivePlan, FaultyRequest},
};

/// Longest answer with a changed copy in memory: slightly more than the largest blob of Walrus's publishers.
const MAX_CHANGED_BYTES: usize = 128 * 1024 * 1024;
/// The end of an endless answer, so that no forgotten client occupies the store for good.
const ENDLESS_BYTES: usize = 1024 * 1024 * 1024;
/// Bytes per piece of an endless answer.
const ENDLESS_PIECE_BYTES: usize = 64 * 1024;
/// Pieces of a dripping answer.
const DRIPS: usize = 8;

/// Time for the rest of a body whose request is refused.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

impl Faults {
    /// The routes of a store, with the faults over those of Walrus.
    pub fn around(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.clone(), inject))
    }
}

/// Serves a request with its fault from the plan.
async fn inject(State(faults): State<Faults>, request: Request, next: Next) -> Response {
    let subject = FaultyRequest::of(request.method(), request.uri().path());
    let (Some(running), Some(subject)) = (faults.running(), subject) else { return next.run(request).await };
    let fault = running.decide(&subject, Instant::now());
    if let Some(refusal) = fault.and_then(|fault| refusal(fault, subject.reads)) {
        // A sender that is still writing may never read the refusal.
        let mut rest = request.into_body().into_data_stream();
        let discarding = async { while let Some(Ok(_)) = rest.next().await {} };
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, discarding).await;
        return refusal;
    }
    let mut answer = next.run(request).await;
    if !subject.reads && running.window().is_some() && answer.status().is_success() {
        answer = noted(&running, answer).await;
    }
    match fault {
        None => answer,
        Some(Fault::Slow(delay)) => {
            tokio::time::sleep(delay).await;
            answer
        }
        Some(Fault::AnswerLost) => lost(),
        Some(_) if !answer.status().is_success() => answer,
        Some(fault) => change(fault, answer).await,
    }
}

/// The answer to a PUT, after its blobs are noted as stored.
async fn noted(running: &ActivePlan, answer: Response) -> Response {
    let (parts, body) = answer.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, MAX_CHANGED_BYTES).await else { return lost() };
    if let Ok(mut value) = serde_json::from_slice(&bytes) {
        for_each_id(&mut value, &mut |id| {
            if let Ok(id) = id.parse() {
                running.stored(id, Instant::now());
            }
        });
    }
    Response::from_parts(parts, Body::from(bytes))
}

/// The faults that replace the answer without serving the request.
fn refusal(fault: Fault, reads: bool) -> Option<Response> {
    let json = |status: StatusCode, name: &str, reason: &str| {
        let detail = json!({ "@type": ERROR_INFO, "reason": reason, "domain": ERROR_DOMAIN, "metadata": {} });
        let message = "a fault on purpose, please try again";
        let error =
            json!({ "status": name, "code": status.as_u16(), "message": message, "details": [detail] });
        (status, Json(json!({ "error": error }))).into_response()
    };
    Some(match fault {
        Fault::NotFoundAfterPut(_) => json(StatusCode::NOT_FOUND, "NOT_FOUND", reason::BLOB_NOT_FOUND),
        Fault::Internal => json(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", reason::INTERNAL_ERROR),
        Fault::Unavailable => json(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", reason::BLOB_UNAVAILABLE),
        Fault::TooMany => {
            (StatusCode::TOO_MANY_REQUESTS, "the store has too many requests in flight; try again later")
                .into_response()
        }
        Fault::GatewayTimeout if reads => (StatusCode::GATEWAY_TIMEOUT, "gateway timeout").into_response(),
        Fault::GatewayTimeout => {
            json(StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED", reason::INSUFFICIENT_CONFIRMATIONS)
        }
        _ => return None,
    })
}

/// An answer whose body fails before its head is sent: the connection ends without a byte.
fn lost() -> Response {
    let body = stream::once(async { Err::<Bytes, _>(cut()) });
    Body::from_stream(body).into_response()
}

fn cut() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "cut on purpose")
}

/// A good answer, changed by a fault.
async fn change(fault: Fault, answer: Response) -> Response {
    let (mut parts, body) = answer.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, MAX_CHANGED_BYTES).await else {
        // Too long, or already broken.
        return lost();
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    let promised = HeaderValue::from(bytes.len());
    let body = match fault {
        Fault::Truncated => {
            parts.headers.insert(header::CONTENT_LENGTH, promised);
            truncated(&bytes)
        }
        Fault::Drip(time) => {
            parts.headers.insert(header::CONTENT_LENGTH, promised);
            dripping(bytes, time)
        }
        Fault::Oversized => Body::from([&bytes[..], &bytes[..], b"\n"].concat()),
        Fault::Endless => {
            let piece = Bytes::from(vec![b' '; ENDLESS_PIECE_BYTES]);
            let pieces = stream::repeat(piece).take(ENDLESS_BYTES / ENDLESS_PIECE_BYTES);
            Body::from_stream(stream::once(async { bytes }).chain(pieces).map(Ok::<_, std::io::Error>))
        }
        Fault::WrongBytes => Body::from(with_one_wrong(bytes)),
        Fault::WrongId => Body::from(with_wrong_ids(&bytes)),
        _ => Body::from(bytes),
    };
    Response::from_parts(parts, body)
}

/// The first half, sent before the connection breaks.
fn truncated(bytes: &Bytes) -> Body {
    let half = bytes.slice(..bytes.len() / 2);
    let rest = stream::once(async {
        // A pending body makes the server send the bytes so far.
        tokio::time::sleep(Duration::from_millis(5)).await;
        Err(cut())
    });
    Body::from_stream(stream::once(async { Ok(half) }).chain(rest))
}

fn dripping(bytes: Bytes, time: Duration) -> Body {
    let piece = bytes.len().div_ceil(DRIPS).max(1);
    let pause = time / u32::try_from(DRIPS).expect("eight");
    let pieces = stream::unfold(bytes, move |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        tokio::time::sleep(pause).await;
        let drop = rest.split_to(piece.min(rest.len()));
        Some((Ok::<_, std::io::Error>(drop), rest))
    });
    Body::from_stream(pieces)
}

/// Changes the middle byte; an empty answer gets one byte.
fn with_one_wrong(bytes: Bytes) -> Vec<u8> {
    let mut bytes = Vec::from(bytes);
    let middle = bytes.len() / 2;
    match bytes.get_mut(middle) {
        Some(byte) => *byte ^= 1,
        None => bytes.push(0),
    }
    bytes
}

/// The answer to a PUT with every blob and patch ID replaced by another well-formed ID.
fn with_wrong_ids(bytes: &Bytes) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice(bytes) else { return bytes.to_vec() };
    for_each_id(&mut value, &mut |id| {
        let other = if id.starts_with('A') { 'B' } else { 'A' };
        id.replace_range(..1, other.encode_utf8(&mut [0; 4]));
    });
    value.to_string().into_bytes()
}

/// Visits every blob and patch ID of an answer.
fn for_each_id(value: &mut Value, visit: &mut impl FnMut(&mut String)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (&mut *value, name.as_str()) {
                    (Value::String(id), "blobId" | "quiltPatchId") => visit(id),
                    (value, _) => for_each_id(value, visit),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| for_each_id(value, visit)),
        _ => {}
    }
}
