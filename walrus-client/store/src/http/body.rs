//! Receives the bodies of requests, with limits on length, and on time by length.

use std::{io, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::super::{
    answers::Refusal,
    config::{BODY_TIMEOUT, MAX_DISCARDED_BYTES, MIN_BODY_RATE, REFUSAL_DELAY},
    upload::Upload,
};

/// The destination of a body's pieces.
pub(super) trait Sink: Send {
    /// Takes the next piece, or refuses the whole body.
    fn take(&mut self, piece: Bytes) -> impl Future<Output = Result<(), Refusal>> + Send;
}

impl Sink for Vec<u8> {
    async fn take(&mut self, piece: Bytes) -> Result<(), Refusal> {
        self.extend_from_slice(&piece);
        Ok(())
    }
}

impl Sink for Upload {
    async fn take(&mut self, piece: Bytes) -> Result<(), Refusal> {
        Ok(self.push(&piece).await?)
    }
}

/// Passes a body of at most `limit` bytes to the sink, piece by piece.
///
/// Refuses a longer body, or one that the sink refuses. A sender that is still writing may never read the
/// refusal, so a bounded part of the rest is read and discarded first.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    sink: &mut impl Sink,
) -> Result<(), Refusal> {
    let announced: Option<u64> =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut pace = Pace::new();
    let mut stream = body.into_data_stream();
    let mut refusal = announced.is_some_and(|length| length > limit as u64).then(too_long);
    let (mut kept, mut discarded) = (0, 0);
    while let Some(chunk) = pace.wait(stream.next()).await? {
        let chunk = chunk.map_err(|error| cut(&error))?;
        pace.moved(chunk.len());
        if refusal.is_none() && chunk.len() > limit - kept {
            refusal = Some(too_long());
        }
        if refusal.is_some() {
            discarded += chunk.len();
            if discarded > MAX_DISCARDED_BYTES {
                break;
            }
            continue;
        }
        kept += chunk.len();
        refusal = sink.take(chunk).await.err();
    }
    refusal.map_or(Ok(()), Err)
}

/// Reads and discards an unwanted body, up to the limit of [`receive`].
pub(super) async fn discard(body: Body) {
    let mut pace = Pace::new();
    let mut stream = body.into_data_stream();
    let mut discarded = 0;
    // Late or broken: an answer follows that its sender may read.
    while let Ok(Some(Ok(chunk))) = pace.wait(stream.next()).await {
        pace.moved(chunk.len());
        discarded += chunk.len();
        if discarded > MAX_DISCARDED_BYTES {
            break;
        }
    }
}

/// Discards a body that is refused unread, so briefly that its sender is no burden. A body that arrived with
/// its head is gone by then, and the connection can continue.
pub(super) async fn discard_briefly(body: Body) {
    // Late or not: the refusal follows.
    let _ = tokio::time::timeout(REFUSAL_DELAY, discard(body)).await;
}

pub(super) fn too_long() -> Refusal {
    Refusal::text(StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded")
}

/// The reason for an incomplete body: its sender was too slow for the listener, or disconnected.
fn cut(error: &axum::Error) -> Refusal {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return late();
        }
        cause = error.source();
    }
    Refusal::text(StatusCode::BAD_REQUEST, "the request body ended early")
}

fn late() -> Refusal {
    Refusal::text(StatusCode::REQUEST_TIMEOUT, "the request body took too long")
}

/// The pace of a body.
struct Pace {
    begin: Instant,
    bytes: u64,
}

impl Pace {
    fn new() -> Self {
        Self { begin: Instant::now(), bytes: 0 }
    }

    /// Notes received bytes.
    fn moved(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Waits for the next piece, as long as the sender keeps the pace.
    async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, Refusal> {
        let earned = Duration::from_secs(self.bytes / MIN_BODY_RATE);
        tokio::time::timeout_at(self.begin + BODY_TIMEOUT + earned, next).await.map_err(|_| late())
    }
}
