//! Reads the bodies of requests, of limited size and in limited time.

use std::time::Duration;

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody as _},
    http::StatusCode,
};
use futures::{StreamExt as _, future::ready};
use zeroize::Zeroizing;

use crate::{
    http::api_error::ApiError,
    keys::usage::UsageCounts,
    state::{Gateway, request_slots::RequestSlot},
};

/// Largest body: the largest turn's messages, JSON-escaped, after a long conversation.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes that are read without a slot. The slots bound the memory for the rest.
const MAX_BYTES_WITHOUT_SLOT: usize = 256 * 1024;
/// Most bytes read beyond the limit, and dropped.
const MAX_DRAINED_BYTES: usize = 3 * MAX_BODY_BYTES;
/// Time for a body to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);

impl Gateway {
    /// Counts a request for a turn or for vectors as it comes, then reads its body as [`Gateway::read`] does.
    pub(crate) async fn receive(&self, body: Body) -> Result<(RequestSlot, Zeroizing<Vec<u8>>), ApiError> {
        let counted = self.count_request()?;
        let read = self.read(body).await;
        let is_crowded = |api_error: &ApiError| api_error.status() == StatusCode::TOO_MANY_REQUESTS;
        if let Some(counted) = counted.filter(|_| read.as_ref().is_err_and(is_crowded)) {
            // The endpoint did nothing for it, and it will come again.
            counted.settle(UsageCounts::default(), self.now_s());
        }
        read
    }

    /// Reads a body, and takes a slot: once the body is there, or is large. Until then it keeps nobody from a slot.
    pub(crate) async fn read(&self, body: Body) -> Result<(RequestSlot, Zeroizing<Vec<u8>>), ApiError> {
        if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(self.too_large(body.into_data_stream()));
        }
        let read = tokio::time::timeout(BODY_TIME, self.collect(body)).await;
        read.map_err(|_| ApiError::request("body_too_slow", "", "the body did not arrive in time"))?
    }

    async fn collect(&self, body: Body) -> Result<(RequestSlot, Zeroizing<Vec<u8>>), ApiError> {
        let (mut slot, mut bytes) = (None, Zeroizing::new(Vec::new()));
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|_| ApiError::request("invalid_body", "", "the body was cut off"))?;
            let length = bytes.len() + part.len();
            if length > MAX_BODY_BYTES {
                return Err(self.too_large(parts));
            }
            if length > MAX_BYTES_WITHOUT_SLOT && slot.is_none() {
                slot = Some(self.slot()?);
            }
            bytes.extend_from_slice(&part);
        }
        let slot = slot.map_or_else(|| self.slot(), Ok)?;
        Ok((slot, bytes))
    }

    /// The error at once. The rest of the body is read and dropped for a while: a program that is cut off while it
    /// sends never sees the error.
    fn too_large(&self, rest: BodyDataStream) -> ApiError {
        self.spawn(async move {
            let mut drained = 0;
            let draining = rest.take_while(|part| {
                drained += part.as_ref().map_or(MAX_DRAINED_BYTES, Bytes::len);
                ready(drained < MAX_DRAINED_BYTES)
            });
            let _ = tokio::time::timeout(BODY_TIME, draining.for_each(async |_| ())).await;
        });
        ApiError::new("body_too_large", format!("the body is larger than {MAX_BODY_BYTES} bytes"))
    }
}
