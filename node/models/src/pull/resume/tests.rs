//! Tests against a local server that cuts connections.

use std::{
    io::{BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use sha2::{Digest as _, Sha256};

use super::*;

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
struct Server {
    url: reqwest::Url,
    /// The range of each request; empty if it had none.
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(content: &[u8], answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a/file.whl", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let (content, answers, log) = (content.to_vec(), answers.to_vec(), ranges.clone());
        // Ends with the test's process.
        thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let answer = answers[index.min(answers.len() - 1)];
                log.lock().unwrap().push(serve(stream.unwrap(), &content, answer));
            }
        });
        Self { url: reqwest::Url::parse(&url).unwrap(), ranges }
    }

    fn remote(&self, content: &[u8]) -> RemoteFile {
        let sha256 = WeightsHash(Sha256::digest(content).into());
        RemoteFile { url: self.url.clone(), sha256, roots: Vec::new() }
    }

    fn ranges(&self) -> Vec<String> {
        self.ranges.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, content: &[u8], answer: Answer) -> String {
    let mut range = String::new();
    for line in BufReader::new(&stream).lines() {
        let line = line.unwrap().to_lowercase();
        if let Some(value) = line.strip_prefix("range: bytes=") {
            range = value.to_owned();
        }
        if line.is_empty() {
            break;
        }
    }
    let begin = range.strip_suffix('-').and_then(|begin| begin.parse::<usize>().ok());
    let begin = begin.filter(|_| !matches!(answer, Answer::IgnoreRange));
    let mut out = &stream;
    let status = match (answer, begin) {
        (Answer::Status(code), _) => {
            write!(out, "HTTP/1.1 {code} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            return range;
        }
        (_, Some(begin)) if begin >= content.len() => {
            write!(out, "HTTP/1.1 416 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            return range;
        }
        (_, Some(begin)) => {
            let last = content.len() - 1;
            format!("206 Partial Content\r\ncontent-range: bytes {begin}-{last}/{}", content.len())
        }
        (_, None) => "200 OK".to_owned(),
    };
    let body = &content[begin.unwrap_or(0)..];
    write!(out, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len()).unwrap();
    let sent = if let Answer::Cut(bytes) = answer { &body[..bytes.min(body.len())] } else { body };
    // The client may have disconnected after it found the file too large.
    let _ = out.write_all(sent);
    range
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
    let server = Server::start(&content, &[Answer::Cut(150_000), Answer::Cut(100_000), Answer::Whole]);
    let mut steps = Vec::new();
    fetch(&server.remote(&content), &folder.target(), LIMIT, FEW_RETRIES, &mut |bytes, total| {
        steps.push((bytes, total));
    })
    .unwrap();
    assert_eq!(fs::read(folder.target()).unwrap(), content);
    assert!(!part_file(&folder.target()).exists());
    assert_eq!(server.ranges(), ["", "150000-", "250000-"]);
    assert!(steps.iter().all(|(bytes, total)| *bytes <= 400_000 && *total == Some(400_000)), "{steps:?}");
    assert_eq!(steps.last(), Some(&(400_000, Some(400_000))));
    // The file is there and correct, so there is no further request.
    folder.fetch(&server.remote(&content)).unwrap();
    assert_eq!(server.ranges().len(), 3);
}

#[test]
fn a_later_call_resumes_an_interrupted_one() {
    let (content, folder) = (content(), Folder::new());
    let down = Server::start(&content, &[Answer::Cut(123_456), Answer::Status(503)]);
    match folder.fetch(&down.remote(&content)) {
        Err(FetchError::Interrupted { bytes: 123_456, reason }) => {
            assert!(reason.contains("503"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert!(!folder.target().exists());
    let up = Server::start(&content, &[Answer::Whole]);
    folder.fetch(&up.remote(&content)).unwrap();
    assert_eq!(fs::read(folder.target()).unwrap(), content);
    assert_eq!(up.ranges(), ["123456-"]);
}

#[test]
fn restarts_without_ranges_or_with_bytes_of_another_file() {
    let content = content();
    for (answers, left, ranges) in [
        (&[Answer::IgnoreRange][..], &content[..1000], &["1000-"][..]),
        (&[Answer::Whole], &[7; 1000], &["1000-", ""]),
        (&[Answer::Whole], &[7; 500_000], &["500000-", ""]),
        // All bytes, but not yet the final name.
        (&[Answer::Whole], &content[..], &["400000-"]),
    ] {
        let folder = Folder::new();
        fs::write(part_file(&folder.target()), left).unwrap();
        let server = Server::start(&content, answers);
        folder.fetch(&server.remote(&content)).unwrap();
        assert_eq!(fs::read(folder.target()).unwrap(), content);
        assert_eq!(server.ranges(), ranges);
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
        let server = Server::start(served, &[answer]);
        match folder.fetch(&server.remote(b"something else")) {
            Err(FetchError::Refused { reason }) => assert!(reason.contains(said), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0, "{said}");
        assert_eq!(server.ranges().len(), 1);
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
