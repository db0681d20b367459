//! The only list of options, for flags, environment and file.

use std::path::PathBuf;

use baton_mesh::Multiaddr;
use clap::Args;
use serde::Deserialize;

use super::values::{EmbedderSetting, HttpSetting, RolesSetting, StorageSetting};

/// Options as given, all optional. Flags, environment and file share them.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Address of the HTTP server, or `off` [default: 127.0.0.1:8000]
    #[arg(long, env = "BATON_RELAYER_HTTP", help_heading = "HTTP")]
    pub http: Option<HttpSetting>,
    /// URL at which clients reach the HTTP server [default: from their Host header]
    #[arg(long, env = "BATON_RELAYER_PUBLIC_URL", help_heading = "HTTP")]
    pub public_url: Option<String>,
    /// Most requests per minute of one owner [default: 600]
    #[arg(long, env = "BATON_RELAYER_REQUESTS_PER_MINUTE", help_heading = "HTTP")]
    pub requests_per_minute: Option<u32>,
    /// Most requests per minute of one key [default: 300]
    #[arg(long, env = "BATON_RELAYER_KEY_REQUESTS_PER_MINUTE", help_heading = "HTTP")]
    pub key_requests_per_minute: Option<u32>,
    /// Most concurrent requests [default: 256]
    #[arg(long, env = "BATON_RELAYER_MAX_REQUESTS", help_heading = "HTTP")]
    pub max_requests: Option<u32>,
    /// Storage of sealed records: embedded or postgres [default: embedded]
    #[arg(long, env = "BATON_RELAYER_STORAGE", help_heading = "Memory")]
    pub storage: Option<StorageSetting>,
    /// File (mode 600) with the URL of the Postgres database
    #[arg(long, env = "BATON_RELAYER_POSTGRES_URL_FILE", help_heading = "Memory")]
    pub postgres_url_file: Option<PathBuf>,
    /// Folder of the owners' key files, outside the database [default: keys/ in the data folder]
    #[arg(long, env = "BATON_RELAYER_KEYS_DIR", help_heading = "Memory")]
    pub keys_dir: Option<PathBuf>,
    /// Most items per owner [default: 250000]
    #[arg(long, env = "BATON_RELAYER_MAX_ITEMS", help_heading = "Memory")]
    pub max_items: Option<u64>,
    /// Embedder: auto, hashing, static, minilm or endpoint [default: auto]
    #[arg(long, env = "BATON_RELAYER_EMBEDDER", help_heading = "Memory")]
    pub embedder: Option<EmbedderSetting>,
    /// Folder of downloaded models [default: models/ in the data folder]
    #[arg(long, env = "BATON_RELAYER_MODEL_DIR", help_heading = "Memory")]
    pub model_dir: Option<PathBuf>,
    /// Base URL of an embedding endpoint, such as http://127.0.0.1:8080/v1; it receives the texts
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_URL", help_heading = "Memory")]
    pub embedder_url: Option<String>,
    /// Name of the model at the embedding endpoint
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_MODEL", help_heading = "Memory")]
    pub embedder_model: Option<String>,
    /// Dimensions of the model at the embedding endpoint
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_DIMENSIONS", help_heading = "Memory")]
    pub embedder_dimensions: Option<u32>,
    /// How the embedding endpoint distinguishes queries from documents: none, prefix or input_type [default:
    /// none]
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_ROLES", help_heading = "Memory")]
    pub embedder_roles: Option<RolesSetting>,
    /// Prefix or input_type of queries
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_QUERY_ROLE", help_heading = "Memory")]
    pub embedder_query_role: Option<String>,
    /// Prefix or input_type of documents
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_DOCUMENT_ROLE", help_heading = "Memory")]
    pub embedder_document_role: Option<String>,
    /// File (mode 600) with the embedding endpoint's key
    #[arg(long, env = "BATON_RELAYER_EMBEDDER_KEY_FILE", help_heading = "Memory")]
    pub embedder_key_file: Option<PathBuf>,
    /// Base URL of a language model that judges, extracts and answers; it receives turns [default: rules
    /// alone]
    #[arg(long, env = "BATON_RELAYER_MODEL_URL", help_heading = "Memory")]
    pub model_url: Option<String>,
    /// Name of the language model
    #[arg(long, env = "BATON_RELAYER_MODEL", help_heading = "Memory")]
    pub model: Option<String>,
    /// File (mode 600) with the language model's key
    #[arg(long, env = "BATON_RELAYER_MODEL_KEY_FILE", help_heading = "Memory")]
    pub model_key_file: Option<PathBuf>,
    /// Let third-party nodes judge and extract, for owners who allow it; ignored with model_url [default:
    /// false]
    #[arg(long, env = "BATON_RELAYER_THROUGH_NODES", help_heading = "Memory")]
    pub through_nodes: Option<bool>,
    /// Name or id of the language model for through_nodes
    #[arg(long, env = "BATON_RELAYER_THROUGH_NODES_MODEL", help_heading = "Memory")]
    pub through_nodes_model: Option<String>,
    /// Base URL of a Walrus publisher; repeatable, in order of preference [default: contents stay local]
    #[arg(
        long = "publisher",
        id = "publishers",
        env = "BATON_RELAYER_PUBLISHERS",
        value_delimiter = ',',
        help_heading = "Walrus"
    )]
    pub publishers: Vec<String>,
    /// Base URL of a Walrus aggregator; repeatable, in order of preference
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
    /// File (mode 600) with the secret to make a token for each PUT
    #[arg(long, env = "BATON_RELAYER_PUBLISHER_SECRET_FILE", help_heading = "Walrus")]
    pub publisher_secret_file: Option<PathBuf>,
    /// Number of shards of the storage network [default: 1000]
    #[arg(long, env = "BATON_RELAYER_SHARDS", help_heading = "Walrus")]
    pub shards: Option<u16>,
    /// Storage duration of contents, in epochs [default: 53]
    #[arg(long, env = "BATON_RELAYER_EPOCHS", help_heading = "Walrus")]
    pub epochs: Option<u32>,
    /// Base URL of the head index, for conversations over HTTP
    #[arg(long, env = "BATON_RELAYER_HEADS", help_heading = "Walrus")]
    pub heads: Option<String>,
    /// Let echo test engines serve conversations over HTTP and answer for through_nodes [default: false]
    #[arg(long, env = "BATON_RELAYER_ALLOW_ECHO", help_heading = "Network")]
    pub allow_echo: Option<bool>,
    /// Listen addresses for sealed turns [default: /ip4/0.0.0.0/tcp/4101]
    #[arg(long, env = "BATON_RELAYER_LISTEN", value_delimiter = ',', help_heading = "Network")]
    pub listen: Vec<Multiaddr>,
    /// Addresses of bootstrap nodes
    #[arg(long, env = "BATON_RELAYER_BOOTSTRAP", value_delimiter = ',', help_heading = "Network")]
    pub bootstrap: Vec<Multiaddr>,
    /// Discover nodes on the local network [default: true]
    #[arg(long, env = "BATON_RELAYER_MDNS", help_heading = "Network")]
    pub mdns: Option<bool>,
    /// Seconds for running turns to finish at shutdown [default: 30]
    #[arg(long, env = "BATON_RELAYER_DRAIN_SECONDS", help_heading = "Network")]
    pub drain_seconds: Option<u32>,
}

impl Options {
    /// These options, completed with the others.
    #[must_use]
    pub(super) fn or(self, other: Self) -> Self {
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
                publisher_secret_file, shards, epochs, heads, allow_echo, mdns, drain_seconds,
                through_nodes, through_nodes_model;
            many: publishers, aggregators, listen, bootstrap
        }
    }
}
