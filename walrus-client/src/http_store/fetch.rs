//! One bounded, timed and checked request to one aggregator.
//!
//! Never holds more of a body than the limit and one chunk. `answer` interprets the answer;
//! [`read`](super::read) chooses the other sources.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use reqwest::{
    RequestBuilder, Response, StatusCode,
    header::{self, HeaderMap},
};
use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    time::{Instant, sleep_until, timeout},
};

use super::{
    ByteRange, HttpStoreInner,
    answer::{self, Failure, ReadFault},
    health::Offence,
    join,
    read::{ReadPlan, ReadState, Verb},
    verify::{Check, IdError, Input, compute_id},
};
use crate::{
    http_client::{describe, proxy_of},
    wire::reason,
};

/// Most bytes read of a PUT's answer or an error body: Walrus's own are below 2 KiB.
pub(super) const MAX_ANSWER_BYTES: u64 = 64 * 1024;
/// Most memory reserved at once for an announced length; more grows as bytes arrive.
const MAX_RESERVE_BYTES: u64 = 1024 * 1024;
/// Bytes per write to a file.
const FILE_BUFFER_BYTES: usize = 256 * 1024;
/// Longest wait for anything, so that no sum of times overflows.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The destination of an answer's bytes.
#[derive(Debug, Clone)]
pub(super) enum Target {
    Memory,
    /// A new file in this folder.
    Folder(PathBuf),
}

/// Received and checked bytes.
#[derive(Debug)]
pub(super) enum Content {
    Memory(Vec<u8>),
    File(PartFile),
}

/// The answer of one aggregator.
#[derive(Debug)]
pub(super) struct AggregatorAnswer {
    pub(super) content: Content,
    pub(super) headers: HeaderMap,
}

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
    ) -> Result<AggregatorAnswer, ReadFault> {
        let sources = &self.aggregators;
        sources.note_request(index);
        let asked = Instant::now();
        let mut latency = None;
        let result = self.fetch(plan, index, run, motion, &mut latency).await;
        match &result {
            Ok(_) | Err(ReadFault::Missing) => {
                sources.note_answer(index, latency.unwrap_or_else(|| asked.elapsed()));
            }
            Err(ReadFault::Busy { retry_after, .. }) => {
                sources.note_offence(index, Offence::Failed(*retry_after))
            }
            Err(ReadFault::Unreachable { .. }) => sources.note_offence(index, Offence::Failed(None)),
            Err(ReadFault::Refused { .. }) => sources.note_offence(index, Offence::Refused),
            Err(ReadFault::Wrong) => sources.note_offence(index, Offence::WrongContent),
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
    ) -> Result<AggregatorAnswer, ReadFault> {
        let asked = Instant::now();
        let base = self.settings.base_timeout;
        let request = self.request(plan, index)?;
        // The answer must begin within the base timeout: only a body earns more time.
        let response = timeout(base, request.send()).await.map_err(|_| ReadFault::busy("timed out"))?;
        let response = response.map_err(|error| unanswered(&error))?;
        *latency = Some(asked.elapsed());
        if !serves(plan.status, response.status()) {
            let failure = timeout(base, failure(response)).await.map_err(|_| ReadFault::busy("timed out"))?;
            return Err(failure.of_get());
        }
        let headers = response.headers().clone();
        if matches!(plan.verb, Verb::Head) {
            return match (plan.check, announced_length(&headers)) {
                (Check::Length(expected), Some(length)) if length != expected => Err(ReadFault::Wrong),
                _ => Ok(AggregatorAnswer { content: Content::Memory(Vec::new()), headers }),
            };
        }
        let content = self.receive(plan, response, run, motion).await?;
        if let Some(range) = plan.range {
            check_range(range, &headers, content.length())?;
        }
        if matches!(&content, Content::Memory(bytes) if !(plan.well_formed)(bytes)) {
            return Err(ReadFault::Wrong);
        }
        Ok(AggregatorAnswer { content, headers })
    }

    fn request(&self, plan: &ReadPlan, index: usize) -> Result<RequestBuilder, ReadFault> {
        let refused =
            |error: baton_proto::store::StoreError| ReadFault::Refused { reason: error.to_string() };
        let mut url = join(&self.aggregators.get(index).url, &plan.path).map_err(refused)?;
        if !plan.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&plan.query);
        }
        let request = match &plan.verb {
            Verb::Get => self.client(&url).get(url),
            Verb::Head => self.client(&url).head(url),
            Verb::Post(body) => self
                .client(&url)
                .post(url)
                .header(header::CONTENT_TYPE, "application/json")
                .body(body.clone()),
        };
        Ok(match plan.range {
            Some(range) if plan.status == StatusCode::PARTIAL_CONTENT => {
                let last = range.start.saturating_add(range.length - 1);
                request.header(header::RANGE, format!("bytes={}-{last}", range.start))
            }
            _ => request,
        })
    }

    /// Reads and checks a body, within the time for its bytes.
    async fn receive(
        &self,
        plan: &ReadPlan,
        response: Response,
        run: &ReadState,
        motion: &Motion,
    ) -> Result<Content, ReadFault> {
        let announced = response.content_length();
        if let Some(length) = announced.filter(|length| *length > plan.limit) {
            return Err(ReadFault::TooLarge { length, limit: plan.limit });
        }
        run.earn(announced.unwrap_or(0));
        let began = Instant::now();
        let earned = || {
            let length = announced.unwrap_or(0).max(motion.bytes());
            after(began, self.settings.transfer(length))
        };
        let content = bounded(earned, self.take(plan, response, run, motion)).await;
        let content = content.unwrap_or_else(|| Err(ReadFault::busy("timed out")))?;
        let Check::BlobId(expected) = plan.check else { return Ok(content) };
        let (input, content) = content.into_input();
        motion.verifying.store(true, Ordering::Relaxed);
        let computed = compute_id(input.clone(), self.settings.shards).await;
        motion.verifying.store(false, Ordering::Relaxed);
        // Content that is too large for any ID is wrong content.
        match computed {
            Ok(found) if found == expected => Ok(content.unwrap_or_else(|| Content::taken(input))),
            Ok(_) | Err(IdError::Encoding(_)) => Err(ReadFault::Wrong),
            Err(error) => Err(ReadFault::busy(error.to_string())),
        }
    }

    async fn take(
        &self,
        plan: &ReadPlan,
        mut response: Response,
        run: &ReadState,
        motion: &Motion,
    ) -> Result<Content, ReadFault> {
        let announced = response.content_length();
        let mut sink = Sink::open(&plan.target, announced).await.map_err(local)?;
        let mut check = plan.check.begin();
        let mut received = 0;
        while let Some(chunk) = response.chunk().await.map_err(|error| ReadFault::busy(describe(&error)))? {
            received += chunk.len() as u64;
            self.metrics.bytes_received.add(chunk.len() as u64);
            if received > plan.limit {
                return Err(ReadFault::TooLarge { length: received, limit: plan.limit });
            }
            check.update(&chunk);
            sink.write(&chunk).await.map_err(local)?;
            motion.set(received);
            run.moved(plan, received, announced);
        }
        if !check.matches() {
            return Err(ReadFault::Wrong);
        }
        sink.finish().await.map_err(local)
    }
}

/// The disk failed. Another aggregator cannot help, but this aggregator did nothing wrong.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn local(error: std::io::Error) -> ReadFault {
    ReadFault::Refused { reason: format!("cannot write the file: {error}") }
}

impl Content {
    /// The input for computing the ID. The caller still owns a file, so that wrong content is removed.
    fn into_input(self) -> (Input, Option<Self>) {
        match self {
            Self::Memory(bytes) => (Input::Memory(bytes.into()), None),
            Self::File(file) => (Input::File(file.path.clone()), Some(Self::File(file))),
        }
    }

    fn taken(input: Input) -> Self {
        match input {
            Input::Memory(bytes) => Self::Memory(bytes.into()),
            Input::File(_) => Self::Memory(Vec::new()),
        }
    }

    fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.length,
        }
    }

    /// The bytes of an answer in memory.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(_) => Vec::new(),
        }
    }
}

/// A file that is removed on drop, unless [`Self::keep_as`] renames it.
#[derive(Debug)]
pub(super) struct PartFile {
    path: PathBuf,
    pub(super) length: u64,
    kept: bool,
}

impl PartFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, and replaces any file there.
    pub(super) async fn keep_as(mut self, path: &Path) -> std::io::Result<()> {
        tokio::fs::rename(&self.path, path).await?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.kept {
            // If the removal fails, nothing can be done; the name marks the file as partial.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

enum Sink {
    Memory(Vec<u8>),
    File(BufWriter<tokio::fs::File>, PartFile),
}

impl Sink {
    async fn open(target: &Target, announced: Option<u64>) -> std::io::Result<Self> {
        match target {
            Target::Memory => {
                let reserve = announced.unwrap_or(0).min(MAX_RESERVE_BYTES);
                Ok(Self::Memory(Vec::with_capacity(usize::try_from(reserve).unwrap_or(0))))
            }
            Target::Folder(folder) => {
                let name = format!(".{}.part", hex::encode(rand::random::<[u8; 12]>()));
                let part = PartFile { path: folder.join(name), length: 0, kept: false };
                let mut options = tokio::fs::OpenOptions::new();
                let file = options.write(true).create_new(true).open(&part.path).await?;
                Ok(Self::File(BufWriter::with_capacity(FILE_BUFFER_BYTES, file), part))
            }
        }
    }

    async fn write(&mut self, chunk: &Bytes) -> std::io::Result<()> {
        match self {
            Self::Memory(bytes) => bytes.extend_from_slice(chunk),
            Self::File(writer, part) => {
                writer.write_all(chunk).await?;
                part.length += chunk.len() as u64;
            }
        }
        Ok(())
    }

    async fn finish(self) -> std::io::Result<Content> {
        match self {
            Self::Memory(bytes) => Ok(Content::Memory(bytes)),
            Self::File(mut writer, part) => {
                writer.flush().await?;
                writer.get_ref().sync_all().await?;
                Ok(Content::File(part))
            }
        }
    }
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
pub(super) fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body of at most `limit` bytes; `Err(None)` when it is longer.
pub(super) async fn read_bounded(
    mut response: Response,
    limit: u64,
) -> Result<Vec<u8>, Option<reqwest::Error>> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Some)? {
        if (body.len() + chunk.len()) as u64 > limit {
            return Err(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Reads an answer without success. A broken error body is no error of its own.
pub(super) async fn failure(response: Response) -> Failure {
    let status = response.status().as_u16();
    let header =
        |name| response.headers().get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let retry_after = header(header::RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| answer::retry_after(value, header(header::DATE)));
    let way = proxy_of(response.url());
    let body = read_bounded(response, MAX_ANSWER_BYTES).await.unwrap_or_default();
    Failure { status, retry_after, body, way }
}

/// Whether an answer of this status has the requested content. Of the successes, one in parts answers a request for a
/// part alone, and some have no content, or not yet.
fn serves(wanted: StatusCode, status: StatusCode) -> bool {
    match status {
        StatusCode::PARTIAL_CONTENT => wanted == StatusCode::PARTIAL_CONTENT,
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT => false,
        _ => wanted != StatusCode::PARTIAL_CONTENT && status.is_success(),
    }
}

/// Checks that a range's answer holds exactly the requested bytes, as far as its header tells. An answer that
/// a cache cut at the blob's end is refused, as Walrus refuses a range past the blob's end.
fn check_range(range: ByteRange, headers: &HeaderMap, length: u64) -> Result<(), ReadFault> {
    let end = range.start.saturating_add(range.length);
    let value = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match value.and_then(answer::content_range) {
        Some((.., Some(total))) if total < end => {
            Err(ReadFault::Refused { reason: reason::INVALID_BYTE_RANGE.to_owned() })
        }
        Some((first, last, _)) if first != range.start || last.checked_add(1) != Some(end) => {
            Err(ReadFault::Wrong)
        }
        _ if length != range.length => Err(ReadFault::Wrong),
        _ => Ok(()),
    }
}

/// The fault of a read without an answer.
fn unanswered(error: &reqwest::Error) -> ReadFault {
    let reason = describe(error);
    if error.is_connect() { ReadFault::Unreachable { reason } } else { ReadFault::busy(reason) }
}
