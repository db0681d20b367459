//! The configuration of the node: flags, environment, TOML file and defaults, in this precedence.
//!
//! Owned by `main` and the commands. Nothing here binds a port or writes a file. No other module reads
//! options from the environment; `NO_COLOR` and `RAYON_NUM_THREADS` are not options. `options` is the one
//! list of options. Flags, help, defaults, the commented file of `init`, the checks of a file and the values
//! in force all derive from it.

mod limits;
mod options;
mod running;
#[cfg(test)]
mod tests;
mod values;

use std::{
    env,
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
};

pub(crate) use baton_kit::config::CONFIG_FILE;
pub(crate) use baton_kit::config::ConfigError;
use baton_kit::config::{self, ConfigReport, OptionTable as _, OptionValue, Origins, Value};
use baton_mesh::{Multiaddr, Networks};
use baton_proto::ids::{PublicKey, QuotaSerial};

pub(crate) use limits::ResourceLimits;
pub use options::RunFlags;
pub(crate) use running::parse_running;
pub(crate) use values::EngineChoice;
pub(crate) use values::LogFormat;
pub(crate) use values::LogLevel;
pub(crate) use values::parse_admin;
pub(crate) use values::parse_store_url;

/// The address of the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminSetting {
    /// No admin port.
    Off,
    /// This loopback address.
    At(SocketAddr),
}

/// The head index for lookups of session heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadsSetting {
    /// No index: every turn must name the location of its history.
    Off,
    /// The index at this base URL.
    At(String),
}

/// The settings of `run`, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The options that these settings come from, with their defaults.
    options: RunFlags,
    /// Folder of keys, journal and models.
    pub(crate) data_dir: PathBuf,
    /// The configuration file, if there is one.
    pub(crate) config: Option<PathBuf>,
    /// Addresses to listen on.
    pub(crate) listen: Vec<Multiaddr>,
    /// Further addresses under which peers reach this node.
    pub(crate) external: Vec<Multiaddr>,
    /// Peers to stay connected to.
    pub(crate) bootstrap: Vec<Multiaddr>,
    /// Whether to find peers on the local network.
    pub(crate) mdns: bool,
    /// Whether to take part in the DHT and in gossip.
    pub(crate) discovery: bool,
    /// Whether to test reachability, use relays and punch holes through NATs.
    pub(crate) nat: bool,
    /// Whether to request a port from the router (UPnP).
    pub(crate) upnp: bool,
    /// Whether to relay circuits for others.
    pub(crate) relay: bool,
    /// Relays for permanent reservations.
    pub(crate) relays: Vec<Multiaddr>,
    /// Proxies whose connections begin with the client's address.
    pub(crate) proxies: Networks,
    /// Base URLs for writing blobs, at least one, in order of preference.
    pub(crate) publishers: Vec<String>,
    /// Base URLs for reading blobs, at least one, in order of preference.
    pub(crate) aggregators: Vec<String>,
    /// File with the publishers' bearer token.
    pub(crate) publisher_token_file: Option<PathBuf>,
    /// File with the secret for signing a token for each PUT.
    pub(crate) publisher_secret_file: Option<PathBuf>,
    /// The head index for lookups of session heads.
    pub(crate) heads: HeadsSetting,
    /// Shards of the store's network.
    pub(crate) shards: u16,
    /// Model to serve, by its name in the catalogue.
    pub(crate) model: String,
    /// Further models to offer.
    pub(crate) more_models: Vec<String>,
    /// Megabytes for all loaded models together; 0 means no limit.
    pub(crate) model_memory_mb: u32,
    /// Minutes after which an idle model is unloaded; 0 means never.
    pub(crate) model_idle_minutes: u32,
    /// Folder of model files.
    pub(crate) model_dir: PathBuf,
    /// Embedding model to offer; `None` offers no embeddings.
    pub(crate) embedding_model: Option<String>,
    /// The kind of engine.
    pub(crate) engine: EngineChoice,
    /// Base URL of the proxied engine's server.
    pub(crate) proxied_url: Option<String>,
    /// The model's name at that server.
    pub(crate) proxied_model: Option<String>,
    /// File with that server's bearer token.
    pub(crate) proxied_key_file: Option<PathBuf>,
    /// Maximum tokens of context; the model's own limit applies too.
    pub(crate) context_tokens: u32,
    /// Maximum tokens of an answer.
    pub(crate) max_output_tokens: u32,
    /// Compute threads; `None` means one for each core.
    pub(crate) threads: Option<u32>,
    /// Megabytes for the keys and values of all turns, including cached ones.
    pub(crate) kv_mb: u32,
    /// Turns served at once.
    pub(crate) slots: u32,
    /// Turns that may wait for a slot.
    pub(crate) queue: u32,
    /// Turns a minute from one peer.
    pub(crate) turns_per_minute: u32,
    /// Turns a minute from the unknown peers of one subnet.
    pub(crate) subnet_turns_per_minute: u32,
    /// Tokens an hour for one peer; 0 means no limit.
    pub(crate) tokens_per_hour: u64,
    /// Tokens an hour for the unknown peers of one subnet; 0 means no limit.
    pub(crate) subnet_tokens_per_hour: u64,
    /// Storage units an hour for one peer; 0 means no limit.
    pub(crate) storage_per_hour: u64,
    /// Storage units an hour for the unknown peers of one subnet; 0 means no limit.
    pub(crate) subnet_storage_per_hour: u64,
    /// Storage units an hour for one grant; 0 means no limit.
    pub(crate) grant_storage_per_hour: u64,
    /// Whether misbehaviour is scored and peers are counted by subnet.
    pub(crate) defence: bool,
    /// Networks whose peers are not counted by subnet.
    pub(crate) own_networks: Networks,
    /// Keys of trusted grant issuers.
    pub(crate) grant_issuers: Vec<PublicKey>,
    /// Whether turns without a grant are refused.
    pub(crate) grants_required: bool,
    /// Revoked grants.
    pub(crate) grants_revoked: Vec<QuotaSerial>,
    /// Maximum storage time of a blob, in epochs.
    pub(crate) max_epochs: u32,
    /// The same for turns without a grant.
    pub(crate) unknown_max_epochs: u32,
    /// Limits on memory, connections and disk.
    pub(crate) resources: ResourceLimits,
    /// Price of a thousand input tokens, in millionths of the node's unit.
    pub(crate) input_price: u64,
    /// Price of a thousand output tokens, in millionths of the node's unit.
    pub(crate) output_price: u64,
    /// Price of a storage unit, in millionths of the node's unit.
    pub(crate) storage_price: u64,
    /// The address of the admin port.
    pub(crate) admin: AdminSetting,
    /// The log level.
    pub(crate) log: LogLevel,
    /// The log format.
    pub(crate) log_format: LogFormat,
    /// Whether to print events on standard output, one JSON object a line.
    pub(crate) json: bool,
    /// Seconds for running turns to finish at shutdown.
    pub(crate) drain_seconds: u32,
    /// Delay of the echo engine before each token, in milliseconds.
    pub(crate) echo_delay_ms: u32,
    /// Step of a turn at which the process pauses, for crash tests.
    pub(crate) pause_at: Option<String>,
    /// Deliberate clock error in seconds, for tests.
    pub(crate) clock_offset: i64,
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
        let publishers = options.publisher.clone().unwrap_or_default();
        let first = publishers.first().cloned().unwrap_or_default();
        options.data_dir.get_or_insert_with(default_data_dir);
        options.model_dir.get_or_insert_with(default_model_dir);
        options.aggregator.get_or_insert_with(|| publishers.clone());
        let heads = options.heads.get_or_insert(HeadsSetting::At(first)).clone();
        let chosen = options.clone();
        Self {
            options,
            model_dir: chosen.model_dir.unwrap_or_default(),
            data_dir: chosen.data_dir.unwrap_or_default(),
            config,
            listen: chosen.listen.unwrap_or_default(),
            external: chosen.external.unwrap_or_default(),
            bootstrap: chosen.bootstrap.unwrap_or_default(),
            mdns: chosen.mdns.unwrap_or_default(),
            discovery: chosen.discovery.unwrap_or_default(),
            nat: chosen.nat.unwrap_or_default(),
            upnp: chosen.upnp.unwrap_or_default(),
            relay: chosen.relay.unwrap_or_default(),
            relays: chosen.relays.unwrap_or_default(),
            proxies: chosen.proxies.unwrap_or_default().into(),
            heads,
            publishers,
            aggregators: chosen.aggregator.unwrap_or_default(),
            publisher_token_file: chosen.publisher_token_file,
            publisher_secret_file: chosen.publisher_secret_file,
            shards: chosen.shards.unwrap_or_default(),
            model: chosen.model.unwrap_or_default(),
            more_models: chosen.more_models.unwrap_or_default(),
            model_memory_mb: chosen.model_memory_mb.unwrap_or_default(),
            model_idle_minutes: chosen.model_idle_minutes.unwrap_or_default(),
            embedding_model: chosen.embedding_model,
            engine: chosen.engine.unwrap_or(EngineChoice::Native),
            proxied_url: chosen.proxied_url,
            proxied_model: chosen.proxied_model,
            proxied_key_file: chosen.proxied_key_file,
            context_tokens: chosen.context_tokens.unwrap_or_default(),
            max_output_tokens: chosen.max_output_tokens.unwrap_or_default(),
            threads: chosen.threads,
            kv_mb: chosen.kv_mb.unwrap_or_default(),
            slots: chosen.slots.unwrap_or_default(),
            queue: chosen.queue.unwrap_or_default(),
            turns_per_minute: chosen.turns_per_minute.unwrap_or_default(),
            subnet_turns_per_minute: chosen.subnet_turns_per_minute.unwrap_or_default(),
            tokens_per_hour: chosen.tokens_per_hour.unwrap_or_default(),
            subnet_tokens_per_hour: chosen.subnet_tokens_per_hour.unwrap_or_default(),
            storage_per_hour: chosen.storage_per_hour.unwrap_or_default(),
            subnet_storage_per_hour: chosen.subnet_storage_per_hour.unwrap_or_default(),
            grant_storage_per_hour: chosen.grant_storage_per_hour.unwrap_or_default(),
            defence: chosen.defence.unwrap_or_default(),
            own_networks: chosen.own_networks.unwrap_or_default().into(),
            grant_issuers: chosen.grant_issuers.unwrap_or_default(),
            grants_required: chosen.grants_required.unwrap_or_default(),
            grants_revoked: chosen.grants_revoked.unwrap_or_default(),
            max_epochs: chosen.max_epochs.unwrap_or_default(),
            unknown_max_epochs: chosen.unknown_max_epochs.unwrap_or_default(),
            resources: ResourceLimits {
                max_memory_mb: chosen.max_memory_mb,
                max_connections: chosen.max_connections.unwrap_or_default(),
                new_connections_per_second: chosen.new_connections_per_second.unwrap_or_default(),
                max_connections_per_peer: chosen.max_connections_per_peer.unwrap_or_default(),
                max_streams: chosen.max_streams.unwrap_or_default(),
                max_streams_per_peer: chosen.max_streams_per_peer.unwrap_or_default(),
                cache_mb: chosen.cache_mb.unwrap_or_default(),
                journal_mb: chosen.journal_mb.unwrap_or_default(),
            },
            input_price: chosen.input_price.unwrap_or_default(),
            output_price: chosen.output_price.unwrap_or_default(),
            storage_price: chosen.storage_price.unwrap_or_default(),
            admin: chosen.admin.unwrap_or(AdminSetting::Off),
            log: chosen.log.unwrap_or(LogLevel::Info),
            log_format: chosen.log_format.unwrap_or(LogFormat::Pretty),
            json: chosen.json.unwrap_or_default(),
            drain_seconds: chosen.drain_seconds.unwrap_or_default(),
            echo_delay_ms: chosen.echo_delay_ms.unwrap_or_default(),
            pause_at: chosen.pause_at,
            clock_offset: chosen.clock_offset.unwrap_or_default(),
        }
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
    pub(crate) fn models(&self) -> Vec<&str> {
        std::iter::once(&self.model).chain(&self.more_models).map(String::as_str).collect()
    }

    /// Options that exclude or require each other.
    fn conflicts(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        let mut conflict = |text: &str| found.push(ConfigError::Conflict(text.to_owned()));
        let proxied = self.engine == EngineChoice::Proxied;
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
            !self.more_models.is_empty() || self.model_memory_mb > 0 || self.model_idle_minutes > 0;
        if sets_models && self.engine != EngineChoice::Native {
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
        if self.publishers.is_empty() || self.aggregators.is_empty() {
            conflict("publisher and aggregator must each name at least one URL");
        }
        if self.listen.is_empty() {
            conflict("listen must name at least one address; a node that nobody reaches serves nobody");
        }
        if self.grants_required && self.grant_issuers.is_empty() {
            conflict(
                "grants_required needs grant_issuers: without an issuer there is no grant, and nobody would be served",
            );
        }
        if self.context_tokens <= self.max_output_tokens {
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
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (folder("XDG_DATA_HOME"), folder("HOME")) {
        (Some(data), _) => data.join("baton-node"),
        (None, Some(home)) => home.join(".local/share/baton-node"),
        (None, None) => Path::new("baton-node-data").to_owned(),
    }
}

/// `$XDG_CACHE_HOME/baton/models`, else `.cache/baton/models` in the home directory, else `baton-models`
/// here. All nodes of a user share it: the files are large, and their hashes are checked.
#[must_use]
pub fn default_model_dir() -> PathBuf {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (folder("XDG_CACHE_HOME"), folder("HOME")) {
        (Some(cache), _) => cache.join("baton/models"),
        (None, Some(home)) => home.join(".cache/baton/models"),
        (None, None) => Path::new("baton-models").to_owned(),
    }
}
