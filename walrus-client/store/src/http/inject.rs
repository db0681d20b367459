//! The effect of a chosen fault on a request and its answer.

use std::time::{Duration, Instant};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use baton_walrus_client::wire::reason;
use bytes::Bytes;
use futures::{StreamExt as _, stream};

use super::{
    super::{
        EmbeddedStore,
        answers::Refusal,
        faults::{Fault, Subject},
    },
    body::discard,
};

/// Longest answer with a changed copy in memory: slightly more than the largest blob of Walrus's publishers.
const MAX_CHANGED_BYTES: usize = 128 * 1024 * 1024;
/// The end of an endless answer, so that no forgotten client occupies the store for good.
const ENDLESS_BYTES: usize = 1024 * 1024 * 1024;
/// Bytes per piece of an endless answer.
const ENDLESS_PIECE_BYTES: usize = 64 * 1024;
/// Pieces of a dripping answer.
const DRIPS: usize = 8;

/// Serves a request with its fault from the plan. A layer over Walrus's routes.
pub(super) async fn inject(State(store): State<EmbeddedStore>, request: Request, next: Next) -> Response {
    let Some(running) = store.inner.faults.running() else { return next.run(request).await };
    let fault = Subject::of(request.method(), request.uri().path())
        .and_then(|subject| Some((running.decide(&subject, Instant::now())?, subject.reads)));
    let Some((fault, reads)) = fault else { return next.run(request).await };
    tracing::debug!(%fault, "a request meets a fault");
    if let Some(refusal) = refusal(fault, reads) {
        // A sender that is still writing may never read the refusal.
        discard(request.into_body()).await;
        return refusal.into_response();
    }
    let answer = next.run(request).await;
    match fault {
        Fault::Slow(delay) => {
            tokio::time::sleep(delay).await;
            answer
        }
        Fault::AnswerLost => lost(),
        _ if !answer.status().is_success() => answer,
        _ => change(fault, answer).await,
    }
}

/// The faults that replace the answer without serving the request.
fn refusal(fault: Fault, reads: bool) -> Option<Refusal> {
    Some(match fault {
        Fault::NotFoundAfterPut(_) => Refusal::json(
            StatusCode::NOT_FOUND,
            reason::BLOB_NOT_FOUND,
            "the requested blob ID does not exist on Walrus, ensure that it was entered correctly",
        ),
        Fault::Internal => Refusal::internal("an internal server error has occurred"),
        Fault::Unavailable => Refusal::json(
            StatusCode::SERVICE_UNAVAILABLE,
            reason::BLOB_UNAVAILABLE,
            "the requested blob is currently not retrievable, please try again",
        ),
        Fault::TooMany => Refusal::too_many(),
        Fault::GatewayTimeout if reads => Refusal::text(StatusCode::GATEWAY_TIMEOUT, "gateway timeout"),
        Fault::GatewayTimeout => Refusal::json(
            StatusCode::GATEWAY_TIMEOUT,
            reason::INSUFFICIENT_CONFIRMATIONS,
            "the service timed-out while waiting for confirmations, please try again",
        ),
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
    fn exchange(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    if let (serde_json::Value::String(id), "blobId" | "quiltPatchId") =
                        (&mut *value, &name[..])
                    {
                        let other = if id.starts_with('A') { 'B' } else { 'A' };
                        id.replace_range(..1, other.encode_utf8(&mut [0; 4]));
                    }
                    exchange(value);
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(exchange),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_slice(bytes) else { return bytes.to_vec() };
    exchange(&mut value);
    value.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_ids_are_well_formed_and_others() {
        let answer = Bytes::from_static(
            br#"{"newlyCreated":{"blobObject":{"blobId":"AbcAbc"},"id":"x"},"storedQuiltBlobs":[{"quiltPatchId":"Zz"}]}"#,
        );
        let wrong = String::from_utf8(with_wrong_ids(&answer)).unwrap();
        assert_eq!(
            wrong,
            r#"{"newlyCreated":{"blobObject":{"blobId":"BbcAbc"},"id":"x"},"storedQuiltBlobs":[{"quiltPatchId":"Az"}]}"#
        );
        assert_eq!(with_one_wrong(Bytes::from_static(b"abc")), b"acc");
        assert_eq!(with_one_wrong(Bytes::new()), [0]);
    }
}
