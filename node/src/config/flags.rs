//! The flags of `run`, which are also environment variables and keys of the file.

use std::path::PathBuf;

use baton_mesh::Multiaddr;
use baton_proto::ids::{PublicKey, QuotaSerial};
use clap::{Args, ValueEnum};

use super::{
    AdminSetting, HeadsSetting,
    options::{address, admin, heads, id, number, text, url},
};

/// Engine that produces tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// This process, with a model's own weights.
    Native,
    /// An OpenAI-compatible server behind this node.
    Proxied,
    /// A test engine without a model; it repeats the message.
    Echo,
}

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Events that may need attention.
    Warn,
    /// The node's activity, in a few lines.
    Info,
    /// Every turn and connection.
    Debug,
    /// Everything.
    Trace,
}

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people, with the time.
    #[value(alias = "text")]
    Pretty,
    /// The same without the time, for logs that add it, such as systemd's journal.
    Compact,
    /// One JSON object a line.
    Json,
}

/// Options of `run`; an option that is not given is `None`. The file's options have the same type.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFlags {
    /// Configuration file (TOML); default: config.toml in the data directory, if present
    #[arg(long, env = "BATON_NODE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of keys, journal and models
    #[arg(long, env = "BATON_NODE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Address to listen on; repeat, or separate with commas
    #[arg(long, env = "BATON_NODE_LISTEN", value_name = "MULTIADDR", value_delimiter = ',', help_heading = "Network",
        value_parser = |text: &str| address("listen", text))]
    pub listen: Option<Vec<Multiaddr>>,
    /// Further address under which peers reach this node
    #[arg(long, env = "BATON_NODE_EXTERNAL", value_name = "MULTIADDR", value_delimiter = ',', help_heading = "Network",
        value_parser = |text: &str| address("external", text))]
    pub external: Option<Vec<Multiaddr>>,
    /// Peer to stay connected to, preferably with its /p2p/ identity
    #[arg(long, env = "BATON_NODE_BOOTSTRAP", value_name = "MULTIADDR", value_delimiter = ',', help_heading = "Network",
        value_parser = |text: &str| address("bootstrap", text))]
    pub bootstrap: Option<Vec<Multiaddr>>,
    /// Find peers on the local network by multicast
    #[arg(long, env = "BATON_NODE_MDNS", value_name = "BOOL", help_heading = "Network")]
    pub mdns: Option<bool>,
    /// Find peers, and be found, through the DHT and gossip
    #[arg(long, env = "BATON_NODE_DISCOVERY", value_name = "BOOL", help_heading = "Network")]
    pub discovery: Option<bool>,
    /// Test reachability, use relays if this node cannot be reached, and punch holes through NATs
    #[arg(long, env = "BATON_NODE_NAT", value_name = "BOOL", help_heading = "Network")]
    pub nat: Option<bool>,
    /// Request a port from the router (UPnP)
    #[arg(long, env = "BATON_NODE_UPNP", value_name = "BOOL", help_heading = "Network")]
    pub upnp: Option<bool>,
    /// Relay circuits for nodes that cannot be reached otherwise
    #[arg(long, env = "BATON_NODE_RELAY", value_name = "BOOL", help_heading = "Network")]
    pub relay: Option<bool>,
    /// Relay to stay reachable through at all times, with its /p2p/ identity
    #[arg(long, env = "BATON_NODE_RELAYS", value_name = "MULTIADDR", value_delimiter = ',', help_heading = "Network",
        value_parser = |text: &str| address("relays", text))]
    pub relays: Option<Vec<Multiaddr>>,

    /// Base URL of a Walrus publisher, for writing blobs, in order of preference; repeat, or separate with
    /// commas
    #[arg(long, env = "BATON_NODE_PUBLISHER", value_name = "URL", value_delimiter = ',', help_heading = "Store",
        value_parser = |text: &str| url("publisher", text))]
    pub publisher: Option<Vec<String>>,
    /// Base URL of a Walrus aggregator, for reading blobs, in order of preference; repeat, or separate with
    /// commas
    #[arg(long, env = "BATON_NODE_AGGREGATOR", value_name = "URL", value_delimiter = ',', help_heading = "Store",
        value_parser = |text: &str| url("aggregator", text))]
    pub aggregator: Option<Vec<String>>,
    /// File with the publishers' bearer token
    #[arg(long, env = "BATON_NODE_PUBLISHER_TOKEN_FILE", value_name = "FILE", help_heading = "Store")]
    pub publisher_token_file: Option<PathBuf>,
    /// File with the secret shared with the publishers, for signing a single-use token (JWT) for each PUT
    #[arg(long, env = "BATON_NODE_PUBLISHER_SECRET_FILE", value_name = "FILE", help_heading = "Store")]
    pub publisher_secret_file: Option<PathBuf>,
    /// Base URL of the store with the head index for finding sessions, or none
    #[arg(long, env = "BATON_NODE_HEADS", value_name = "URL|none", help_heading = "Store",
        value_parser = |text: &str| heads(text))]
    pub heads: Option<HeadsSetting>,
    /// Shards of the Walrus network, which determine blob IDs (1000 on mainnet and testnet)
    #[arg(long, env = "BATON_NODE_SHARDS", value_name = "N", help_heading = "Store",
        value_parser = |text: &str| number::<u16>("shards", text))]
    pub shards: Option<u16>,

    /// Model to serve; fetched at the first start if missing
    #[arg(long, env = "BATON_NODE_MODEL", value_name = "NAME", help_heading = "Model",
        value_parser = |value: &str| text("model", value))]
    pub model: Option<String>,
    /// Further model to offer; repeat, or separate with commas
    #[arg(long, env = "BATON_NODE_MORE_MODELS", value_name = "NAME", value_delimiter = ',', help_heading = "Model",
        value_parser = |value: &str| text("more_models", value))]
    pub more_models: Option<Vec<String>>,
    /// Memory for models and their caches, in megabytes; models are loaded and unloaded to stay below it
    #[arg(long, env = "BATON_NODE_MODEL_MEMORY_MB", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("model_memory_mb", text))]
    pub model_memory_mb: Option<u32>,
    /// Minutes without a turn before a model is unloaded; the next turn loads it again
    #[arg(long, env = "BATON_NODE_MODEL_IDLE_MINUTES", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("model_idle_minutes", text))]
    pub model_idle_minutes: Option<u32>,
    /// Folder of model files
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR", help_heading = "Model")]
    pub model_dir: Option<PathBuf>,
    /// Model for text embeddings, which the node then offers; fetched at the first start if missing
    #[arg(long, env = "BATON_NODE_EMBEDDING_MODEL", value_name = "NAME", help_heading = "Model",
        value_parser = |value: &str| text("embedding_model", value))]
    pub embedding_model: Option<String>,
    /// Engine that produces tokens
    #[arg(long, env = "BATON_NODE_ENGINE", value_name = "KIND", help_heading = "Model")]
    pub engine: Option<EngineChoice>,
    /// With --engine proxied: base URL of an OpenAI-compatible server, before /v1/chat/completions
    #[arg(long, env = "BATON_NODE_PROXIED_URL", value_name = "URL", help_heading = "Model",
        value_parser = |text: &str| url("proxied_url", text))]
    pub proxied_url: Option<String>,
    /// With --engine proxied: name of the model at that server
    #[arg(long, env = "BATON_NODE_PROXIED_MODEL", value_name = "NAME", help_heading = "Model",
        value_parser = |value: &str| text("proxied_model", value))]
    pub proxied_model: Option<String>,
    /// With --engine proxied: file with the server's bearer token, if it needs one
    #[arg(long, env = "BATON_NODE_PROXIED_KEY_FILE", value_name = "FILE", help_heading = "Model")]
    pub proxied_key_file: Option<PathBuf>,
    /// Maximum tokens of a prompt and its answer together
    #[arg(long, env = "BATON_NODE_CONTEXT_TOKENS", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("context_tokens", text))]
    pub context_tokens: Option<u32>,
    /// Maximum tokens of an answer
    #[arg(long, env = "BATON_NODE_MAX_OUTPUT_TOKENS", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("max_output_tokens", text))]
    pub max_output_tokens: Option<u32>,
    /// Compute threads
    #[arg(long, env = "BATON_NODE_THREADS", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("threads", text))]
    pub threads: Option<u32>,
    /// Memory for the keys and values of all turns, including those cached for next turns, in megabytes
    #[arg(long, env = "BATON_NODE_KV_MB", value_name = "N", help_heading = "Model",
        value_parser = |text: &str| number::<u32>("kv_mb", text))]
    pub kv_mb: Option<u32>,

    /// Turns served at once
    #[arg(long, env = "BATON_NODE_SLOTS", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u32>("slots", text))]
    pub slots: Option<u32>,
    /// Turns that may wait for a slot; further turns are refused as busy
    #[arg(long, env = "BATON_NODE_QUEUE", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u32>("queue", text))]
    pub queue: Option<u32>,
    /// Turns a minute from one peer
    #[arg(long, env = "BATON_NODE_TURNS_PER_MINUTE", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u32>("turns_per_minute", text))]
    pub turns_per_minute: Option<u32>,
    /// Turns a minute from one subnet's unknown peers, and the same again from its known peers
    #[arg(long, env = "BATON_NODE_SUBNET_TURNS_PER_MINUTE", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u32>("subnet_turns_per_minute", text))]
    pub subnet_turns_per_minute: Option<u32>,
    /// Answer tokens an hour for one peer without a grant (0 is no limit)
    #[arg(long, env = "BATON_NODE_TOKENS_PER_HOUR", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u64>("tokens_per_hour", text))]
    pub tokens_per_hour: Option<u64>,
    /// Answer tokens an hour for one subnet's unknown peers, and the same again for its known peers (0 is no
    /// limit)
    #[arg(long, env = "BATON_NODE_SUBNET_TOKENS_PER_HOUR", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u64>("subnet_tokens_per_hour", text))]
    pub subnet_tokens_per_hour: Option<u64>,
    /// Score and ban misbehaviour, and count peers by subnet (/24 and /48)
    #[arg(long, env = "BATON_NODE_DEFENCE", value_name = "BOOL", help_heading = "Limits and prices")]
    pub defence: Option<bool>,
    /// Count private and loopback addresses too, each by itself
    #[arg(long, env = "BATON_NODE_COUNT_PRIVATE", value_name = "BOOL", help_heading = "Limits and prices")]
    pub count_private: Option<bool>,
    /// Recompute other nodes' turns for clients who disclose them; each counts as a turn
    #[arg(long, env = "BATON_NODE_AUDITS", value_name = "BOOL", help_heading = "Limits and prices")]
    pub audits: Option<bool>,
    /// Public key of an accepted grant issuer; repeat, or separate with commas
    #[arg(long, env = "BATON_NODE_GRANT_ISSUERS", value_name = "KEY", value_delimiter = ',', help_heading = "Limits and prices",
        value_parser = |text: &str| id::<PublicKey>("grant_issuers", text))]
    pub grant_issuers: Option<Vec<PublicKey>>,
    /// Refuse turns without a grant
    #[arg(long, env = "BATON_NODE_GRANTS_REQUIRED", value_name = "BOOL", help_heading = "Limits and prices")]
    pub grants_required: Option<bool>,
    /// Serial of a revoked grant, which also revokes its descendants; repeat, or separate with commas
    #[arg(long, env = "BATON_NODE_GRANTS_REVOKED", value_name = "SERIAL", value_delimiter = ',', help_heading = "Limits and prices",
        value_parser = |text: &str| id::<QuotaSerial>("grants_revoked", text))]
    pub grants_revoked: Option<Vec<QuotaSerial>>,
    /// Maximum epochs to store a turn's blob, at your publisher's expense (0 counts as 1)
    #[arg(long, env = "BATON_NODE_MAX_EPOCHS", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u32>("max_epochs", text))]
    pub max_epochs: Option<u32>,
    /// Memory of the process, in megabytes, above which new connections are refused
    #[arg(long, env = "BATON_NODE_MAX_MEMORY_MB", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("max_memory_mb", text))]
    pub max_memory_mb: Option<u32>,
    /// Maximum connections opened by other peers
    #[arg(long, env = "BATON_NODE_MAX_CONNECTIONS", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("max_connections", text))]
    pub max_connections: Option<u32>,
    /// Maximum new connections a second from other peers; half are reserved for subnets that opened few
    /// lately
    #[arg(long, env = "BATON_NODE_NEW_CONNECTIONS_PER_SECOND", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("new_connections_per_second", text))]
    pub new_connections_per_second: Option<u32>,
    /// Maximum connections with one peer
    #[arg(long, env = "BATON_NODE_MAX_CONNECTIONS_PER_PEER", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("max_connections_per_peer", text))]
    pub max_connections_per_peer: Option<u32>,
    /// Maximum open requests from other peers
    #[arg(long, env = "BATON_NODE_MAX_STREAMS", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("max_streams", text))]
    pub max_streams: Option<u32>,
    /// Maximum open requests from one peer; a relayer is one peer for all its users
    #[arg(long, env = "BATON_NODE_MAX_STREAMS_PER_PEER", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("max_streams_per_peer", text))]
    pub max_streams_per_peer: Option<u32>,
    /// Memory for recently read blobs of histories, in megabytes
    #[arg(long, env = "BATON_NODE_CACHE_MB", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("cache_mb", text))]
    pub cache_mb: Option<u32>,
    /// Disk space for blobs in the journal, in megabytes; blobs that are not stored elsewhere yet are always
    /// kept
    #[arg(long, env = "BATON_NODE_JOURNAL_MB", value_name = "N", help_heading = "Resources",
        value_parser = |text: &str| number::<u32>("journal_mb", text))]
    pub journal_mb: Option<u32>,
    /// Price of a thousand input tokens, in millionths of your unit
    #[arg(long, env = "BATON_NODE_INPUT_PRICE", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u64>("input_price", text))]
    pub input_price: Option<u64>,
    /// Price of a thousand output tokens, in millionths of your unit
    #[arg(long, env = "BATON_NODE_OUTPUT_PRICE", value_name = "N", help_heading = "Limits and prices",
        value_parser = |text: &str| number::<u64>("output_price", text))]
    pub output_price: Option<u64>,

    /// Address for status and metrics (HTTP, this machine only), or none
    #[arg(long, env = "BATON_NODE_ADMIN", value_name = "ADDR|none", help_heading = "Operation",
        value_parser = |text: &str| admin(text))]
    pub admin: Option<AdminSetting>,
    /// Log level on standard error
    #[arg(long, env = "BATON_NODE_LOG", value_name = "LEVEL", help_heading = "Operation")]
    pub log: Option<LogLevel>,
    /// Log format
    #[arg(long, env = "BATON_NODE_LOG_FORMAT", value_name = "FORMAT", help_heading = "Operation")]
    pub log_format: Option<LogFormat>,
    /// Base URL of an OpenTelemetry collector for traces of turns (OTLP over HTTP): times and counts, never
    /// text
    #[arg(long, env = "BATON_NODE_OTLP_ENDPOINT", value_name = "URL", help_heading = "Operation",
        value_parser = |text: &str| url("otlp_endpoint", text))]
    pub otlp_endpoint: Option<String>,
    /// Print events (ready, stopped) on standard output, one JSON object a line
    #[arg(long, env = "BATON_NODE_JSON", value_name = "BOOL", help_heading = "Operation", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    pub json: Option<bool>,
    /// Seconds for running turns to finish at shutdown
    #[arg(long, env = "BATON_NODE_DRAIN_SECONDS", value_name = "N", help_heading = "Operation",
        value_parser = |text: &str| number::<u32>("drain_seconds", text))]
    pub drain_seconds: Option<u32>,
    /// With --engine echo: milliseconds before each token
    #[arg(long, env = "BATON_NODE_ECHO_DELAY_MS", value_name = "N", help_heading = "Operation",
        value_parser = |text: &str| number::<u32>("echo_delay_ms", text))]
    pub echo_delay_ms: Option<u32>,
    /// Pause the process at this step of a turn, for crash tests
    #[arg(long, env = "BATON_NODE_PAUSE_AT", value_name = "STEP", hide = true)]
    pub pause_at: Option<String>,
    /// Clock error in seconds: positive for ahead, negative for behind. For tests
    #[arg(
        long,
        env = "BATON_NODE_CLOCK_OFFSET",
        value_name = "SECONDS",
        hide = true,
        allow_negative_numbers = true
    )]
    pub clock_offset: Option<i64>,
}

macro_rules! first_given {
    ($first:ident, $second:ident: $($field:ident)*) => {
        RunFlags { $($field: $first.$field.or($second.$field)),* }
    };
}

impl RunFlags {
    /// Each option from `self`, or else from `other`. (A missing field here does not compile.)
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        first_given!(self, other:
            config data_dir listen external bootstrap mdns discovery nat upnp relay relays publisher aggregator
            publisher_token_file publisher_secret_file heads shards model more_models model_memory_mb model_idle_minutes model_dir embedding_model engine
            proxied_url proxied_model proxied_key_file context_tokens max_output_tokens threads kv_mb slots queue turns_per_minute max_epochs
            max_memory_mb max_connections new_connections_per_second max_connections_per_peer max_streams max_streams_per_peer cache_mb journal_mb
            subnet_turns_per_minute tokens_per_hour subnet_tokens_per_hour defence count_private audits
            grant_issuers grants_required grants_revoked
            input_price output_price admin log log_format otlp_endpoint json drain_seconds echo_delay_ms pause_at
            clock_offset)
    }

    /// Sets an option from the texts of its value in a file; a list has several.
    pub(super) fn set(&mut self, key: &str, values: &[String]) -> Result<(), String> {
        let one = || values.first().map(String::as_str).unwrap_or_default();
        let urls = || values.iter().map(|value| url(key, value)).collect::<Result<Vec<_>, _>>();
        let list = || values.iter().map(|value| address(key, value)).collect::<Result<Vec<_>, _>>();
        match key {
            "data_dir" => self.data_dir = Some(text(key, one())?.into()),
            "listen" => self.listen = Some(list()?),
            "external" => self.external = Some(list()?),
            "bootstrap" => self.bootstrap = Some(list()?),
            "mdns" => self.mdns = Some(one() == "true"),
            "discovery" => self.discovery = Some(one() == "true"),
            "nat" => self.nat = Some(one() == "true"),
            "upnp" => self.upnp = Some(one() == "true"),
            "relay" => self.relay = Some(one() == "true"),
            "relays" => self.relays = Some(list()?),
            "publisher" => self.publisher = Some(urls()?),
            "aggregator" => self.aggregator = Some(urls()?),
            "publisher_token_file" => self.publisher_token_file = Some(text(key, one())?.into()),
            "publisher_secret_file" => self.publisher_secret_file = Some(text(key, one())?.into()),
            "heads" => self.heads = Some(heads(one())?),
            "shards" => self.shards = Some(number(key, one())?),
            "embedding_model" => self.embedding_model = Some(text(key, one())?),
            "model" => self.model = Some(text(key, one())?),
            "more_models" => {
                self.more_models =
                    Some(values.iter().map(|value| text(key, value)).collect::<Result<_, _>>()?);
            }
            "model_memory_mb" => self.model_memory_mb = Some(number(key, one())?),
            "model_idle_minutes" => self.model_idle_minutes = Some(number(key, one())?),
            "model_dir" => self.model_dir = Some(text(key, one())?.into()),
            "engine" => self.engine = Some(choice(one())?),
            "proxied_url" => self.proxied_url = Some(url(key, one())?),
            "proxied_model" => self.proxied_model = Some(text(key, one())?),
            "proxied_key_file" => self.proxied_key_file = Some(text(key, one())?.into()),
            "context_tokens" => self.context_tokens = Some(number(key, one())?),
            "max_output_tokens" => self.max_output_tokens = Some(number(key, one())?),
            "threads" => self.threads = Some(number(key, one())?),
            "kv_mb" => self.kv_mb = Some(number(key, one())?),
            "slots" => self.slots = Some(number(key, one())?),
            "queue" => self.queue = Some(number(key, one())?),
            "max_epochs" => self.max_epochs = Some(number(key, one())?),
            "turns_per_minute" => self.turns_per_minute = Some(number(key, one())?),
            "max_memory_mb" => self.max_memory_mb = Some(number(key, one())?),
            "max_connections" => self.max_connections = Some(number(key, one())?),
            "new_connections_per_second" => self.new_connections_per_second = Some(number(key, one())?),
            "max_connections_per_peer" => self.max_connections_per_peer = Some(number(key, one())?),
            "max_streams" => self.max_streams = Some(number(key, one())?),
            "max_streams_per_peer" => self.max_streams_per_peer = Some(number(key, one())?),
            "cache_mb" => self.cache_mb = Some(number(key, one())?),
            "journal_mb" => self.journal_mb = Some(number(key, one())?),
            "subnet_turns_per_minute" => self.subnet_turns_per_minute = Some(number(key, one())?),
            "tokens_per_hour" => self.tokens_per_hour = Some(number(key, one())?),
            "subnet_tokens_per_hour" => self.subnet_tokens_per_hour = Some(number(key, one())?),
            "defence" => self.defence = Some(one() == "true"),
            "count_private" => self.count_private = Some(one() == "true"),
            "audits" => self.audits = Some(one() == "true"),
            "grant_issuers" => self.grant_issuers = Some(ids(key, values)?),
            "grants_required" => self.grants_required = Some(one() == "true"),
            "grants_revoked" => self.grants_revoked = Some(ids(key, values)?),
            "input_price" => self.input_price = Some(number(key, one())?),
            "output_price" => self.output_price = Some(number(key, one())?),
            "admin" => self.admin = Some(admin(one())?),
            "log" => self.log = Some(choice(one())?),
            "log_format" => self.log_format = Some(choice(one())?),
            "otlp_endpoint" => self.otlp_endpoint = Some(url(key, one())?),
            "json" => self.json = Some(one() == "true"),
            "drain_seconds" => self.drain_seconds = Some(number(key, one())?),
            "echo_delay_ms" => self.echo_delay_ms = Some(number(key, one())?),
            _ => return Err("it is not an option".to_owned()),
        }
        Ok(())
    }
}

fn ids<T: std::str::FromStr>(key: &str, values: &[String]) -> Result<Vec<T>, String> {
    values.iter().map(|value| id(key, value)).collect()
}

fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let names: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|value| value.to_possible_value())
            .map(|value| format!("\"{}\"", value.get_name()))
            .collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::{
        super::options::{HIDDEN, OPTIONS},
        *,
    };

    #[test]
    fn flags_options_of_the_file_and_environment_variables_are_the_same() {
        let command = RunFlags::augment_args(Command::new("run"));
        let mut flags: Vec<_> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
        flags.retain(|id| id != "config" && !HIDDEN.contains(&id.as_str()));
        flags.sort();
        let mut options: Vec<_> = OPTIONS.iter().map(|entry| entry.key.to_owned()).collect();
        options.sort();
        assert_eq!(flags, options);
        for arg in command.get_arguments() {
            let id = arg.get_id().to_string();
            let name = format!("BATON_NODE_{}", id.to_uppercase());
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(name.as_str()));
            assert_eq!(arg.get_long(), Some(id.replace('_', "-").as_str()));
            assert!(arg.get_help().is_some(), "{id}");
        }
    }

    #[test]
    fn json_needs_no_value_and_takes_one() {
        for (word, expected) in [("--json", true), ("--json=true", true), ("--json=false", false)] {
            use clap::FromArgMatches as _;
            let command = RunFlags::augment_args(Command::new("run").no_binary_name(true));
            let matches = command.try_get_matches_from([word]).unwrap();
            assert_eq!(RunFlags::from_arg_matches(&matches).unwrap().json, Some(expected));
        }
    }
}
