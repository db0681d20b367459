//! Receiving the bodies of requests: bounded in length, and in time by their length.

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

/// Where the pieces of a body go.
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

/// Hands a body of at most `limit` bytes on, piece by piece.
///
/// A longer one is refused; since a sender that is still writing may never read the refusal, a bounded part
/// of the rest is read and thrown away first. What the sink refuses is refused the same way.
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

/// Reads a body that nobody wants and throws it away, as far as [`receive`] would.
pub(in crate::embedded) async fn discard(body: Body) {
    let mut pace = Pace::new();
    let mut stream = body.into_data_stream();
    let mut discarded = 0;
    // Late or broken: what follows is an answer that its sender may read.
    while let Ok(Some(Ok(chunk))) = pace.wait(stream.next()).await {
        pace.moved(chunk.len());
        discarded += chunk.len();
        if discarded > MAX_DISCARDED_BYTES {
            break;
        }
    }
}

/// The same for a body that is refused before it is looked at, in a time so short that a refused sender is no burden:
/// a body that was sent along with its head is gone by then, and the connection can go on.
pub(super) async fn discard_briefly(body: Body) {
    // Late or not: the refusal follows.
    let _ = tokio::time::timeout(REFUSAL_DELAY, discard(body)).await;
}

pub(super) fn too_long() -> Refusal {
    Refusal::text(StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded")
}

/// Why a body ended before it was whole: its sender was too slow for the listener, or went away.
fn cut(error: &axum::Error) -> Refusal {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return late();
        }
        cause = error.source();
    }
    broken()
}

fn late() -> Refusal {
    Refusal::text(StatusCode::REQUEST_TIMEOUT, "the request body took too long")
}

pub(super) fn broken() -> Refusal {
    Refusal::text(StatusCode::BAD_REQUEST, "the request body ended early")
}

/// How fast a body comes.
pub(super) struct Pace {
    begin: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), bytes: 0 }
    }

    /// Notes that so many bytes have come.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Waits for the next piece, as long as the sender keeps the pace.
    pub(super) async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, Refusal> {
        let earned = Duration::from_secs(self.bytes / MIN_BODY_RATE);
        tokio::time::timeout_at(self.begin + BODY_TIMEOUT + earned, next).await.map_err(|_| late())
    }
}
