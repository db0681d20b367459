//! Reads request bodies with limits on size and time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::{
    api_error::{ApiError, SLOW_BODY, TOO_LARGE},
    limits::{BODY_BYTES, MIN_BODY_RATE, MIN_LARGE_BODY_RATE},
};

/// The time that received bytes are worth at the slowest accepted rate.
fn worth(received: usize) -> Duration {
    let micros = |bytes: usize, rate: u64| (bytes as u64).saturating_mul(1_000_000) / rate;
    let small = received.min(BODY_BYTES);
    Duration::from_micros(micros(small, MIN_BODY_RATE) + micros(received - small, MIN_LARGE_BODY_RATE))
}

/// Limits on one body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Most bytes.
    pub(super) most: usize,
    /// Grace period, beyond the time that the received bytes are worth.
    pub(super) patience: Duration,
}

/// A body on its way.
pub(super) struct BodyReader {
    parts: BodyDataStream,
    limits: BodyLimits,
    bytes: Vec<u8>,
    /// When the sender's grace period ends.
    grace: Instant,
}

impl BodyReader {
    pub(super) fn new(body: Body, limits: BodyLimits) -> Self {
        let grace = Instant::now() + limits.patience;
        Self { parts: body.into_data_stream(), limits, bytes: Vec::new(), grace }
    }

    /// Reads on until the body ends, or more than `bound` bytes have arrived. Returns whether it ended.
    ///
    /// # Errors
    /// A 413 for a body that is too long, a 408 for a slow or incomplete one.
    pub(super) async fn read_within(&mut self, bound: usize) -> Result<bool, ApiError> {
        while self.bytes.len() <= bound {
            let Some(part) = self.receive().await? else { return Ok(true) };
            if self.bytes.len().saturating_add(part.len()) > self.limits.most {
                let most = self.limits.most;
                return Err(
                    ApiError::new(TOO_LARGE).saying(format!("a body of this route has at most {most} bytes"))
                );
            }
            self.bytes.extend_from_slice(&part);
        }
        Ok(false)
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, ApiError> {
        let deadline = self.grace + worth(self.bytes.len());
        match tokio::time::timeout_at(deadline, self.parts.next()).await {
            Ok(Some(Ok(part))) => Ok(Some(part)),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) | Err(_) => Err(ApiError::new(SLOW_BODY)),
        }
    }

    /// Notes that the server let the sender wait.
    pub(super) fn excuse(&mut self, wait: Duration) {
        self.grace += wait;
    }

    /// The bytes that were read.
    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

/// Reads a whole body.
///
/// # Errors
/// As [`BodyReader::read_within`].
pub(super) async fn read(body: Body, limits: BodyLimits) -> Result<Bytes, ApiError> {
    let mut reader = BodyReader::new(body, limits);
    reader.read_within(limits.most).await?;
    Ok(reader.into_bytes())
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn limits(most: usize) -> BodyLimits {
        BodyLimits { most, patience: PATIENCE }
    }

    #[test]
    fn received_bytes_are_worth_their_time_and_large_ones_less() {
        let second = usize::try_from(MIN_BODY_RATE).unwrap();
        assert_eq!(worth(0), Duration::ZERO);
        assert_eq!(worth(10 * second), Duration::from_secs(10));
        let large = usize::try_from(MIN_LARGE_BODY_RATE).unwrap();
        assert_eq!(worth(BODY_BYTES + 3 * large), worth(BODY_BYTES) + Duration::from_secs(3));
        assert!(worth(usize::MAX) > Duration::ZERO, "no overflow");
    }

    fn body(parts: impl IntoIterator<Item = &'static str, IntoIter: Send + 'static>) -> Body {
        Body::from_stream(stream::iter(
            parts.into_iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(part))),
        ))
    }

    #[tokio::test]
    async fn a_body_is_read_whole_or_refused() {
        let parts = || body(["abc"; 100]);
        assert_eq!(read(parts(), limits(300)).await.unwrap(), "abc".repeat(100));
        assert_eq!(read(parts(), limits(299)).await.unwrap_err().code(), "too_large");
        let cut = stream::iter([Ok(Bytes::from("a")), Err(std::io::Error::other("cut"))]);
        assert_eq!(read(Body::from_stream(cut), limits(10)).await.unwrap_err().code(), "slow_body");
    }

    #[tokio::test]
    async fn a_reader_stops_at_its_bound_and_goes_on_from_there() {
        let mut reader = BodyReader::new(body(["ab", "cd", "ef"]), limits(6));
        assert!(!reader.read_within(3).await.unwrap());
        assert!(!reader.read_within(5).await.unwrap());
        assert!(reader.read_within(6).await.unwrap());
        assert_eq!(reader.into_bytes(), "abcdef");
        let mut short = BodyReader::new(body(["ab"]), limits(6));
        assert!(short.read_within(2).await.unwrap());
    }

    #[tokio::test]
    async fn a_wait_of_the_server_is_not_the_senders() {
        let patience = Duration::from_millis(60);
        let slow = || {
            let parts = stream::unfold(0, move |number| async move {
                tokio::time::sleep(patience * 2 / 3).await;
                (number < 2).then(|| (Ok::<_, std::io::Error>(Bytes::from("a")), number + 1))
            });
            BodyReader::new(Body::from_stream(parts), BodyLimits { most: 10, patience })
        };
        assert_eq!(slow().read_within(10).await.unwrap_err().code(), "slow_body", "the second part is late");
        let mut excused = slow();
        excused.excuse(PATIENCE);
        assert!(excused.read_within(10).await.unwrap());
    }
}
