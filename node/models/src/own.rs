//! Model files outside the catalogue, from this machine or from a hub, with a record of each one's origin and
//! hash.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    HASH_STEP_BYTES, MAX_MODEL_BYTES, ModelError, PullProgress, WeightsHash, hash_of, is_plain_name,
    pull::{WORK_FOLDER, WorkFolder, install, io_error, remove_files, resume::part_file},
    record,
};

/// Extension of these files.
const ENDING: &str = ".gguf";

/// Checks that a file is a usable model; the error is the reason.
pub type Check<'a> = &'a dyn Fn(&Path) -> Result<(), String>;

/// Origin of a model file outside the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// A path on this machine, or the hub's name of the file.
    pub source: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

impl Origin {
    /// The expected hash, if the record is valid.
    #[must_use]
    pub fn hash(&self) -> Option<WeightsHash> {
        WeightsHash::parse_hex(&self.sha256).ok()
    }
}

/// A file that was added to the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedFile {
    /// Its path in the folder.
    pub path: PathBuf,
    /// Its hash.
    pub sha256: WeightsHash,
    /// Whether it is a hard link to the source file.
    pub linked: bool,
}

/// A model name derived from a file name.
#[must_use]
pub fn name_of(file: &Path) -> Option<String> {
    let stem = file.file_stem()?.to_str()?;
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+') { c } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    is_plain_name(&name).then_some(name)
}

/// Path of a model outside the catalogue, whether or not it exists.
pub(crate) fn file_of(name: &str, directory: &Path) -> Result<PathBuf, ModelError> {
    if is_plain_name(name) {
        Ok(directory.join(format!("{name}{ENDING}")))
    } else {
        let reason = "a name is letters, digits, dots, dashes and underscores";
        Err(ModelError::Name { name: name.to_owned(), reason })
    }
}

/// The origin record of a model file.
#[must_use]
pub fn origin(path: &Path) -> Option<Origin> {
    record::read(&record::path_of(path, "origin"))
}

/// Writes the origin record of a model file.
pub(crate) fn write_origin(path: &Path, origin: &Origin) -> Result<(), ModelError> {
    let record = record::path_of(path, "origin");
    record::write(&record, origin).map_err(io_error(&record))
}

/// Path of a hub download in progress.
pub(crate) fn fetched_file(name: &str, directory: &Path) -> PathBuf {
    directory.join(WORK_FOLDER).join(format!("{name}{ENDING}"))
}

/// Bytes left here by an interrupted hub download.
#[must_use]
pub fn partial_bytes(name: &str, directory: &Path) -> u64 {
    fs::metadata(part_file(&fetched_file(name, directory))).map_or(0, |metadata| metadata.len())
}

/// Adds a file of this machine to the folder as `name`, checked and hashed.
///
/// It makes a hard link if the file system allows it, else a copy. If the same file is already there, it only
/// hashes.
///
/// # Errors
/// - [`ModelError::Unusable`] if `check` refuses the file, before any write.
/// - [`ModelError::Name`] for an invalid name, or one that another file has.
/// - [`ModelError::Io`].
pub fn add(
    source: &Path,
    name: &str,
    directory: &Path,
    check: Check<'_>,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<AddedFile, ModelError> {
    let target = file_of(name, directory)?;
    let source = fs::canonicalize(source).map_err(io_error(source))?;
    let metadata = fs::metadata(&source).map_err(io_error(&source))?;
    check_model(&source, check)?;
    if !metadata.is_file() || metadata.len() > MAX_MODEL_BYTES {
        return Err(no_model(&source, &format!("a model is a file of at most {MAX_MODEL_BYTES} bytes")));
    }
    let total = metadata.len();
    fs::create_dir_all(directory).map_err(io_error(directory))?;
    let work = WorkFolder::open(directory)?;
    if target.exists() {
        let mut hash = |path: &Path| {
            let mut report = |bytes| progress(PullProgress::Verifying { bytes, total });
            hash_of(path, &mut report).map_err(io_error(path))
        };
        let sha256 = hash(&source)?;
        return if hash(&target)? == sha256 {
            Ok(AddedFile { path: target, sha256, linked: false })
        } else {
            Err(name_conflict(name))
        };
    }
    let scratch = work.scratch()?.join("model");
    let linked = fs::hard_link(&source, &scratch).is_ok();
    let sha256 = if linked {
        let mut report = |bytes| progress(PullProgress::Verifying { bytes, total });
        hash_of(&scratch, &mut report).map_err(io_error(&scratch))?
    } else {
        copy(&source, &scratch, total, progress)?
    };
    // Checked again: the file may have changed since.
    check_model(&scratch, check)?;
    let size = fs::metadata(&scratch).map_err(io_error(&scratch))?.len();
    write_origin(
        &target,
        &Origin { source: source.display().to_string(), sha256: sha256.to_string(), size },
    )?;
    if linked {
        // A hard link shares the source's owner and permissions.
        fs::rename(&scratch, &target).map_err(io_error(&target))?;
    } else {
        install(File::open(&scratch).map_err(io_error(&scratch))?, &scratch, &target, directory)?;
    }
    Ok(AddedFile { path: target, sha256, linked })
}

/// The error of a name that another model has.
pub(crate) fn name_conflict(name: &str) -> ModelError {
    let reason = "another file has it; choose one with --name, or delete that file first";
    ModelError::Name { name: name.to_owned(), reason }
}

pub(crate) fn check_model(path: &Path, check: Check<'_>) -> Result<(), ModelError> {
    check(path).map_err(|reason| no_model(path, &reason))
}

fn no_model(file: &Path, reason: &str) -> ModelError {
    ModelError::Unusable(format!("{} is no model that can be used: {reason}", file.display()))
}

/// Copies and hashes in one pass. It copies at most the file's size at the start.
fn copy(
    source: &Path,
    target: &Path,
    total: u64,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<WeightsHash, ModelError> {
    let mut input = File::open(source).map_err(io_error(source))?.take(total);
    let mut output = File::create(target).map_err(io_error(target))?;
    let (mut hasher, mut done) = (Sha256::new(), 0);
    let mut buffer = vec![0; HASH_STEP_BYTES];
    loop {
        let count = input.read(&mut buffer).map_err(io_error(source))?;
        if count == 0 {
            return Ok(WeightsHash(hasher.finalize().into()));
        }
        hasher.update(&buffer[..count]);
        output.write_all(&buffer[..count]).map_err(io_error(target))?;
        done += count as u64;
        progress(PullProgress::Unpacking { bytes: done, total });
    }
}

/// Removes a model outside the catalogue, its record and its partial download. Returns whether anything
/// existed.
///
/// # Errors
/// [`ModelError::Name`] or [`ModelError::Io`].
pub fn remove(name: &str, directory: &Path) -> Result<bool, ModelError> {
    let path = file_of(name, directory)?;
    let fetched = fetched_file(name, directory);
    remove_files(directory, [part_file(&fetched), fetched, record::path_of(&path, "origin"), path])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(_: &Path) -> Result<(), String> {
        Ok(())
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn adds_a_file_with_its_hash_and_origin_and_removes_it() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("My model.gguf"), root.path().join("models"));
        fs::write(&source, "abc").unwrap();
        let name = name_of(&source).unwrap();
        assert_eq!(name, "My-model");
        let mut steps = Vec::new();
        let added = add(&source, &name, &folder, &sound, &mut |step| steps.push(step)).unwrap();
        assert_eq!(
            added.sha256.to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(steps.last(), Some(&PullProgress::Verifying { bytes: 3, total: 3 }));
        assert!(added.linked && fs::read(&added.path).unwrap() == b"abc");
        let origin = origin(&added.path).unwrap();
        assert_eq!((origin.hash(), origin.size), (Some(added.sha256), 3));
        assert_eq!(files(&folder), ["My-model.gguf", "My-model.gguf.origin.json"]);
        // The same file again is no error; another file under that name is.
        assert_eq!(add(&source, &name, &folder, &sound, &mut |_| {}).unwrap().sha256, added.sha256);
        let other = root.path().join("other.gguf");
        fs::write(&other, "xyz").unwrap();
        let refused = add(&other, &name, &folder, &sound, &mut |_| {}).unwrap_err();
        assert!(refused.to_string().contains("another file has it"), "{refused}");
        assert_eq!(fs::read(&added.path).unwrap(), b"abc");
        assert!(remove(&name, &folder).unwrap());
        assert!(!remove(&name, &folder).unwrap() && files(&folder).is_empty());
        assert!(source.exists());
    }

    #[test]
    fn copies_where_it_cannot_link_and_hashes_the_copied_bytes() {
        let root = tempfile::tempdir().unwrap();
        let (source, target) = (root.path().join("a"), root.path().join("b"));
        let content: Vec<u8> = (0..3_000_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        fs::write(&source, &content).unwrap();
        let mut last = None;
        let hash = copy(&source, &target, content.len() as u64, &mut |step| last = Some(step)).unwrap();
        assert_eq!(hash, WeightsHash(Sha256::digest(&content).into()));
        assert_eq!(fs::read(&target).unwrap(), content);
        assert_eq!(last, Some(PullProgress::Unpacking { bytes: 3_000_000, total: 3_000_000 }));
    }

    #[test]
    fn refuses_non_models_and_unsafe_names_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("m.gguf"), root.path().join("models"));
        fs::write(&source, "abc").unwrap();
        let bad = |_: &Path| Err("this is not a GGUF file".to_owned());
        let refused = add(&source, "m", &folder, &bad, &mut |_| panic!("nothing is hashed")).unwrap_err();
        assert!(refused.to_string().contains("is no model"), "{refused}");
        for name in ["", "../m", "a/b", ".m", "-m", "a b", "m\0"] {
            let refused = add(&source, name, &folder, &sound, &mut |_| {}).unwrap_err();
            assert!(matches!(refused, ModelError::Name { .. }), "{name:?}: {refused}");
            assert!(matches!(remove(name, &folder), Err(ModelError::Name { .. })), "{name:?}");
        }
        let missing = add(&root.path().join("none"), "m", &folder, &sound, &mut |_| {});
        assert!(matches!(missing, Err(ModelError::Io { .. })));
        assert!(!folder.exists());
        // A file that is replaced between the two checks.
        let second = std::cell::Cell::new(false);
        let changing = |_: &Path| if second.replace(true) { Err("changed".to_owned()) } else { Ok(()) };
        assert!(add(&source, "m", &folder, &changing, &mut |_| {}).is_err());
        assert_eq!(files(&folder), [""; 0]);
    }
}
