//! Tests against a local hub: a resolver that redirects to the bytes, as the real one does.

use std::{net::TcpListener, path::PathBuf};

use sha2::{Digest as _, Sha256};

use super::*;
use crate::tests::{Answer, Request, Server};

const COMMIT_ID: &str = "0123456789abcdef0123456789abcdef01234567";
const FEW_RETRIES: RetryPolicy = RetryPolicy { tries: 1, pause: Duration::ZERO };

/// The hub's behaviour.
#[derive(Clone)]
struct Manner {
    /// Status of its response to the HEAD request.
    status: u16,
    /// Additional headers of that response.
    headers: String,
    /// The content that the download URL serves.
    content: Vec<u8>,
    /// The first download is cut after this many bytes.
    cut: Option<usize>,
    /// The stated length, if it is to be wrong.
    length: Option<usize>,
}

impl Manner {
    /// A hub that behaves correctly.
    fn good(content: &[u8]) -> Self {
        let hash = WeightsHash(Sha256::digest(content).into());
        let headers = format!(
            "x-repo-commit: {COMMIT_ID}\r\nx-linked-etag: \"{hash}\"\r\nx-linked-size: {}\r\n",
            content.len()
        );
        Self { status: 302, headers, content: content.to_vec(), cut: None, length: None }
    }
}

fn start(mut manner: Manner) -> Server {
    Server::start(move |request| {
        let path = request.line.split(' ').nth(1).unwrap();
        let redirect = |status, headers: &str, location: &str| {
            let headers = format!("{headers}location: {location}\r\n");
            Answer { headers, ..Answer::of(status) }
        };
        if path.starts_with("/old/") {
            redirect(307, "", &path.replacen("/old/", "/owner/", 1))
        } else if path.starts_with("/loop/") {
            redirect(307, "", "/loop/again")
        } else if path.contains("/resolve/") {
            redirect(manner.status, &manner.headers, "/bytes")
        } else {
            let (length, cut) = (manner.length, manner.cut.take());
            Answer { length, cut, ..Answer::part(&manner.content, request.from) }
        }
    })
}

/// Request line and range of each request.
fn requests(hub: &Server) -> Vec<String> {
    let shown = |request: Request| match request.from {
        Some(from) => format!("{} from {from}", request.line),
        None => request.line,
    };
    hub.requests().into_iter().map(shown).collect()
}

fn content() -> Vec<u8> {
    (0..50_000u32).flat_map(u32::to_le_bytes).collect()
}

fn pull(hub: &Server, folder: &Path) -> Result<AddedFile, ModelError> {
    pull_as(&file("hf:owner/repo/sub/My_model.gguf"), hub, folder, &|_| Ok(()))
}

fn pull_as(file: &HubFile, hub: &Server, folder: &Path, check: Check<'_>) -> Result<AddedFile, ModelError> {
    file.pull_with(&hub.url, "mine", folder, check, FEW_RETRIES, &mut |_| {})
}

fn file(text: &str) -> HubFile {
    text.parse().unwrap()
}

fn left_over(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn names_are_owner_repository_file_and_revision_and_nothing_else() {
    let named = file("hf:owner/repo/sub/My_model.gguf@refs/pr/1");
    assert_eq!(named.to_string(), "hf:owner/repo/sub/My_model.gguf@refs/pr/1");
    assert_eq!(named.local_name().unwrap(), "My_model");
    assert_eq!(
        named.url("http://h/base/", &named.revision).unwrap().as_str(),
        "http://h/base/owner/repo/resolve/refs%2Fpr%2F1/sub/My_model.gguf"
    );
    assert_eq!(file("hf:o/r/m.GGUF").to_string(), "hf:o/r/m.GGUF@main");
    for text in [
        "smollm2",
        "hf:",
        "hf:o/m.gguf",
        "hf:o/r/m.safetensors",
        "hf:o/r/../m.gguf",
        "hf:o/../r/m.gguf",
        "hf:o/r//m.gguf",
        "hf:o/r/m.gguf@",
        "hf:o/r/m.gguf@../x",
        "hf:o/r/m.gguf?x=.gguf",
        "hf:o/r/m.gguf@a b",
        "hf:o@b/r/m.gguf",
        "hf:o/r/1/2/3/4/5/6/7/8/m.gguf",
    ] {
        assert!(matches!(text.parse::<HubFile>(), Err(ModelError::Name { .. })), "{text}");
    }
    for endpoint in ["", "ftp://h", "h:1", "file:///x"] {
        let refused = named.locate(endpoint).unwrap_err();
        assert!(refused.to_string().contains("no HTTP URL"), "{endpoint}: {refused}");
    }
}

#[test]
fn fetches_the_commit_of_a_revision_and_records_the_origin() {
    let (content, folder) = (content(), tempfile::tempdir().unwrap());
    let hub = start(Manner::good(&content));
    let added = pull(&hub, folder.path()).unwrap();
    assert_eq!(fs::read(&added.path).unwrap(), content);
    let origin = own::origin(&added.path).unwrap();
    assert_eq!(origin.source, format!("hf:owner/repo/sub/My_model.gguf@{COMMIT_ID}"));
    assert_eq!((origin.hash(), origin.size), (Some(added.sha256), 200_000));
    let resolve = |revision: &str| format!("/owner/repo/resolve/{revision}/sub/My_model.gguf");
    let [head, get] = [format!("HEAD {}", resolve("main")), format!("GET {}", resolve(COMMIT_ID))];
    assert_eq!(requests(&hub), [head.as_str(), &get, "GET /bytes"]);
    // The second time the file is there, and only the hub's description is requested.
    assert_eq!(pull(&hub, folder.path()).unwrap(), added);
    assert_eq!(requests(&hub).len(), 4);
    // An existing file of that name stays as it is.
    let other = start(Manner::good(b"another"));
    assert!(matches!(pull(&other, folder.path()), Err(ModelError::Name { .. })));
    assert_eq!(fs::read(&added.path).unwrap(), content);
}

#[test]
fn an_interrupted_download_is_resumed() {
    let (content, folder) = (content(), tempfile::tempdir().unwrap());
    let hub = start(Manner { cut: Some(70_000), ..Manner::good(&content) });
    // Nothing listens after the cut: a failing server uses up the single attempt.
    let failing = start(Manner { status: 503, ..Manner::good(&content) });
    let located = file("hf:owner/repo/m.gguf").locate(&hub.url).unwrap();
    let target = own::fetched_file("mine", folder.path());
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    fs::write(resume::part_file(&target), &content[..70_000]).unwrap();
    let wanted = file("hf:owner/repo/m.gguf");
    let broken = wanted.fetch(&failing.url, &located, &target, FEW_RETRIES, &mut |_| {}).unwrap_err();
    assert!(broken.to_string().contains("ended after 70000 bytes"), "{broken}");
    assert!(broken.to_string().contains("goes on from there"), "{broken}");
    assert_eq!(own::partial_bytes("mine", folder.path()), 70_000);
    // The next call resumes, also across a cut.
    let added = pull_as(&wanted, &hub, folder.path(), &|_| Ok(())).unwrap();
    assert_eq!(fs::read(&added.path).unwrap(), content);
    let ranges: Vec<_> = requests(&hub).into_iter().filter(|request| request.contains("/bytes")).collect();
    assert_eq!(ranges, ["GET /bytes from 70000", "GET /bytes from 140000"]);
    assert_eq!(own::partial_bytes("mine", folder.path()), 0);
}

#[test]
fn refuses_files_that_contradict_the_hub_and_leaves_nothing() {
    let content = content();
    let good = Manner::good(&content);
    let hash = WeightsHash(Sha256::digest(&content).into()).to_string();
    let other = "11".repeat(32);
    let swap = |from: &str, to: &str| good.headers.replace(from, to);
    for (manner, said) in [
        (Manner { headers: swap(&hash, &other), ..good.clone() }, "another hash"),
        // The content is longer than stated, shorter than stated, or too large as stated.
        (Manner { headers: swap("200000", "199999"), ..good.clone() }, "larger than"),
        (Manner { headers: swap("200000", "200001"), ..good.clone() }, "200000 bytes instead of 200001"),
        (Manner { headers: swap("200000", "99999999999999"), ..good.clone() }, "at most"),
        (Manner { headers: swap("200000", "-1"), ..good.clone() }, "at most"),
        (Manner { length: Some(1 << 40), ..good.clone() }, "larger than"),
        (Manner { headers: swap(&hash, "e3b0c442"), ..good.clone() }, "no SHA-256"),
        (Manner { headers: swap("x-linked-etag", "etag"), ..good.clone() }, "no SHA-256"),
        (Manner { headers: swap(COMMIT_ID, "../../x"), ..good.clone() }, "which commit"),
        (Manner { status: 401, ..good.clone() }, "private, gated"),
        (Manner { status: 404, ..good.clone() }, "no such repository"),
        (Manner { status: 500, ..good.clone() }, "500"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = pull(&start(manner), folder.path()).unwrap_err();
        assert!(error.to_string().contains("cannot get hf:"), "{said}: {error}");
        assert!(error.to_string().contains(said), "{said}: {error}");
        assert_eq!(left_over(folder.path()), Vec::<PathBuf>::new(), "{said}");
    }
}

#[test]
fn a_file_that_is_no_model_is_removed_and_a_renamed_repository_is_followed() {
    let (content, folder) = (content(), tempfile::tempdir().unwrap());
    let hub = start(Manner::good(&content));
    let bad = |_: &Path| Err("this is not a GGUF file".to_owned());
    let wanted = file("hf:old/repo/m.gguf");
    let error = pull_as(&wanted, &hub, folder.path(), &bad).unwrap_err();
    assert!(error.to_string().contains("is no model"), "{error}");
    assert_eq!(left_over(folder.path()), Vec::<PathBuf>::new());
    pull_as(&wanted, &hub, folder.path(), &|_| Ok(())).unwrap();
    let circle = pull_as(&file("hf:loop/repo/m.gguf"), &hub, folder.path(), &|_| Ok(())).unwrap_err();
    assert!(circle.to_string().contains("in circles"), "{circle}");
}

#[test]
fn an_absent_hub_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let error = file("hf:o/r/m.gguf").pull(&endpoint, "m", folder.path(), &|_| Ok(()), &mut |_| {});
    let said = error.unwrap_err().to_string();
    assert!(said.contains(&endpoint) && said.contains("hf:o/r/m.gguf@main"), "{said}");
    assert_eq!(left_over(folder.path()), Vec::<PathBuf>::new());
}
