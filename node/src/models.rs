//! The language models that a node can fetch, and the folder they are kept in. How they are fetched is `baton-fetch`'s.

use std::ops::Deref;

pub use baton_fetch::{
    CatalogueEntry, ModelError, ModelStatus, Part, PullProgress, Verified, WeightsHash, hash_of,
};

/// The catalogue that comes with the program.
pub const BUILT_IN_CATALOGUE: &str = include_str!("../models.toml");

/// The model that a node serves unless configured otherwise.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

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
