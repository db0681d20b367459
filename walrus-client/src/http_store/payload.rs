//! The bodies of PUTs. Each can be opened again, since a PUT may go to another publisher.

use std::{io, path::PathBuf};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use reqwest::Body;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::options::{Phase, ProgressFn};

/// Bytes per chunk, and so the step of reported progress.
const CHUNK_BYTES: usize = 64 * 1024;

/// A blob to store.
#[derive(Debug, Clone)]
pub enum PutBody {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A file. Two parallel reads serve its ID and the publisher; memory never holds the whole file. If the
    /// file changes meanwhile, the IDs differ and the PUT ends as [`StoreError::WrongContent`].
    ///
    /// [`StoreError::WrongContent`]: baton_proto::store::StoreError::WrongContent
    File(PathBuf),
}

impl From<Vec<u8>> for PutBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<Bytes> for PutBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// The payload of a PUT.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Bytes(Bytes),
    File { path: PathBuf, length: u64 },
    Form(MultipartForm),
}

/// A multipart form.
#[derive(Debug, Clone)]
pub(super) struct MultipartForm {
    boundary: String,
    parts: Vec<Bytes>,
    length: u64,
}

impl Payload {
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
            Self::Form(form) => form.length,
        }
    }

    pub(super) fn content_type(&self) -> String {
        match self {
            Self::Form(form) => format!("multipart/form-data; boundary={}", form.boundary),
            Self::Bytes(_) | Self::File { .. } => "application/octet-stream".to_owned(),
        }
    }

    /// The body from its start, which cannot be sent twice: only the caller repeats a PUT. The request must also carry
    /// its length.
    pub(super) async fn open(&self, progress: Option<ProgressFn>) -> io::Result<Body> {
        let total = self.length();
        Ok(match self {
            Self::Bytes(bytes) => with_progress(pieces(bytes.clone()), progress, total),
            Self::File { path, length } => {
                let file = tokio::fs::File::open(path).await?.take(*length);
                with_progress(ReaderStream::with_capacity(file, CHUNK_BYTES), progress, total)
            }
            Self::Form(form) => {
                with_progress(stream::iter(form.parts.clone()).flat_map(pieces), progress, total)
            }
        })
    }
}

/// Pieces of a buffer that share its memory.
fn pieces(bytes: Bytes) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let starts = (0..bytes.len()).step_by(CHUNK_BYTES);
    stream::iter(starts.map(move |start| Ok(bytes.slice(start..bytes.len().min(start + CHUNK_BYTES)))))
}

/// A body that reports its progress as it is sent.
fn with_progress(
    chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    progress: Option<ProgressFn>,
    total: u64,
) -> Body {
    let mut done = 0;
    Body::wrap_stream(chunks.inspect_ok(move |chunk| {
        done += chunk.len() as u64;
        if let Some(progress) = &progress {
            progress.report(Phase::Uploading, done, Some(total));
            if done == total {
                progress.report(Phase::Waiting, 0, None);
            }
        }
    }))
}

impl MultipartForm {
    /// Builds a form from names and bytes. Names have the form that publishers read: UTF-8 in quotes, with
    /// quotes escaped. Returns `None` for a name whose end is ambiguous.
    pub(super) fn new(fields: impl IntoIterator<Item = (String, Bytes)>) -> Option<Self> {
        let boundary = format!("baton-{}", hex::encode(rand::random::<[u8; 24]>()));
        let mut parts = Vec::new();
        for (name, bytes) in fields {
            if name.ends_with('\\') || name.contains("\\\"") || name.contains(char::is_control) {
                return None;
            }
            let name = name.replace('"', "\\\"");
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"blob\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            );
            parts.extend([Bytes::from(head), bytes, Bytes::from_static(b"\r\n")]);
        }
        parts.push(Bytes::from(format!("--{boundary}--\r\n")));
        let length = parts.iter().map(|part| part.len() as u64).sum();
        Some(Self { boundary, parts, length })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_form_has_the_length_that_it_says() {
        let form = MultipartForm::new([("a \"b\" ü".to_owned(), Bytes::from_static(b"xyz"))]).unwrap();
        let all = form.parts.concat();
        assert_eq!(all.len() as u64, form.length);
        let text = String::from_utf8(all).unwrap();
        assert!(
            text.contains("name=\"a \\\"b\\\" ü\"") && text.contains("\r\n\r\nxyz\r\n--baton-"),
            "{text}"
        );
        for name in ["a\\", "a\\\"", "a\r\nb"] {
            assert!(MultipartForm::new([(name.to_owned(), Bytes::new())]).is_none(), "{name:?}");
        }
    }

    #[tokio::test]
    async fn a_body_tells_each_piece_and_then_that_it_waits() {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let to = reports.clone();
        let progress =
            ProgressFn::new(move |progress| to.lock().unwrap().push((progress.phase, progress.done)));
        let payload = Payload::Bytes(vec![0; CHUNK_BYTES + 1].into());
        let body = payload.open(Some(progress)).await.unwrap();
        drop(reqwest::Response::from(axum::http::Response::new(body)).bytes().await.unwrap());
        let first = CHUNK_BYTES as u64;
        let expected = [(Phase::Uploading, first), (Phase::Uploading, first + 1), (Phase::Waiting, 0)];
        assert_eq!(*reports.lock().unwrap(), expected);
    }
}
