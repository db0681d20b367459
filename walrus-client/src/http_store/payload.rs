//! The bodies of PUTs. Each can be opened again, since a PUT may go to another publisher.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use reqwest::Body;

/// Bytes per chunk.
const CHUNK_BYTES: usize = 64 * 1024;

/// The payload of a PUT.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Bytes(Bytes),
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
            Self::Form(form) => form.length,
        }
    }

    pub(super) fn content_type(&self) -> String {
        match self {
            Self::Form(form) => format!("multipart/form-data; boundary={}", form.boundary),
            Self::Bytes(_) => "application/octet-stream".to_owned(),
        }
    }

    /// The body from its start, which cannot be sent twice: only the caller repeats a PUT. The request must also carry
    /// its length.
    pub(super) fn open(&self) -> Body {
        match self {
            Self::Bytes(bytes) => Body::wrap_stream(pieces(bytes.clone())),
            Self::Form(form) => Body::wrap_stream(stream::iter(form.parts.clone()).flat_map(pieces)),
        }
    }
}

/// Pieces of a buffer that share its memory.
fn pieces(bytes: Bytes) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let starts = (0..bytes.len()).step_by(CHUNK_BYTES);
    stream::iter(starts.map(move |start| Ok(bytes.slice(start..bytes.len().min(start + CHUNK_BYTES)))))
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
}
