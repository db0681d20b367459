//! What the relayer is told at its start: flags, environment, TOML file and defaults, in this precedence.
//!
//! One list of options for all three, [`Options`]: a key of the file is a flag's name with underscores. Nothing here binds
//! a port or writes a file.

mod template;

use std::{
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use baton_memory::limits::MAX_ITEMS;
use baton_mesh::Multiaddr;
use clap::Args;
use serde::Deserialize;

use crate::http::Limits;

pub use template::TEMPLATE;

/// Name of the configuration file in the data folder.
pub const CONFIG_FILE: &str = "config.toml";
/// Largest file that is read: the commented one is some five kilobytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Where the HTTP door is by default: what the `memwal` SDK calls `local`.
pub const DEFAULT_HTTP: &str = "127.0.0.1:8000";
const DEFAULT_LISTEN: &str = "/ip4/0.0.0.0/tcp/4101";
/// Walrus's mainnet and testnet.
const DEFAULT_SHARDS: u16 = 1_000;
/// As many epochs as Walrus sells at once.
const DEFAULT_EPOCHS: u32 = 53;
const DEFAULT_DRAIN_SECONDS: u32 = 30;

/// Where HTTP is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum HttpSetting {
    /// Nowhere.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl FromStr for HttpSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| "an address like 127.0.0.1:8000, or `off`".to_owned())
    }
}

impl TryFrom<String> for HttpSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

macro_rules! named_setting {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub enum $name { $($(#[$vmeta])* $variant),* }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(format!("one of {}", [$($text),*].join(", "))),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

named_setting! {
    /// Where sealed records lie.
    StorageSetting {
        /// In the data folder, for one relayer.
        Embedded = "embedded",
        /// In a Postgres database with pgvector, for several relayers.
        Postgres = "postgres",
    }
}

named_setting! {
    /// How an embedding endpoint tells what seeks from what is sought.
    RolesSetting {
        /// Not at all.
        None = "none",
        /// By words before the text.
        Prefix = "prefix",
        /// By the field `input_type` of its requests.
        InputType = "input_type",
    }
}

named_setting! {
    /// What turns texts into vectors.
    EmbedderSetting {
        /// The best of those that are there: `static` once its model was pulled, `hashing` before.
        Auto = "auto",
        /// 384 dimensions, needs nothing.
        Hashing = "hashing",
        /// potion-base-8M, a static table.
        Static = "static",
        /// all-MiniLM-L6-v2.
        MiniLm = "minilm",
        /// Any OpenAI-compatible `/v1/embeddings`.
        Endpoint = "endpoint",
    }
}

/// Options as they are given, none of them required. Flags, environment and file have the same.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Address of the HTTP door, or `off` [default: 127.0.0.1:8000]
    #[arg(long, env = "BATON_RELAYER_HTTP", help_heading = "HTTP")]
    pub http: Option<HttpSetting>,
    /// URL under which clients reach the HTTP door [default: what they name in Host]
    #[arg(long, env = "BATON_RELAYER_PUBLIC_URL", help_heading = "HTTP")]
    pub public_url: Option<String>,
    /// Requests a minute of one owner [default: 600]
    #[arg(long, env = "BATON_RELAYER_REQUESTS_PER_MINUTE", help_heading = "HTTP")]
    pub requests_per_minute: Option<u32>,
    /// Requests a minute of one key [default: 300]
    #[arg(long, env = "BATON_RELAYER_KEY_REQUESTS_PER_MINUTE", help_heading = "HTTP")]
    pub key_requests_per_minute: Option<u32>,
    /// Requests in hand at once [default: 256]
    #[arg(long, env = "BATON_RELAYER_MAX_REQUESTS", help_heading = "HTTP")]
    pub max_requests: Option<u32>,
    /// Where sealed records lie: embedded or postgres [default: embedded]
    #[arg(long, env = "BATON_RELAYER_STORAGE", help_heading = "Memory")]
    pub storage: Option<StorageSetting>,
    /// File (mode 600) with the URL of the Postgres database
    #[arg(long, env = "BATON_RELAYER_POSTGRES_URL_FILE", help_heading = "Memory")]
    pub postgres_url_file: Option<PathBuf>,
    /// Folder of the owners' key files, never in the database [default: keys in the data folder]
    #[arg(long, env = "BATON_RELAYER_KEYS_DIR", help_heading = "Memory")]
    pub keys_dir: Option<PathBuf>,
    /// Most items of an owner [default: 250000]
    #[arg(long, env = "BATON_RELAYER_MAX_ITEMS", help_heading = "Memory")]
    pub max_items: Option<u64>,
    /// What embeds: auto, hashing, static, minilm or endpoint [default: auto]
    #[arg(long, env = "BATON_RELAYER_EMBEDDER", help_heading = "Memory")]
    pub embedder: Option<EmbedderSetting>,
    /// Folder of pulled models [default: models in the data folder]
    #[arg(long, env = "BATON_RELAYER_MODEL_DIR", help_heading = "Memory")]
    pub model_dir: Option<PathBuf>,
    /// Base URL of an embedding endpoint, such as http://127.0.0.1:8080/v1; texts are sent to it
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_URL", help_heading = "Memory")]
    pub embedder_url: Option<String>,
    /// The model's name at the embedding endpoint
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_MODEL", help_heading = "Memory")]
    pub embedder_model: Option<String>,
    /// Dimensions of the model at the embedding endpoint
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_DIMENSIONS", help_heading = "Memory")]
    pub embedder_dimensions: Option<u32>,
    /// How the embedding endpoint tells queries from documents: none, prefix or input_type [default: none]
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_ROLES", help_heading = "Memory")]
    pub embedder_roles: Option<RolesSetting>,
    /// The prefix or input_type of queries
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_QUERY_ROLE", help_heading = "Memory")]
    pub embedder_query_role: Option<String>,
    /// The prefix or input_type of documents
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_DOCUMENT_ROLE", help_heading = "Memory")]
    pub embedder_document_role: Option<String>,
    /// File (mode 600) with the embedding endpoint's key
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_KEY_FILE", help_heading = "Memory")]
    pub embedder_key_file: Option<PathBuf>,
    /// Base URL of a language model that judges, extracts and answers; turns are sent to it [default: rules alone]
    #[arg(long, env = "BATON_RELAYER_MODEL_URL", help_heading = "Memory")]
    pub model_url: Option<String>,
    /// The language model's name
    #[arg(long, env = "BATON_RELAYER_MODEL", help_heading = "Memory")]
    pub model: Option<String>,
    /// File (mode 600) with the language model's key
    #[arg(long, env = "BATON_RELAYER_MODEL_KEY_FILE", help_heading = "Memory")]
    pub model_key_file: Option<PathBuf>,
    /// Base URLs of Walrus publishers; repeat, preferred ones first [default: contents stay here]
    #[arg(
        long = "publisher",
        id = "publishers",
        env = "BATON_RELAYER_PUBLISHERS",
        value_delimiter = ',',
        help_heading = "Walrus"
    )]
    pub publishers: Vec<String>,
    /// Base URLs of Walrus aggregators; repeat, preferred ones first
    #[arg(
        long = "aggregator",
        id = "aggregators",
        env = "BATON_RELAYER_AGGREGATORS",
        value_delimiter = ',',
        help_heading = "Walrus"
    )]
    pub aggregators: Vec<String>,
    /// File (mode 600) with the publishers' bearer token
    #[arg(
        long,
        env = "BATON_RELAYER_PUBLISHER_TOKEN_FILE",
        conflicts_with = "publisher_secret_file",
        help_heading = "Walrus"
    )]
    pub publisher_token_file: Option<PathBuf>,
    /// File (mode 600) with the secret from which a token is made for each PUT
    #[arg(long, env = "BATON_RELAYER_PUBLISHER_SECRET_FILE", help_heading = "Walrus")]
    pub publisher_secret_file: Option<PathBuf>,
    /// Shards of the store's network [default: 1000]
    #[arg(long, env = "BATON_RELAYER_SHARDS", help_heading = "Walrus")]
    pub shards: Option<u16>,
    /// Epochs that contents are stored for [default: 53]
    #[arg(long, env = "BATON_RELAYER_EPOCHS", help_heading = "Walrus")]
    pub epochs: Option<u32>,
    /// Base URL where session heads are looked up, for conversations over HTTP
    #[arg(long, env = "BATON_RELAYER_HEADS", help_heading = "Walrus")]
    pub heads: Option<String>,
    /// Let test engines that only repeat the message serve conversations over HTTP [default: false]
    #[arg(long, env = "BATON_RELAYER_ALLOW_ECHO", help_heading = "Network")]
    pub allow_echo: Option<bool>,
    /// Addresses to listen on for sealed turns [default: /ip4/0.0.0.0/tcp/4101]
    #[arg(long, env = "BATON_RELAYER_LISTEN", value_delimiter = ',', help_heading = "Network")]
    pub listen: Vec<Multiaddr>,
    /// Addresses of nodes to know from the start
    #[arg(long, env = "BATON_RELAYER_BOOTSTRAP", value_delimiter = ',', help_heading = "Network")]
    pub bootstrap: Vec<Multiaddr>,
    /// Find nodes on the local network [default: true]
    #[arg(long, env = "BATON_RELAYER_MDNS", help_heading = "Network")]
    pub mdns: Option<bool>,
    /// Facts file [default: facts.json in the data folder]
    #[arg(long, env = "BATON_RELAYER_FACTS", help_heading = "Network")]
    pub facts: Option<PathBuf>,
    /// Seconds that running turns get to end at shutdown [default: 30]
    #[arg(long, env = "BATON_RELAYER_DRAIN_SECONDS", help_heading = "Network")]
    pub drain_seconds: Option<u32>,
}

impl Options {
    /// These, and for those that were not given, the others.
    #[must_use]
    fn or(self, other: Self) -> Self {
        macro_rules! merged {
            (one: $($one:ident),*; many: $($many:ident),*) => {
                Self {
                    $($one: self.$one.or(other.$one),)*
                    $($many: if self.$many.is_empty() { other.$many } else { self.$many },)*
                }
            };
        }
        merged! {
            one: http, public_url, requests_per_minute, key_requests_per_minute, max_requests, storage,
                postgres_url_file, keys_dir, max_items, embedder, model_dir, embedder_url, embedder_model,
                embedder_dimensions, embedder_roles, embedder_query_role, embedder_document_role,
                embedder_key_file, model_url, model, model_key_file, publisher_token_file,
                publisher_secret_file, shards, epochs, heads, allow_echo, mdns, facts, drain_seconds;
            many: publishers, aggregators, listen, bootstrap
        }
    }
}

/// A language model at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Base URL.
    pub url: String,
    /// Its name there.
    pub model: String,
    /// File with the key.
    pub key_file: Option<PathBuf>,
}

/// An embedding endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbedderEndpoint {
    /// Base URL, model and key.
    pub endpoint: ModelSettings,
    /// Length of its vectors.
    pub dimensions: u32,
    /// How it tells queries from documents, and by what.
    pub roles: Option<(RolesSetting, String, String)>,
}

/// Walrus-compatible stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalrusSettings {
    /// Base URLs to write to, at least one.
    pub publishers: Vec<String>,
    /// Base URLs to read from, at least one.
    pub aggregators: Vec<String>,
    /// File with the publishers' bearer token.
    pub token_file: Option<PathBuf>,
    /// File with the secret that tokens are made from.
    pub secret_file: Option<PathBuf>,
    /// Shards of the network.
    pub shards: u16,
    /// Epochs to buy.
    pub epochs: u32,
    /// Where session heads are looked up.
    pub heads: Option<String>,
}

/// Everything that the relayer needs to know, complete and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Folder of keys, database and models.
    pub data_dir: PathBuf,
    /// Where HTTP is served.
    pub http: HttpSetting,
    /// URL under which clients reach it.
    pub public_url: Option<String>,
    /// What may be asked, how often.
    pub limits: Limits,
    /// File with the URL of a Postgres database; the embedded database if none.
    pub postgres_url_file: Option<PathBuf>,
    /// Folder of the owners' keys.
    pub keys_dir: PathBuf,
    /// Most items of an owner.
    pub max_items: u64,
    /// What embeds.
    pub embedder: EmbedderSetting,
    /// Where, if at an endpoint.
    pub embedder_endpoint: Option<EmbedderEndpoint>,
    /// Folder of pulled models.
    pub model_dir: PathBuf,
    /// The language model, if there is one.
    pub model: Option<ModelSettings>,
    /// Where contents are kept; here alone if nowhere.
    pub walrus: Option<WalrusSettings>,
    /// Addresses to listen on for sealed turns.
    pub listen: Vec<Multiaddr>,
    /// Nodes to know from the start.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to find nodes on the local network.
    pub mdns: bool,
    /// Whether test engines may serve conversations.
    pub allow_echo: bool,
    /// The facts file.
    pub facts: PathBuf,
    /// Seconds that running turns get to end.
    pub drain_seconds: u32,
}

/// Why a configuration cannot be used. Each text tells what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not TOML, has an unknown key, or a value that a key does not take.
    #[error("{path}, line {line}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// Options that exclude or miss each other.
    #[error("{0}")]
    Conflict(String),
}

impl Settings {
    /// Completes flags and environment, which are in `flags`, with the file and the defaults. A file that was named must
    /// be there.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(data_dir: &Path, config: Option<&Path>, flags: Options) -> Result<Self, ConfigError> {
        let path = config.map_or_else(|| data_dir.join(CONFIG_FILE), Path::to_owned);
        let file = read(&path, config.is_some())?;
        Self::resolve(data_dir, flags.or(file))
    }

    /// Checks options against each other and fills in the defaults.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`].
    pub fn resolve(data_dir: &Path, options: Options) -> Result<Self, ConfigError> {
        let postgres_url_file = postgres(&options)?;
        let (embedder, embedder_endpoint) = embedder(&options)?;
        let (model, walrus, limits) = (model(&options)?, walrus(&options)?, limits(&options)?);
        let default =
            |text: &str| text.parse().expect("the default has the form of the option, as a test shows");
        Ok(Self {
            http: options.http.unwrap_or_else(|| default_http(DEFAULT_HTTP)),
            public_url: public_url(options.public_url)?,
            limits,
            postgres_url_file,
            keys_dir: options.keys_dir.unwrap_or_else(|| data_dir.join("keys")),
            max_items: options.max_items.unwrap_or(MAX_ITEMS).max(1),
            embedder,
            embedder_endpoint,
            model_dir: options.model_dir.unwrap_or_else(|| data_dir.join("models")),
            model,
            walrus,
            listen: if options.listen.is_empty() { vec![default(DEFAULT_LISTEN)] } else { options.listen },
            bootstrap: options.bootstrap,
            mdns: options.mdns.unwrap_or(true),
            allow_echo: options.allow_echo.unwrap_or(false),
            facts: options.facts.unwrap_or_else(|| data_dir.join("facts.json")),
            drain_seconds: options.drain_seconds.unwrap_or(DEFAULT_DRAIN_SECONDS),
            data_dir: data_dir.to_owned(),
        })
    }
}

fn default_http(text: &str) -> HttpSetting {
    text.parse().expect("the default is an address, as a test shows")
}

fn conflict<T>(text: &str) -> Result<T, ConfigError> {
    Err(ConfigError::Conflict(text.to_owned()))
}

fn postgres(options: &Options) -> Result<Option<PathBuf>, ConfigError> {
    match (options.storage.unwrap_or(StorageSetting::Embedded), &options.postgres_url_file) {
        (StorageSetting::Embedded, None) => Ok(None),
        (StorageSetting::Postgres, Some(path)) => Ok(Some(path.clone())),
        (StorageSetting::Postgres, None) => conflict(
            "storage = \"postgres\" needs postgres_url_file, a file (chmod 600) with postgres://user:password@host/database",
        ),
        (StorageSetting::Embedded, Some(_)) => conflict("postgres_url_file is for storage = \"postgres\""),
    }
}

fn embedder(options: &Options) -> Result<(EmbedderSetting, Option<EmbedderEndpoint>), ConfigError> {
    let setting = options.embedder.unwrap_or(EmbedderSetting::Auto);
    let given = (&options.embedder_url, &options.embedder_model, options.embedder_dimensions);
    match (setting, given) {
        (EmbedderSetting::Endpoint, (Some(url), Some(model), Some(dimensions))) => {
            let endpoint = ModelSettings {
                url: http_url("embedder_url", url)?,
                model: model.clone(),
                key_file: options.embedder_key_file.clone(),
            };
            let roles = roles(options)?;
            Ok((setting, Some(EmbedderEndpoint { endpoint, dimensions, roles })))
        }
        (EmbedderSetting::Endpoint, _) => {
            conflict("embedder = \"endpoint\" needs embedder_url, embedder_model and embedder_dimensions")
        }
        (_, (None, None, None)) => Ok((setting, None)),
        _ => conflict("embedder_url, embedder_model and embedder_dimensions are for embedder = \"endpoint\""),
    }
}

fn roles(options: &Options) -> Result<Option<(RolesSetting, String, String)>, ConfigError> {
    let given = (&options.embedder_query_role, &options.embedder_document_role);
    match (options.embedder_roles.unwrap_or(RolesSetting::None), given) {
        (RolesSetting::None, (None, None)) => Ok(None),
        (by @ (RolesSetting::Prefix | RolesSetting::InputType), (Some(query), Some(document))) => {
            Ok(Some((by, query.clone(), document.clone())))
        }
        _ => conflict(
            "embedder_roles = \"prefix\" or \"input_type\" goes with embedder_query_role and embedder_document_role",
        ),
    }
}

fn model(options: &Options) -> Result<Option<ModelSettings>, ConfigError> {
    match (&options.model_url, &options.model) {
        (None, None) => Ok(None),
        (Some(url), Some(model)) => Ok(Some(ModelSettings {
            url: http_url("model_url", url)?,
            model: model.clone(),
            key_file: options.model_key_file.clone(),
        })),
        _ => conflict("model_url and model go together"),
    }
}

fn walrus(options: &Options) -> Result<Option<WalrusSettings>, ConfigError> {
    if options.publishers.is_empty() && options.aggregators.is_empty() {
        return Ok(None);
    }
    if options.publishers.is_empty() || options.aggregators.is_empty() {
        return conflict("publishers and aggregators go together: contents are read back and checked");
    }
    if options.publisher_token_file.is_some() && options.publisher_secret_file.is_some() {
        return conflict("publisher_token_file and publisher_secret_file exclude each other");
    }
    for url in options.publishers.iter().chain(&options.aggregators) {
        http_url("a publisher or aggregator", url)?;
    }
    Ok(Some(WalrusSettings {
        publishers: options.publishers.clone(),
        aggregators: options.aggregators.clone(),
        token_file: options.publisher_token_file.clone(),
        secret_file: options.publisher_secret_file.clone(),
        shards: options.shards.unwrap_or(DEFAULT_SHARDS),
        epochs: options.epochs.unwrap_or(DEFAULT_EPOCHS).max(1),
        heads: options.heads.as_deref().map(|url| http_url("heads", url)).transpose()?,
    }))
}

fn limits(options: &Options) -> Result<Limits, ConfigError> {
    let defaults = Limits::default();
    let requests = options.max_requests.map_or(defaults.requests, |most| most as usize);
    let limits = Limits {
        owner_per_minute: options.requests_per_minute.unwrap_or(defaults.owner_per_minute),
        key_per_minute: options.key_requests_per_minute.unwrap_or(defaults.key_per_minute),
        requests,
        large_bodies: defaults.large_bodies,
    };
    if limits.owner_per_minute == 0 || limits.key_per_minute == 0 || !(1..=65_536).contains(&requests) {
        return conflict(
            "requests_per_minute, key_requests_per_minute and max_requests (up to 65536) are at least 1",
        );
    }
    Ok(limits)
}

fn public_url(url: Option<String>) -> Result<Option<String>, ConfigError> {
    url.map(|url| http_url("public_url", &url)).transpose()
}

fn http_url(name: &str, url: &str) -> Result<String, ConfigError> {
    match reqwest::Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
            Ok(url.trim_end_matches('/').to_owned())
        }
        _ => conflict(&format!("{name} begins with http:// or https:// and names a host")),
    }
}

fn read(path: &Path, required: bool) -> Result<Options, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Options::default());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(std::io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes"))));
    }
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Options, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
        ConfigError::File { path: path.to_owned(), line, problem: error.message().replace('\n', ", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, ConfigError> {
        parse(Path::new("c.toml"), text)
    }

    fn resolved(text: &str) -> Result<Settings, ConfigError> {
        Settings::resolve(Path::new("/d"), parsed(text)?)
    }

    #[test]
    fn the_commented_file_says_the_defaults_and_changes_nothing() {
        assert_eq!(parsed(TEMPLATE).unwrap(), Options::default());
        let uncommented: String = TEMPLATE
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with([' ', '#', '-'])))
            .filter(|line| line.contains(" = ") && !line.contains("\"\""))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(uncommented.lines().count() > 12, "{uncommented}");
        assert_eq!(resolved(&uncommented).unwrap(), resolved("").unwrap());
    }

    #[test]
    fn every_key_stands_in_the_commented_file() {
        let command = Options::augment_args(clap::Command::new("run"));
        for argument in command.get_arguments() {
            let key = argument.get_id().as_str();
            assert!(TEMPLATE.contains(&format!("\n#{key} = ")), "{key}");
        }
    }

    #[test]
    fn complaints_name_the_line_and_what_is_allowed() {
        let check = |text: &str, parts: &[&str]| {
            let error = resolved(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        };
        check("\nhtpp = \"off\"", &["line 2", "htpp", "http"]);
        check("http = \"here\"", &["line 1", "127.0.0.1:8000", "off"]);
        check("storage = \"oracle\"", &["embedded, postgres"]);
        check("embedder = 3", &["line 1"]);
        check("storage = \"postgres\"", &["postgres_url_file"]);
        check("postgres_url_file = \"x\"", &["storage"]);
        check("embedder = \"endpoint\"", &["embedder_url"]);
        check("embedder_url = \"http://x/v1\"", &["endpoint"]);
        let endpoint = "embedder = \"endpoint\"\nembedder_url = \"http://x/v1\"\nembedder_model = \"m\"\nembedder_dimensions = 8\n";
        assert!(resolved(endpoint).is_ok());
        check(&format!("{endpoint}embedder_roles = \"prefix\""), &["embedder_query_role"]);
        check(&format!("{endpoint}embedder_query_role = \"q\""), &["embedder_roles"]);
        check("model_url = \"http://x/v1\"", &["go together"]);
        check("model_url = \"x\"\nmodel = \"m\"", &["http://"]);
        check("publishers = [\"http://x\"]", &["aggregators"]);
        check("requests_per_minute = 0", &["at least 1"]);
        check("public_url = \"ftp://x\"", &["public_url"]);
    }

    #[test]
    fn flags_go_before_the_file() {
        let flags = Options {
            max_items: Some(5),
            listen: vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap()],
            ..Options::default()
        };
        let file = parsed("max_items = 7\nshards = 10\nlisten = [\"/ip4/127.0.0.1/tcp/2\"]").unwrap();
        let both = flags.clone().or(file);
        assert_eq!((both.max_items, both.shards, both.listen), (Some(5), Some(10), flags.listen));
    }

    #[test]
    fn a_named_file_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Settings::load(folder.path(), None, Options::default()).is_ok());
        let missing = folder.path().join("x.toml");
        assert!(Settings::load(folder.path(), Some(&missing), Options::default()).is_err());
    }
}
