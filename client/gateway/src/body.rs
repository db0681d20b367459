//! Reads the bodies of requests, of limited size and in limited time.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use zeroize::Zeroizing;

use super::ApiError;

/// Largest body: the largest turn's messages, JSON-escaped, after a long conversation.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes read in all; those beyond the limit are dropped.
const MAX_DRAINED_BYTES: usize = 4 * MAX_BODY_BYTES;
/// Time for a body to arrive; until then it holds a slot.
const BODY_TIME: Duration = Duration::from_secs(60);

/// Reads a body. Reads and drops bytes beyond the limit for a while: a program that is cut off while it sends
/// never sees the error.
pub(super) async fn read(body: Body) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let read = tokio::time::timeout(BODY_TIME, collect(body)).await;
    read.map_err(|_| ApiError::request("body_too_slow", "", "the body did not arrive in time"))?
}

async fn collect(body: Body) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let mut bytes = Zeroizing::new(Vec::new());
    let mut seen = 0;
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| ApiError::request("invalid_body", "", "the body was cut off"))?;
        seen += part.len();
        if seen <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&part);
        } else if seen > MAX_DRAINED_BYTES {
            break;
        }
    }
    if seen > MAX_BODY_BYTES {
        let message = format!("the body is larger than {MAX_BODY_BYTES} bytes");
        return Err(ApiError::request("body_too_large", "", message));
    }
    Ok(bytes)
}
