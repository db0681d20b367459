//! The node's language models, fetched or added by the operator, and their folder. `baton-models` does the
//! fetching.

mod shape;

use std::{
    ops::Deref,
    path::{Path, PathBuf},
};

pub use baton_models::ModelError;
pub(crate) use baton_models::{
    AddedFile, HubFile, ModelStatus, PullProgress, Terms, WeightsHash, add as add_file, name_of, origin,
};
pub use shape::Shape;

use crate::engine::native;

/// The catalogue built into the program.
pub const BUILT_IN_CATALOGUE: &str = include_str!("../models.toml");

/// The default model of a node.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// The default hub for fetching files by name.
pub(crate) const DEFAULT_HUB: &str = "https://huggingface.co";

/// Checks that a node can serve a model file: its header, tensors, tokenizer and chat template. Does not load the
/// weights.
///
/// # Errors
/// The reason, in words.
pub(crate) fn check_file(path: &Path) -> Result<(), String> {
    Shape::read(path).map_err(|error| error.to_string())?;
    native::check(path).map_err(|error| {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    })
}

/// The chat template for a model file of the catalogue whose own one misleads the model.
pub(crate) fn template_of(path: &Path) -> Option<&'static str> {
    let file = path.file_name()?.to_str()?;
    let catalogue = Catalogue::built_in();
    let entry = catalogue.entries().iter().find(|entry| entry.file == file)?;
    entry.name.starts_with("qwen2.5-coder-").then_some(include_str!("../templates/qwen2.5-coder.jinja"))
}

/// Refuses an operator's model name if it is the name or file of a catalogue model: a name must mean one
/// model.
///
/// # Errors
/// [`ModelError::Name`].
pub(crate) fn refuse_reserved(name: &str) -> Result<(), ModelError> {
    let file = format!("{name}.gguf");
    let catalogue = Catalogue::built_in();
    let listed = catalogue.entries().iter().any(|entry| entry.name == name || entry.file == file);
    if listed || name == baton_models::embed::models::ALL_MINILM_L6_V2.name {
        let reason = "a model of the catalogue has it; choose another with --name";
        return Err(ModelError::Name { name: name.to_owned(), reason });
    }
    Ok(())
}

/// The operator's own model file of this name in the model folder, if there is one: `NAME.gguf`.
pub(crate) fn own_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let path = folder.join(format!("{name}.gguf"));
    (!name.contains(['/', '\\']) && path.is_file()).then_some(path)
}

/// The models that can be fetched; a wrapper of [`baton_models::Catalogue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue(baton_models::Catalogue);

impl Catalogue {
    /// The built-in catalogue.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN_CATALOGUE).expect("the embedded catalogue is tested")
    }

    /// Parses a catalogue in the format of `models.toml`.
    ///
    /// # Errors
    /// [`ModelError::Unusable`] for an invalid catalogue.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        baton_models::Catalogue::parse(text).map(Self)
    }
}

impl Deref for Catalogue {
    type Target = baton_models::Catalogue;

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
