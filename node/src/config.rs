//! The configuration of the node: flags, environment, TOML file and defaults, in this precedence.
//!
//! Owned by `main` and the commands. Nothing here binds a port or writes a file. No other module reads
//! options from the environment; `NO_COLOR` and `RAYON_NUM_THREADS` are not options. `options` is the one
//! list of options. Flags, help, defaults, the commented file of `init`, the checks of a file and the values
//! in force all derive from it.

mod options;
mod running;
#[cfg(test)]
mod tests;
mod values;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    ops::Deref,
    path::{Path, PathBuf},
};

pub(crate) use baton_kit::config::{CONFIG_FILE, ConfigError};
use baton_kit::{
    config::{self, ConfigReport, OptionTable as _, OptionValue, Origins, Value},
    folders::user_path,
};
use baton_mesh::MeshLimits;

use crate::journal::JournalLimits;

pub use options::RunFlags;
pub(crate) use running::parse_running;
pub(crate) use values::{EngineChoice, LogFormat, LogLevel, parse_store_url};

/// An option that `none` switches off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OptionalSetting<T> {
    /// Off.
    #[default]
    Off,
    /// This value.
    At(T),
}

/// The loopback address of the admin port.
pub(crate) type AdminSetting = OptionalSetting<SocketAddr>;

/// The base URL of the head index for lookups of session heads. Without it, every turn must name the location of its
/// history.
pub(crate) type HeadsSetting = OptionalSetting<String>;

/// The settings of `run`, complete and checked: each option has its value, given or by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The options with their defaults.
    pub(crate) options: RunFlags,
    /// The configuration file, if there is one.
    pub(crate) config: Option<PathBuf>,
}

impl Deref for Settings {
    type Target = RunFlags;

    fn deref(&self) -> &RunFlags {
        &self.options
    }
}

/// Embedding models: one for production, and one for tests that needs no files.
pub(crate) const EMBEDDING_MODELS: [&str; 2] =
    [baton_models::embed::models::ALL_MINILM_L6_V2.name, baton_models::embed::Hashing::ID];

impl Settings {
    /// Reads the configuration file, if there is one, and merges it and the defaults into `flags`. `flags`
    /// already contain the environment.
    ///
    /// # Errors
    /// [`ConfigError`], naming file, line, key and the allowed values.
    pub(crate) fn load(flags: RunFlags) -> Result<Self, ConfigError> {
        let (config, file) = read_file(&flags)?;
        Self::resolve(flags, file.into_options()?, config)
    }

    /// The same, plus the origin of each value. `given` holds the origins of the values in `flags`.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub(crate) fn load_with_origins(flags: RunFlags, given: Origins) -> Result<(Self, Origins), ConfigError> {
        let (config, file) = read_file(&flags)?;
        let origins = given.or(Origins::of_file(config.as_deref().unwrap_or(Path::new("")), &file.lines));
        Ok((Self::resolve(flags, file.into_options()?, config)?, origins))
    }

    /// Merges flags over the file's options over the defaults, and checks them against each other.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`].
    pub(crate) fn resolve(
        flags: RunFlags,
        file: RunFlags,
        config: Option<PathBuf>,
    ) -> Result<Self, ConfigError> {
        let settings = Self::merge(flags, file, config);
        match settings.conflicts().into_iter().next() {
            Some(conflict) => Err(conflict),
            None => Ok(settings),
        }
    }

    fn merge(flags: RunFlags, file: RunFlags, config: Option<PathBuf>) -> Self {
        let mut options = flags.or(file).or(RunFlags::defaults());
        let publishers = options.publisher();
        options.data_dir.get_or_insert_with(default_data_dir);
        options.model_dir.get_or_insert_with(default_model_dir);
        options.heads.get_or_insert(HeadsSetting::At(publishers.first().cloned().unwrap_or_default()));
        options.aggregator.get_or_insert(publishers);
        Self { options, config }
    }

    /// The limits of the mesh.
    pub(crate) fn mesh_limits(&self) -> MeshLimits {
        MeshLimits { max_connections_in: self.max_connections(), ..MeshLimits::default() }
    }

    /// Turns that may wait for a slot; further turns are refused as busy.
    pub(crate) fn queue(&self) -> u32 {
        (2 * self.slots()).max(16)
    }

    /// Bytes of cached blobs in memory.
    pub(crate) fn cache_bytes(&self) -> usize {
        (self.cache_mb() as usize).saturating_mul(1 << 20)
    }

    /// The limits of the journal.
    pub(crate) fn journal_limits(&self) -> JournalLimits {
        JournalLimits { max_blob_bytes: u64::from(self.journal_mb()) << 20, ..JournalLimits::default() }
    }

    /// All problems of a file's text. Options that the text omits have their defaults.
    #[must_use]
    pub(crate) fn examine(path: &Path, text: &str) -> Vec<ConfigError> {
        let examined = config::examine(path, text);
        let settings = Self::merge(RunFlags::default(), examined.options, None);
        examined.problems.into_iter().chain(settings.conflicts()).collect()
    }

    /// Every option with its value, in the order of the file, without secrets.
    #[must_use]
    pub(crate) fn shown(&self) -> Vec<OptionValue> {
        config::shown(&self.options)
    }

    /// The names of all models of a native engine, the main one first.
    #[must_use]
    pub(crate) fn models(&self) -> Vec<String> {
        std::iter::once(self.model()).chain(self.more_models()).collect()
    }

    /// Options that exclude or require each other.
    fn conflicts(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        let mut conflict = |text: &str| found.push(ConfigError::Conflict(text.to_owned()));
        let proxied = self.engine() == EngineChoice::Proxied;
        if proxied && (self.proxied_url.is_none() || self.proxied_model.is_none()) {
            conflict(
                "engine = \"proxied\" needs both proxied_url (the base URL of an OpenAI-compatible server, such as \
                 http://127.0.0.1:8080) and proxied_model (the model's name there)",
            );
        }
        let proxy = [&self.proxied_url, &self.proxied_model];
        if !proxied && (proxy.iter().any(|option| option.is_some()) || self.proxied_key_file.is_some()) {
            conflict("proxied_url, proxied_model and proxied_key_file need engine = \"proxied\"");
        }
        let sets_models =
            !self.more_models().is_empty() || self.model_memory_mb() > 0 || self.model_idle_minutes() > 0;
        if sets_models && self.engine() != EngineChoice::Native {
            conflict("more_models, model_memory_mb and model_idle_minutes need engine = \"native\"");
        }
        let models = self.models();
        if let Some(twice) = (1..models.len()).find(|&at| models[..at].contains(&models[at])) {
            conflict(&format!("{} is named twice by model and more_models", models[twice]));
        }
        if let Some(name) = &self.embedding_model
            && !EMBEDDING_MODELS.contains(&name.as_str())
        {
            conflict(&format!("embedding_model is one of {}, not {name}", EMBEDDING_MODELS.join(", ")));
        }
        if self.publisher_token_file.is_some() && self.publisher_secret_file.is_some() {
            conflict(
                "publisher_token_file and publisher_secret_file exclude each other: the publishers want either one \
                 token that lasts, or one made for each PUT",
            );
        }
        if self.publisher().is_empty() || self.aggregator().is_empty() {
            conflict("publisher and aggregator must each name at least one URL");
        }
        if self.listen().is_empty() {
            conflict("listen must name at least one address; a node that nobody reaches serves nobody");
        }
        if self.grants_required() && self.grant_issuers().is_empty() {
            conflict(
                "grants_required needs grant_issuers: without an issuer there is no grant, and nobody would be served",
            );
        }
        if self.context_tokens() <= self.max_output_tokens() {
            conflict("context_tokens must be greater than max_output_tokens");
        }
        found
    }
}

/// The configuration file for these flags: its path if it exists, and its contents.
fn read_file(flags: &RunFlags) -> Result<(Option<PathBuf>, ConfigReport<RunFlags>), ConfigError> {
    let (path, required) = config_path(flags);
    match read_config_text(&path, required)? {
        Some(text) => {
            let report = config::examine(&path, &text);
            Ok((Some(path), report))
        }
        None => Ok((None, ConfigReport::default())),
    }
}

/// The text of a configuration file; `None` if it is missing and not required.
///
/// # Errors
/// [`ConfigError::Read`].
pub(crate) fn read_config_text(path: &Path, required: bool) -> Result<Option<String>, ConfigError> {
    match config::read_text(path, required) {
        // If the data directory is no folder, its opening reports that.
        Err(ConfigError::Read { source, .. }) if !required && source.kind() == ErrorKind::NotADirectory => {
            Ok(None)
        }
        read => read,
    }
}

/// A file with every option as a comment with its default. Only a given data directory and the options of
/// `given` are set: a file elsewhere must name the data's location.
#[must_use]
pub(crate) fn commented_file(data_dir: Option<&Path>, given: &[(&'static str, Value)]) -> String {
    let folder = data_dir.map(|folder| ("data_dir", Value::String(folder.display().to_string())));
    let set: Vec<_> = folder.into_iter().chain(given.iter().cloned()).collect();
    config::commented_file::<RunFlags>(
        "# Configuration of baton-node. Lines that begin with # are the defaults.\n\
         # Flags (--slots 4) and environment variables (BATON_NODE_SLOTS=4) go before this file.\n",
        "Data",
        &set,
    )
}

/// The path of the configuration file, and whether the flags name it.
#[must_use]
pub(crate) fn config_path(flags: &RunFlags) -> (PathBuf, bool) {
    match &flags.config {
        Some(path) => (path.clone(), true),
        None => (flags.data_dir.clone().unwrap_or_else(default_data_dir).join(CONFIG_FILE), false),
    }
}

/// `$XDG_DATA_HOME/baton-node`, else `.local/share/baton-node` in the home directory, else `baton-node-data`
/// here.
#[must_use]
pub(crate) fn default_data_dir() -> PathBuf {
    let path = user_path("XDG_DATA_HOME", ".local/share", "baton-node");
    path.unwrap_or_else(|| "baton-node-data".into())
}

/// `$XDG_CACHE_HOME/baton/models`, else `.cache/baton/models` in the home directory, else `baton-models`
/// here. All nodes of a user share it: the files are large, and their hashes are checked.
#[must_use]
pub fn default_model_dir() -> PathBuf {
    user_path("XDG_CACHE_HOME", ".cache", "baton/models").unwrap_or_else(|| "baton-models".into())
}
