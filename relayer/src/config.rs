//! The relayer's configuration: flags, environment, TOML file and defaults, in this precedence.
//!
//! All three share one list of options, [`Options`]: a key of the file is a flag's name with underscores.
//! This module neither binds a port nor writes a file.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod values;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

pub(crate) use baton_kit::config::CONFIG_FILE;
pub(crate) use baton_kit::config::ConfigError;
use baton_kit::config::{self, ConfigReport};
use baton_models::embed::Roles;

pub(crate) use options::Options;
pub(crate) use values::EmbedderSetting;

use crate::{
    budgets::BudgetLimits,
    http::{ClientAddresses, Limits},
    owners::OwnerPolicy,
};

/// A language model at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    /// Base URL.
    pub url: String,
    /// Its name at the endpoint.
    pub model: String,
    /// File with the key.
    pub key_file: Option<PathBuf>,
}

/// An embedding endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmbedderEndpoint {
    /// Base URL, model and key.
    pub endpoint: ModelSettings,
    /// Length of its vectors.
    pub dimensions: u32,
    /// How it distinguishes queries from documents.
    pub roles: Roles,
}

/// The complete, validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Folder of keys, database and models.
    pub data_dir: PathBuf,
    /// The options as they were given.
    pub given: Options,
    /// All options, with the defaults.
    pub options: Options,
    /// Address of the HTTP server.
    pub http: SocketAddr,
    /// URL under which clients reach it.
    pub public_url: Option<String>,
    /// Limits of requests.
    pub limits: Limits,
    /// How the address of an HTTP client is known.
    pub addresses: ClientAddresses,
    /// Who may be an owner.
    pub owners: OwnerPolicy,
    /// Budgets of all owners together.
    pub budgets: BudgetLimits,
    /// Folder of the owners' keys.
    pub keys_dir: PathBuf,
    /// The embedding endpoint, if the embedder is one.
    pub embedder_endpoint: Option<EmbedderEndpoint>,
    /// Folder of pulled models.
    pub model_dir: PathBuf,
    /// The language model, if there is one.
    pub model: Option<ModelSettings>,
    /// Whether contents go to Walrus-compatible stores, too.
    pub has_stores: bool,
}

impl Settings {
    /// Completes `flags` (flags and environment) with the file and the defaults.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn load(data_dir: &Path, flags: Options) -> Result<Self, ConfigError> {
        Self::resolve(data_dir, flags.or(read_file(data_dir)?.into_options()?))
    }

    /// The problems of the options, each with its line where the file has it, and the first contradiction. Empty if
    /// [`Settings::load`] succeeds.
    #[must_use]
    pub(crate) fn examine(data_dir: &Path, flags: Options) -> Vec<ConfigError> {
        match read_file(data_dir) {
            Err(error) => vec![error],
            Ok(ConfigReport { options, mut problems, .. }) => {
                problems.extend(Self::resolve(data_dir, flags.or(options)).err());
                problems
            }
        }
    }
}

fn read_file(data_dir: &Path) -> Result<ConfigReport<Options>, ConfigError> {
    let path = data_dir.join(CONFIG_FILE);
    let text = config::read_text(&path, false)?;
    Ok(config::examine(&path, &text.unwrap_or_default()))
}

/// A file with every option as a comment with its default.
pub(crate) fn commented_file() -> String {
    config::commented_file::<Options>(
        "# Configuration of baton-relayer. Lines that begin with # are the defaults.\n\
         # Flags (--max-owners 100) and environment variables (BATON_RELAYER_MAX_OWNERS=100) go before this file.\n",
        "",
        &[],
    )
}
