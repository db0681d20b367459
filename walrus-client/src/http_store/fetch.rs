//! One bounded, timed and checked request to one aggregator.
//!
//! Never holds more of a body than the limit and one chunk. `answer` interprets the answer;
//! [`read`](super::read) chooses the other sources.

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use baton_proto::store::StoreError;
use bytes::Bytes;
use reqwest::{
    RequestBuilder, Response, StatusCode,
    header::{self, HeaderMap},
};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    HttpStoreInner,
    answer::{self, Failure, ReadFault},
    health::SourceOffence,
    join,
    read::{ReadPlan, ReadState, Verb},
    verify::{ContentCheck, compute_id},
};
use crate::http_client::{describe, proxy_of, read_bounded};

/// Most bytes read of a PUT's answer or an error body: Walrus's own are below 2 KiB.
pub(super) const MAX_ANSWER_BYTES: u64 = 64 * 1024;
/// Most memory reserved at once for an announced length; more grows as bytes arrive.
const MAX_RESERVE_BYTES: u64 = 1024 * 1024;
/// Longest wait for anything, so that no sum of times overflows.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The progress of one request, for the tasks that wait for it.
#[derive(Debug, Default)]
pub(super) struct Motion {
    bytes: AtomicU64,
    verifying: AtomicBool,
}

impl Motion {
    fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes received.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all bytes are here and their blob ID is being computed.
    pub(super) fn is_verifying(&self) -> bool {
        self.verifying.load(Ordering::Relaxed)
    }
}

impl HttpStoreInner {
    /// Asks one aggregator, and notes the result.
    pub(super) async fn attempt(
        &self,
        plan: &ReadPlan,
        index: usize,
        run: &ReadState,
        motion: &Motion,
    ) -> Result<Vec<u8>, ReadFault> {
        let sources = &self.aggregators;
        let asked = Instant::now();
        let mut latency = None;
        let result = self.fetch(plan, index, run, motion, &mut latency).await;
        match &result {
            Ok(_) | Err(ReadFault::Missing) => {
                sources.note_answer(index, latency.unwrap_or_else(|| asked.elapsed()));
            }
            Err(ReadFault::Busy { retry_after, .. }) => {
                sources.note_offence(index, SourceOffence::Failed(*retry_after))
            }
            Err(ReadFault::Unreachable { .. }) => sources.note_offence(index, SourceOffence::Failed(None)),
            Err(ReadFault::Refused { .. }) => sources.note_offence(index, SourceOffence::Refused),
            Err(ReadFault::Wrong) => sources.note_offence(index, SourceOffence::WrongContent),
            // The blob may really be that large.
            Err(ReadFault::TooLarge { .. }) => {}
        }
        result
    }

    async fn fetch(
        &self,
        plan: &ReadPlan,
        index: usize,
        run: &ReadState,
        motion: &Motion,
        latency: &mut Option<Duration>,
    ) -> Result<Vec<u8>, ReadFault> {
        let asked = Instant::now();
        let base = self.policy.base_timeout;
        let request = self.request(plan, index)?;
        // The answer must begin within the base timeout: only a body earns more time.
        let response = timeout(base, request.send()).await.map_err(|_| ReadFault::busy("timed out"))?;
        let response = response.map_err(|error| unanswered(&error))?;
        *latency = Some(asked.elapsed());
        if !serves(response.status()) {
            let failure = timeout(base, failure(response)).await.map_err(|_| ReadFault::busy("timed out"))?;
            return Err(failure.of_get());
        }
        if matches!(plan.verb, Verb::Head) {
            return match (plan.check, announced_length(response.headers())) {
                (ContentCheck::Length(expected), Some(length)) if length != expected => Err(ReadFault::Wrong),
                _ => Ok(Vec::new()),
            };
        }
        self.receive(plan, response, run, motion).await
    }

    fn request(&self, plan: &ReadPlan, index: usize) -> Result<RequestBuilder, ReadFault> {
        let refused = |error: StoreError| ReadFault::Refused { reason: error.to_string() };
        let url = join(self.aggregators.url(index), &plan.path).map_err(refused)?;
        Ok(match plan.verb {
            Verb::Get => self.client(&url).get(url),
            Verb::Head => self.client(&url).head(url),
        })
    }

    /// Reads and checks a body, within the time for its bytes.
    async fn receive(
        &self,
        plan: &ReadPlan,
        response: Response,
        run: &ReadState,
        motion: &Motion,
    ) -> Result<Vec<u8>, ReadFault> {
        let announced = response.content_length();
        if let Some(length) = announced.filter(|length| *length > plan.limit) {
            return Err(ReadFault::TooLarge { length, limit: plan.limit });
        }
        run.earn(announced.unwrap_or(0));
        let began = Instant::now();
        let earned = || {
            let length = announced.unwrap_or(0).max(motion.bytes());
            after(began, self.policy.transfer(length))
        };
        let bytes = bounded(earned, take(plan, response, run, motion)).await;
        let bytes = bytes.unwrap_or_else(|| Err(ReadFault::busy("timed out")))?;
        let ContentCheck::BlobId(expected) = plan.check else { return Ok(bytes) };
        let bytes = Bytes::from(bytes);
        motion.verifying.store(true, Ordering::Relaxed);
        let computed = compute_id(bytes.clone(), self.shards()).await;
        motion.verifying.store(false, Ordering::Relaxed);
        // Content that is too large for any ID is wrong content.
        match computed {
            Ok(found) if found == expected => Ok(bytes.into()),
            Ok(_) | Err(StoreError::TooLarge { .. }) => Err(ReadFault::Wrong),
            Err(error) => Err(ReadFault::busy(error.to_string())),
        }
    }
}

async fn take(
    plan: &ReadPlan,
    mut response: Response,
    run: &ReadState,
    motion: &Motion,
) -> Result<Vec<u8>, ReadFault> {
    let reserve = response.content_length().unwrap_or(0).min(MAX_RESERVE_BYTES);
    let mut bytes = Vec::with_capacity(usize::try_from(reserve).unwrap_or(0));
    let mut check = plan.check.begin();
    while let Some(chunk) = response.chunk().await.map_err(|error| ReadFault::busy(describe(&error)))? {
        let received = (bytes.len() + chunk.len()) as u64;
        if received > plan.limit {
            return Err(ReadFault::TooLarge { length: received, limit: plan.limit });
        }
        check.update(&chunk);
        bytes.extend_from_slice(&chunk);
        motion.set(received);
        run.earn(received);
    }
    if check.matches() { Ok(bytes) } else { Err(ReadFault::Wrong) }
}

/// A time after another, capped at [`FAR`].
pub(super) fn after(start: Instant, time: Duration) -> Instant {
    start + time.min(FAR)
}

/// Runs `work` until a deadline that may move meanwhile; `None` once it has passed.
pub(super) async fn bounded<T>(deadline: impl Fn() -> Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let until = deadline();
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = sleep_until(until) => {
                if deadline() <= until {
                    return None;
                }
            }
        }
    }
}

/// The `Content-Length` of an answer, even to HEAD, which has no body.
fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads an answer without success. A broken error body is no error of its own.
pub(super) async fn failure(response: Response) -> Failure {
    let status = response.status().as_u16();
    let header =
        |name| response.headers().get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let retry_after = header(header::RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| answer::retry_after(value, header(header::DATE)));
    let way = proxy_of(response.url());
    // A part of a blob is no error's text.
    let body = match response.status().is_success() {
        true => Default::default(),
        false => read_bounded(response, MAX_ANSWER_BYTES).await.unwrap_or_default(),
    };
    Failure { status, retry_after, body, way }
}

/// Whether an answer of this status has the requested content. Of the successes, some have a part of it, none, or not
/// yet any.
fn serves(status: StatusCode) -> bool {
    let lacks_content = matches!(
        status,
        StatusCode::ACCEPTED
            | StatusCode::NO_CONTENT
            | StatusCode::RESET_CONTENT
            | StatusCode::PARTIAL_CONTENT
    );
    status.is_success() && !lacks_content
}

/// The fault of a read without an answer.
fn unanswered(error: &reqwest::Error) -> ReadFault {
    let reason = describe(error);
    if error.is_connect() { ReadFault::Unreachable { reason } } else { ReadFault::busy(reason) }
}
