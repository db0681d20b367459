//! The relayer's configuration: flags, environment, TOML file and defaults, in this precedence.
//!
//! All three share one list of options, [`Options`]: a key of the file is a flag's name with underscores.
//! This module neither binds a port nor writes a file.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path, PathBuf};

pub(crate) use baton_kit::config::CONFIG_FILE;
pub(crate) use baton_kit::config::ConfigError;
use baton_kit::config::{self, ConfigReport, OptionTable as _};
use baton_mesh::Multiaddr;

pub(crate) use options::Options;
pub(crate) use values::EmbedderSetting;
pub(crate) use values::HttpSetting;
pub(crate) use values::RolesSetting;

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
    /// How it distinguishes queries from documents, with both values.
    pub roles: Option<(RolesSetting, String, String)>,
}

/// Walrus-compatible stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalrusSettings {
    /// Base URLs to write to, at least one.
    pub publishers: Vec<String>,
    /// Base URLs to read from, at least one.
    pub aggregators: Vec<String>,
    /// File with the publishers' bearer token.
    pub token_file: Option<PathBuf>,
    /// File with the secret for making tokens.
    pub secret_file: Option<PathBuf>,
    /// Shards of the network.
    pub shards: u16,
    /// Epochs to buy.
    pub epochs: u32,
    /// Address of the head index.
    pub heads: Option<String>,
}

/// The complete, validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Folder of keys, database and models.
    pub data_dir: PathBuf,
    /// The options that lead to these settings.
    pub options: Options,
    /// Address of the HTTP server.
    pub http: HttpSetting,
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
    /// Whether a signed request must name this relayer.
    pub require_audience: bool,
    /// File with the URL of a Postgres database; `None` for the embedded database.
    pub postgres_url_file: Option<PathBuf>,
    /// Folder of the owners' keys.
    pub keys_dir: PathBuf,
    /// The kind of embedder.
    pub embedder: EmbedderSetting,
    /// Its endpoint, if it has one.
    pub embedder_endpoint: Option<EmbedderEndpoint>,
    /// Folder of pulled models.
    pub model_dir: PathBuf,
    /// The language model, if there is one.
    pub model: Option<ModelSettings>,
    /// The language model to use on nodes; `None` to use no nodes.
    pub through_nodes: Option<String>,
    /// Shards of the storage network.
    pub shards: u16,
    /// Stores of contents; `None` keeps them here alone.
    pub walrus: Option<WalrusSettings>,
    /// Addresses to listen on for sealed turns.
    pub listen: Vec<Multiaddr>,
    /// Nodes to know from the start.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to find nodes on the local network.
    pub mdns: bool,
    /// Whether test engines may serve conversations.
    pub allow_echo: bool,
    /// Seconds that running turns have to finish.
    pub drain_seconds: u32,
}

impl Settings {
    /// Completes `flags` (flags and environment) with the file and the defaults. A named file must exist.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn load(data_dir: &Path, config: Option<&Path>, flags: Options) -> Result<Self, ConfigError> {
        let (path, text) = read_file(data_dir, config)?;
        Self::resolve(data_dir, flags.or(config::examine(&path, &text).into_options()?))
    }

    /// Every problem of the options, each with its line where the file has it. Empty if [`Settings::load`]
    /// succeeds.
    #[must_use]
    pub(crate) fn examine(data_dir: &Path, config: Option<&Path>, flags: Options) -> Vec<ConfigError> {
        let (path, text) = match read_file(data_dir, config) {
            Ok(read) => read,
            Err(error) => return vec![error],
        };
        let ConfigReport { options, mut problems, .. } = config::examine::<Options>(&path, &text);
        problems.extend(Self::conflicts(&flags.or(options).or(Options::defaults())));
        problems
    }
}

fn read_file(data_dir: &Path, config: Option<&Path>) -> Result<(PathBuf, String), ConfigError> {
    let path = config.map_or_else(|| data_dir.join(CONFIG_FILE), Path::to_owned);
    let text = config::read_text(&path, config.is_some())?;
    Ok((path, text.unwrap_or_default()))
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
