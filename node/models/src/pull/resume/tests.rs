//! Tests against a local server that cuts connections.

use std::net::TcpListener;

use sha2::{Digest as _, Sha256};

use super::*;
use crate::tests::{Answer as Reply, Server};

/// Gives up at the second failure, without a pause.
const FEW_RETRIES: RetryPolicy = RetryPolicy { tries: 2, pause: Duration::ZERO };
const LIMIT: u64 = 1 << 20;

/// The server's response to one request.
#[derive(Clone, Copy)]
enum Answer {
    /// The whole requested range.
    Whole,
    /// The connection is cut after this many bytes of the body.
    Cut(usize),
    /// The whole file, ignoring the range.
    IgnoreRange,
    /// This status, without a body.
    Status(u16),
}

/// A server of one file. It uses its responses in order; the last one repeats.
fn start(content: &[u8], answers: &[Answer]) -> Server {
    let (content, answers, mut index) = (content.to_vec(), answers.to_vec(), 0);
    Server::start(move |request| {
        let answer = answers[index.min(answers.len() - 1)];
        index += 1;
        match answer {
            Answer::Whole => Reply::part(&content, request.from),
            Answer::Cut(bytes) => Reply { cut: Some(bytes), ..Reply::part(&content, request.from) },
            Answer::IgnoreRange => Reply::part(&content, None),
            Answer::Status(status) => Reply::of(status),
        }
    })
}

fn remote(server: &Server, content: &[u8]) -> RemoteFile {
    let sha256 = WeightsHash(Sha256::digest(content).into());
    RemoteFile { url: Url::parse(&server.url).unwrap(), sha256, roots: Vec::new() }
}

/// The first byte of each request's range.
fn ranges(server: &Server) -> Vec<Option<usize>> {
    server.requests().iter().map(|request| request.from).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn target(&self) -> PathBuf {
        self.0.path().join("file.whl")
    }

    fn fetch(&self, remote: &RemoteFile) -> Result<(), FetchError> {
        fetch(remote, &self.target(), LIMIT, FEW_RETRIES, &mut |_, _| {})
    }
}

fn content() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn resumes_after_each_cut_and_requests_only_the_rest() {
    let (content, folder) = (content(), Folder::new());
    let server = start(&content, &[Answer::Cut(150_000), Answer::Cut(100_000), Answer::Whole]);
    let mut steps = Vec::new();
    fetch(&remote(&server, &content), &folder.target(), LIMIT, FEW_RETRIES, &mut |bytes, total| {
        steps.push((bytes, total));
    })
    .unwrap();
    assert_eq!(fs::read(folder.target()).unwrap(), content);
    assert!(!part_file(&folder.target()).exists());
    assert_eq!(ranges(&server), [None, Some(150_000), Some(250_000)]);
    assert!(steps.iter().all(|(bytes, total)| *bytes <= 400_000 && *total == Some(400_000)), "{steps:?}");
    assert_eq!(steps.last(), Some(&(400_000, Some(400_000))));
    // The file is there and correct, so there is no further request.
    folder.fetch(&remote(&server, &content)).unwrap();
    assert_eq!(ranges(&server).len(), 3);
}

#[test]
fn a_later_call_resumes_an_interrupted_one() {
    let (content, folder) = (content(), Folder::new());
    let down = start(&content, &[Answer::Cut(123_456), Answer::Status(503)]);
    match folder.fetch(&remote(&down, &content)) {
        Err(FetchError::Interrupted { bytes: 123_456, reason }) => {
            assert!(reason.contains("503"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert!(!folder.target().exists());
    let up = start(&content, &[Answer::Whole]);
    folder.fetch(&remote(&up, &content)).unwrap();
    assert_eq!(fs::read(folder.target()).unwrap(), content);
    assert_eq!(ranges(&up), [Some(123_456)]);
}

#[test]
fn restarts_without_ranges_or_with_bytes_of_another_file() {
    let content = content();
    for (answers, left, ranges) in [
        (&[Answer::IgnoreRange][..], &content[..1000], &[Some(1000)][..]),
        (&[Answer::Whole], &[7; 1000], &[Some(1000), None]),
        (&[Answer::Whole], &[7; 500_000], &[Some(500_000), None]),
        // All bytes, but not yet the final name.
        (&[Answer::Whole], &content[..], &[Some(400_000)]),
    ] {
        let folder = Folder::new();
        fs::write(part_file(&folder.target()), left).unwrap();
        let server = start(&content, answers);
        folder.fetch(&remote(&server, &content)).unwrap();
        assert_eq!(fs::read(folder.target()).unwrap(), content);
        assert_eq!(self::ranges(&server), ranges);
    }
}

#[test]
fn refuses_wrong_hashes_refusals_and_large_files_and_leaves_none() {
    let content = content();
    let large = vec![1; usize::try_from(LIMIT).unwrap() + 1];
    for (served, answer, said) in [
        (&content[..], Answer::Whole, "another hash"),
        (&content, Answer::Status(401), "401"),
        (&content, Answer::Status(404), "404"),
        (&large, Answer::Whole, "larger than"),
    ] {
        let folder = Folder::new();
        let server = start(served, &[answer]);
        match folder.fetch(&remote(&server, b"something else")) {
            Err(FetchError::Refused(reason)) => assert!(reason.contains(said), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0, "{said}");
        assert_eq!(ranges(&server).len(), 1);
    }
}

#[test]
fn an_absent_server_is_reported_as_an_interruption() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = reqwest::Url::parse(&format!("http://{}/x", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let remote = RemoteFile { url, sha256: WeightsHash([0; 32]), roots: Vec::new() };
    let refused = folder.fetch(&remote);
    assert!(matches!(refused, Err(FetchError::Interrupted { bytes: 0, .. })), "{refused:?}");
}
