//! Download of one file over HTTP, resuming an earlier attempt (RFC 9110, range requests).
//!
//! The received bytes stay in a file with `.part` added to the name, even after the process ends. A `Range`
//! request fetches the rest. Only the hash of the whole file decides if it is correct; if it is not, the file
//! is fetched once more from its beginning.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use baton_walrus_client::http_client;
use reqwest::{Certificate, Client, Response, StatusCode, Url, header};

use crate::{ModelError, WeightsHash, hash_of};

/// Time for a connection, and longest silence on it.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for one call; the next call resumes.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Progress reports that may wait for the caller; when full, the download waits.
const REPORTS_AHEAD: usize = 16;

/// A remote file.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    /// Its URL.
    pub(crate) url: Url,
    /// SHA-256 of the whole file.
    pub(crate) sha256: WeightsHash,
    /// Certificates that vouch for its server, beside those of the system.
    pub(crate) roots: Vec<Certificate>,
}

/// How long a failing server is retried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// Consecutive attempts that bring no bytes.
    pub(crate) tries: u32,
    /// Wait before the second of them; it doubles.
    pub(crate) pause: Duration,
}

impl Default for RetryPolicy {
    /// Five attempts in half a minute: a link that recovers in that time causes no error.
    fn default() -> Self {
        Self { tries: 5, pause: Duration::from_secs(2) }
    }
}

/// Why a download failed.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The server refuses the file or serves another one; its reason.
    Refused(String),
    /// It ended early; the received bytes stay.
    Interrupted {
        /// Bytes received.
        bytes: u64,
        /// The last failure.
        reason: String,
    },
    /// A file operation failed.
    Io(ModelError),
}

impl FetchError {
    /// The error of the download of `file`. Removes the part of a file that the server refuses: resuming it would
    /// not help.
    pub(crate) fn of_model(
        self,
        file: &str,
        target: &Path,
        refused: impl FnOnce(String) -> ModelError,
    ) -> ModelError {
        match self {
            Self::Refused(reason) => {
                let _ = fs::remove_file(part_file(target));
                refused(reason)
            }
            Self::Interrupted { bytes, reason } => ModelError::Unusable(format!(
                "the download of {file} ended after {bytes} bytes: {reason}; the same command goes on from there"
            )),
            Self::Io(error) => error,
        }
    }
}

/// Why one attempt ended.
enum AttemptError {
    /// Another attempt may bring more.
    Retryable(String),
    /// Another attempt would end the same way.
    Final(FetchError),
}

/// Path of the partial file of a download.
pub(crate) fn part_file(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    target.with_file_name(name)
}

/// Ensures that `target` is the remote file. Blocking.
///
/// Reports the bytes so far, and their total once it is known.
pub(crate) fn fetch(
    remote: &RemoteFile,
    target: &Path,
    limit: u64,
    retries: RetryPolicy,
    report: &mut dyn FnMut(u64, Option<u64>),
) -> Result<(), FetchError> {
    if hash_of(target, &mut |_| {}).is_ok_and(|found| found == remote.sha256) {
        return Ok(());
    }
    let (sender, receiver) = sync_channel(REPORTS_AHEAD);
    // A separate thread: the caller's thread may belong to a runtime, which cannot wait for another one.
    thread::scope(|scope| {
        let download = Download { remote, target, part: part_file(target), limit, retries, sender };
        let worker = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(io_error(target))?;
            runtime.block_on(download.run())
        });
        for (bytes, total) in receiver {
            report(bytes, total);
        }
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// A client for requests to the server of this URL.
pub(crate) fn client(url: &Url, roots: &[Certificate]) -> reqwest::Result<Client> {
    let mut client = http_client::builder(url);
    if !roots.is_empty() {
        client = client.tls_backend_rustls().tls_certs_merge(roots.iter().cloned());
    }
    client.connect_timeout(SILENCE_LIMIT).read_timeout(SILENCE_LIMIT).build()
}

/// Runs a future to its end. A separate thread: the caller's thread may belong to a runtime, which cannot wait for
/// another one.
///
/// # Errors
/// The system's, if it has no room for a runtime.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(future))
        });
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

struct Download<'a> {
    remote: &'a RemoteFile,
    target: &'a Path,
    part: PathBuf,
    limit: u64,
    retries: RetryPolicy,
    sender: SyncSender<(u64, Option<u64>)>,
}

impl Download<'_> {
    async fn run(self) -> Result<(), FetchError> {
        let client = client(&self.remote.url, &self.remote.roots)
            .map_err(|error| FetchError::Refused(http_client::describe(&error)))?;
        let begin = Instant::now();
        let mut from_before = self.present() > 0;
        let mut failures = 0;
        loop {
            let before = self.present();
            match self.attempt(&client, before).await {
                Ok(()) if self.is_right()? => {
                    return fs::rename(&self.part, self.target).map_err(io_error(self.target));
                }
                Ok(()) => {
                    fs::remove_file(&self.part).map_err(io_error(&self.part))?;
                    if !from_before {
                        return Err(FetchError::Refused("it has another hash than said".to_owned()));
                    }
                    // The earlier bytes belonged to another file.
                    from_before = false;
                }
                Err(AttemptError::Final(error)) => return Err(error),
                Err(AttemptError::Retryable(reason)) => {
                    let bytes = self.present();
                    failures = if bytes > before { 0 } else { failures + 1 };
                    if failures >= self.retries.tries || begin.elapsed() > TIME_LIMIT {
                        return Err(FetchError::Interrupted { bytes, reason });
                    }
                    if failures > 0 {
                        tokio::time::sleep(self.retries.pause * (1 << (failures - 1).min(8))).await;
                    }
                }
            }
        }
    }

    /// Bytes received so far.
    fn present(&self) -> u64 {
        fs::metadata(&self.part).map_or(0, |metadata| metadata.len())
    }

    fn is_right(&self) -> Result<bool, FetchError> {
        let found = hash_of(&self.part, &mut |_| {}).map_err(io_error(&self.part))?;
        Ok(found == self.remote.sha256)
    }

    /// One request for the rest of the file, appended. It succeeds when the server says that no more follows.
    async fn attempt(&self, client: &Client, have: u64) -> Result<(), AttemptError> {
        let mut request = client.get(self.remote.url.clone()).header(header::ACCEPT_ENCODING, "identity");
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        let response = request.send().await.map_err(retryable)?;
        let start = match response.status() {
            StatusCode::PARTIAL_CONTENT if range_begin(&response) == Some(have) => have,
            // The whole file, whatever range was requested.
            StatusCode::OK => 0,
            // No bytes follow; the hash decides if the file is correct.
            StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return Ok(()),
            status if status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429) => {
                return Err(AttemptError::Retryable(format!("the server said {status}")));
            }
            status => {
                let reason = format!("the server said {status}");
                return Err(AttemptError::Final(FetchError::Refused(reason)));
            }
        };
        self.append(response, start).await
    }

    async fn append(&self, mut response: Response, start: u64) -> Result<(), AttemptError> {
        let disk = |error| AttemptError::Final(io_error(&self.part)(error));
        let total = response.content_length().map(|length| length.saturating_add(start));
        let too_large = || {
            let reason = format!("it is larger than {} bytes", self.limit);
            AttemptError::Final(FetchError::Refused(reason))
        };
        if total.is_some_and(|total| total > self.limit) {
            return Err(too_large());
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.part);
        let mut file: File = file.map_err(disk)?;
        if start == 0 {
            file.set_len(0).map_err(disk)?;
        }
        let mut bytes = start;
        loop {
            self.report(bytes, total);
            let Some(chunk) = response.chunk().await.map_err(retryable)? else { break };
            bytes += chunk.len() as u64;
            if bytes > self.limit {
                return Err(too_large());
            }
            file.write_all(&chunk).map_err(disk)?;
        }
        file.sync_all().map_err(disk)?;
        match total {
            Some(total) if bytes < total => {
                Err(AttemptError::Retryable("the server ended it early".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn report(&self, bytes: u64, total: Option<u64>) {
        // The receiver lives as long as the download.
        let _ = self.sender.send((bytes, total));
    }
}

/// Start of a partial response: `bytes 100-199/200`.
fn range_begin(response: &Response) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn retryable(error: reqwest::Error) -> AttemptError {
    AttemptError::Retryable(http_client::describe(&error))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let error = super::io_error(path);
    move |source| FetchError::Io(error(source))
}

#[cfg(test)]
mod tests;
