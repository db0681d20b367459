//! A server for the tests of downloads, which can cut its answers.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

#[derive(Clone)]
pub(crate) struct Request {
    /// Method and path.
    pub(crate) line: String,
    /// The first byte of the range that it asks for.
    pub(crate) from: Option<usize>,
    pub(crate) authorization: String,
}

#[derive(Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Headers, each with its line end.
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
    /// The stated length, if it is to be wrong.
    pub(crate) length: Option<usize>,
    /// The connection is cut after this many bytes of the body.
    pub(crate) cut: Option<usize>,
}

impl Answer {
    pub(crate) fn of(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// The part of a file from this byte on, or the whole.
    pub(crate) fn part(content: &[u8], from: Option<usize>) -> Self {
        let Some(from) = from else { return Self { body: content.to_vec(), ..Self::of(200) } };
        let Some(body) = content.get(from..).filter(|body| !body.is_empty()) else { return Self::of(416) };
        let length = content.len();
        let headers = format!("content-range: bytes {from}-{}/{length}\r\n", length - 1);
        Self { headers, body: body.to_vec(), ..Self::of(206) }
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(mut answer: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let Some(line) = head.first() else { continue };
                let header = |name: &str| {
                    let value = head.iter().find_map(|line| {
                        let (found, value) = line.split_once(": ")?;
                        found.eq_ignore_ascii_case(name).then(|| value.to_owned())
                    });
                    value.unwrap_or_default()
                };
                let range = header("range");
                let request = Request {
                    line: line.trim_end_matches(" HTTP/1.1").to_owned(),
                    from: range.trim_start_matches("bytes=").trim_end_matches('-').parse().ok(),
                    authorization: header("authorization"),
                };
                let Answer { status, headers, body, length, cut } = answer(&request);
                log.lock().unwrap().push(request);
                let length = length.unwrap_or(body.len());
                let sent = &body[..cut.unwrap_or(body.len()).min(body.len())];
                // A client that has read enough may have disconnected.
                let _ = write!(
                    &stream,
                    "HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
                );
                let _ = (&stream).write_all(sent);
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}
