//! The language models that a node can fetch or is given, and the folder they are kept in. How they are fetched is
//! `baton-fetch`'s.

mod shape;

use std::{ops::Deref, path::Path};

pub use baton_fetch::{
    Added, CatalogueEntry, HubFile, ModelError, ModelStatus, Origin, Part, PullProgress, Terms, Verified,
    WeightsHash, add as add_file, hash_of, name_of, origin, partial_bytes, remove as remove_own,
};
pub use shape::{Shape, ShapeError};

/// The catalogue that comes with the program.
pub const BUILT_IN_CATALOGUE: &str = include_str!("../models.toml");

/// The model that a node serves unless configured otherwise.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// The hub that files are fetched from by name unless another is given.
pub const DEFAULT_HUB: &str = "https://huggingface.co";

/// Says what is wrong with a file that is to become a model, if anything is: its header is read, nothing more.
///
/// # Errors
/// The reason, in words.
pub fn check_file(path: &Path) -> Result<(), String> {
    Shape::read(path).map(|_| ()).map_err(|error| error.to_string())
}

/// Refuses the names of the catalogue's models and files for those of the operator's own: a name means one model.
///
/// # Errors
/// [`ModelError::Name`].
pub fn refuse_reserved(name: &str) -> Result<(), ModelError> {
    let file = format!("{name}.gguf");
    let catalogue = Catalogue::built_in();
    let listed = catalogue.entries().iter().any(|entry| entry.name == name || entry.file == file);
    if listed || name == baton_embed::models::ALL_MINILM_L6_V2.name {
        let reason = "a model of the catalogue has it; choose another with --name";
        return Err(ModelError::Name { name: name.to_owned(), reason });
    }
    Ok(())
}

/// The models that can be fetched. What it can do, [`baton_fetch::Catalogue`] does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue(baton_fetch::Catalogue);

impl Catalogue {
    /// The catalogue that comes with the program.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN_CATALOGUE).expect("the embedded catalogue is tested")
    }

    /// Reads a catalogue in the form of `models.toml`.
    ///
    /// # Errors
    /// [`ModelError::Catalogue`] on anything that is not sound.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        baton_fetch::Catalogue::parse(text).map(Self)
    }
}

impl Deref for Catalogue {
    type Target = baton_fetch::Catalogue;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_catalogue_are_not_given_to_other_files() {
        for name in [DEFAULT_MODEL, "gemma3-270m", "SmolLM2-135M-Instruct.Q4_1", "all-minilm-l6-v2"] {
            assert!(matches!(refuse_reserved(name), Err(ModelError::Name { .. })), "{name}");
        }
        assert!(refuse_reserved("mine").is_ok());
    }
}
