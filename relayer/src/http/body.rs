//! Reads request bodies with limits on size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::{
    api_error::{ApiError, SLOW_BODY, TOO_LARGE},
    limits::{BODY_PATIENCE, MIN_BODY_RATE},
};

/// The deadline of a body with this many received bytes: a grace period, plus the time that the bytes allow.
fn deadline(begun: Instant, received: usize) -> Instant {
    let worth = Duration::from_micros((received as u64).saturating_mul(1_000_000) / MIN_BODY_RATE);
    begun + BODY_PATIENCE + worth
}

/// Reads a body of at most `most` bytes. `grown` is called with the number of bytes before each part is
/// added.
///
/// # Errors
/// A 413 for a longer body, a 408 for a slow or incomplete one, and the error of `grown`.
pub(super) async fn read(
    body: Body,
    most: usize,
    mut grown: impl FnMut(usize) -> Result<(), ApiError>,
) -> Result<Bytes, ApiError> {
    let begun = Instant::now();
    let mut parts = body.into_data_stream();
    let mut bytes = Vec::new();
    loop {
        let part = match tokio::time::timeout_at(deadline(begun, bytes.len()), parts.next()).await {
            Ok(Some(Ok(part))) => part,
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Err(_))) | Err(_) => return Err(ApiError::new(SLOW_BODY)),
        };
        let length = bytes.len().saturating_add(part.len());
        if length > most {
            return Err(
                ApiError::new(TOO_LARGE).saying(format!("a body of this route has at most {most} bytes"))
            );
        }
        grown(length)?;
        bytes.extend_from_slice(&part);
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn a_body_has_its_patience_and_then_its_rate() {
        let begun = Instant::now();
        assert_eq!(deadline(begun, 0), begun + BODY_PATIENCE);
        let second = usize::try_from(MIN_BODY_RATE).unwrap();
        assert_eq!(deadline(begun, 10 * second), begun + BODY_PATIENCE + Duration::from_secs(10));
        assert!(deadline(begun, usize::MAX) > begun, "no overflow");
    }

    #[tokio::test]
    async fn a_body_is_read_whole_or_refused() {
        let any = |_: usize| Ok(());
        let parts =
            || Body::from_stream(stream::iter((0..100).map(|_| Ok::<_, std::io::Error>(Bytes::from("abc")))));
        assert_eq!(read(parts(), 300, any).await.unwrap(), "abc".repeat(100));
        assert_eq!(read(parts(), 299, any).await.unwrap_err().code(), "too_large");
        let mut seen = Vec::new();
        let grown = |length| {
            seen.push(length);
            if length > 9 { Err(ApiError::bad("no")) } else { Ok(()) }
        };
        assert_eq!(read(parts(), 300, grown).await.unwrap_err().code(), "bad_request");
        assert_eq!(seen, [3, 6, 9, 12]);
        let cut = stream::iter([Ok(Bytes::from("a")), Err(std::io::Error::other("cut"))]);
        assert_eq!(read(Body::from_stream(cut), 10, any).await.unwrap_err().code(), "slow_body");
    }
}
