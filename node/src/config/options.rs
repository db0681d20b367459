//! The one list of options: flags of `run`, environment variables and keys of the file.

use std::path::PathBuf;

use baton_kit::{
    config::{
        ANY_URL, SWITCH, URL, choice, list, number, one_or_more, parsed, path, range, switch, text, words,
    },
    options,
};
use baton_mesh::{IpNetwork, Multiaddr};
use baton_proto::ids::{PublicKey, RightId};
use clap::Args;

use crate::service::Step;

use super::{
    AdminSetting, HeadsSetting,
    values::{ADDRESS, ADMIN, EngineChoice, HEADS, LogFormat, LogLevel},
};

/// Maximum addresses in a list; a node record carries no more.
const MAX_ADDRESSES: usize = 16;
/// Maximum bootstrap peers: more would flood the network at start, and the mesh refuses them.
const MAX_BOOTSTRAP: usize = 32;
/// Maximum configured relays: a record has room for a few addresses on each.
const MAX_RELAYS: usize = 4;
/// Maximum networks in a list: each new connection is compared with them.
const MAX_NETWORKS: usize = 16;
/// Maximum publishers, and maximum aggregators: a failing turn may wait for each.
const MAX_STORES: usize = 8;
/// Maximum further models. With the main and the embedding model, they take half of a node record's capacity.
const MAX_MODELS: usize = 14;
/// Maximum issuers of grants: a node has one, or shares a few with other nodes.
const MAX_ISSUERS: usize = 16;
/// Maximum revoked grants; expired ones need no entry.
const MAX_REVOKED: usize = 1024;

const NETWORKS: &str = "networks such as \"192.168.1.0/24\", or addresses";
const LISTEN: &str = "addresses such as \"/ip4/0.0.0.0/tcp/4001\" or \"/ip4/0.0.0.0/udp/4001/quic-v1\"";

// A slot holds a KV cache, and a waiting turn holds up to eight megabytes of request. So the ranges bound
// both well below a machine's memory.
options! {
    /// Options of `run`; an option that is not given is `None`. The file's options have the same type.
    #[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
    pub struct RunFlags, "BATON_NODE_", table {
        "" {
            /// Configuration file (TOML); default: config.toml in the data directory, if present
            [value_name = "FILE"] config: Option<PathBuf>;
            /// Folder of keys, journal and models
            data_dir: Option<PathBuf> =
                path("DIR"), text("a folder")
                    .in_words("$XDG_DATA_HOME/baton-node or ~/.local/share/baton-node");
        }
        "Network" {
            /// Address to listen on; repeat, or separate with commas
            listen: Option<Vec<Multiaddr>> =
                ADDRESS, list(MAX_ADDRESSES, LISTEN)
                    .default("[\"/ip4/0.0.0.0/tcp/4001\", \"/ip4/0.0.0.0/udp/4001/quic-v1\"]");
            /// Further address under which peers reach this node
            external: Option<Vec<Multiaddr>> =
                ADDRESS, list(MAX_ADDRESSES, "addresses such as \"/ip4/203.0.113.7/tcp/4001\"")
                    .default("[]")
                    .in_words("none");
            /// Peer to stay connected to, preferably with its /p2p/ identity
            bootstrap: Option<Vec<Multiaddr>> =
                ADDRESS, list(MAX_BOOTSTRAP, "addresses such as \"/ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...\"")
                    .default("[]")
                    .in_words("none");
            /// Find peers on the local network by multicast
            mdns: Option<bool> = SWITCH, switch("true");
            /// Find peers, and be found, through the DHT and gossip
            discovery: Option<bool> = SWITCH, switch("true");
            /// Test reachability, use relays if this node cannot be reached, and punch holes through NATs
            nat: Option<bool> = SWITCH, switch("true");
            /// Request a port from the router (UPnP)
            upnp: Option<bool> = SWITCH, switch("true");
            /// Relay circuits for nodes that cannot be reached otherwise
            relay: Option<bool> = SWITCH, switch("true");
            /// Relay to stay reachable through at all times, with its /p2p/ identity
            relays: Option<Vec<Multiaddr>> =
                ADDRESS, list(MAX_RELAYS, "addresses such as \"/ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...\"")
                    .default("[]")
                    .in_words("those found, where this node cannot be reached");
            /// Proxy before the listeners on TCP and WebSocket, which names each client by the PROXY protocol;
            /// its other connections are refused
            proxies: Option<Vec<IpNetwork>> =
                parsed::<IpNetwork>("NETWORK"), list(MAX_NETWORKS, NETWORKS).default("[]").in_words("none");
        }
        "Store" {
            /// Base URL of a Walrus publisher, for writing blobs, in order of preference; repeat, or separate
            /// with commas
            publisher: Option<Vec<String>> =
                URL, one_or_more(MAX_STORES, ANY_URL).default("\"http://127.0.0.1:31415\"");
            /// Base URL of a Walrus aggregator, for reading blobs, in order of preference; repeat, or
            /// separate with commas
            aggregator: Option<Vec<String>> =
                URL, one_or_more(MAX_STORES, ANY_URL).in_words("the publishers' URLs");
            /// File with the publishers' bearer token
            publisher_token_file: Option<PathBuf> = path("FILE"), text("a file");
            /// File with the secret shared with the publishers, for signing a single-use token (JWT) for each
            /// PUT
            publisher_secret_file: Option<PathBuf> = path("FILE"), text("a file");
            /// Base URL of the store with the head index for finding sessions, or none
            heads: Option<HeadsSetting> =
                HEADS, text("a URL as for publisher, or \"none\"").in_words("the first publisher's URL");
            /// Shards of the Walrus network, which determine blob IDs (1000 on mainnet and testnet)
            shards: Option<u16> =
                number(), range(4, 2048).in_words("the store's number; 1000 if it announces none");
        }
        "Model" {
            /// Model to serve; fetched at the first start if missing
            model: Option<String> =
                words("NAME"), text("a name from `baton-node models list`")
                    .default("\"smollm2-135m-instruct\"");
            /// Further model to offer; repeat, or separate with commas
            more_models: Option<Vec<String>> =
                words("NAME"), list(MAX_MODELS, "names from `baton-node models list`")
                    .default("[]")
                    .in_words("none");
            /// Memory for models and their caches, in megabytes; models are loaded and unloaded to stay below
            /// it
            model_memory_mb: Option<u32> =
                number(), range(0, 16_777_216).default("0").in_words("0, which is no bound");
            /// Minutes without a turn before a model is unloaded; the next turn loads it again
            model_idle_minutes: Option<u32> =
                number(), range(0, 525_600).default("0").in_words("0, which is never");
            /// Folder of model files
            model_dir: Option<PathBuf> =
                path("DIR"), text("a folder").in_words("baton/models in the user's cache folder");
            /// Model for text embeddings, which the node then offers; fetched at the first start if missing
            embedding_model: Option<String> = words("NAME"), text("\"all-minilm-l6-v2\"").in_words("none");
            /// Engine that produces tokens
            engine: Option<EngineChoice> =
                choice("KIND"), text("\"native\", \"proxied\" or \"echo\"").default("\"native\"");
            /// With --engine proxied: base URL of an OpenAI-compatible server, before /v1/chat/completions
            proxied_url: Option<String> = URL, text(ANY_URL);
            /// With --engine proxied: name of the model at that server
            proxied_model: Option<String> = words("NAME"), text("a model's name");
            /// With --engine proxied: file with the server's bearer token, if it needs one
            proxied_key_file: Option<PathBuf> = path("FILE"), text("a file");
            /// Maximum tokens of a prompt and its answer together
            context_tokens: Option<u32> =
                number(), range(256, 1_048_576)
                    .default("4096")
                    .in_words("4096, or the model's own if that is less");
            /// Maximum tokens of an answer
            max_output_tokens: Option<u32> = number(), range(16, 32 * 1024).default("2048");
            /// Compute threads
            threads: Option<u32> = number(), range(1, 1024).in_words("one for each core");
            /// Memory for the keys and values of all turns, including those cached for next turns, in
            /// megabytes
            kv_mb: Option<u32> = number(), range(16, 16_777_216).default("1024");
        }
        "Limits and prices" {
            /// Turns served at once
            slots: Option<u32> = number(), range(1, 256).default("8");
            /// Turns a minute without a grant from one subnet (/24 and /48)
            turns_per_minute: Option<u32> = number(), range(1, 1_000_000).default("600");
            /// Tokens an hour without a grant for one subnet; 16 tokens that are read count as one (0 is no limit)
            tokens_per_hour: Option<u64> = number(), range(0, 1_000_000_000_000).default("1000000");
            /// Storage an hour without a grant for one subnet, in mebibytes times epochs; a turn's blob counts as 13 (0 is
            /// no limit)
            storage_per_hour: Option<u64> = number(), range(0, 1_000_000_000_000).default("200000");
            /// Network of your own machines and relayers, whose peers have no limits and are never banned, except on
            /// WebSockets; repeat, or separate with commas
            own_networks: Option<Vec<IpNetwork>> =
                parsed::<IpNetwork>("NETWORK"), list(MAX_NETWORKS, NETWORKS).default("[]").in_words("none");
            /// Public key of an accepted grant issuer; repeat, or separate with commas
            grant_issuers: Option<Vec<PublicKey>> =
                parsed::<PublicKey>("KEY"), list(MAX_ISSUERS, "public keys of issuers in hex")
                    .default("[]")
                    .in_words("none");
            /// Refuse turns without a grant
            grants_required: Option<bool> = SWITCH, switch("false");
            /// Id of a revoked grant, which also revokes its descendants; repeat, or separate with commas
            grants_revoked: Option<Vec<RightId>> =
                parsed::<RightId>("ID"), list(MAX_REVOKED, "ids of grants in hex")
                    .default("[]")
                    .in_words("none");
            /// Maximum epochs to store a turn's blob, at your publisher's expense (0 counts as 1)
            max_epochs: Option<u32> = number(), range(0, 53).default("53");
            /// The same for a turn without a grant, at most max_epochs
            unknown_max_epochs: Option<u32> = number(), range(0, 53).default("5");
            /// Price of a thousand input tokens, in millionths of your unit
            input_price: Option<u64> = number(), range(0, 1_000_000_000_000).default("0");
            /// Price of a thousand output tokens, in millionths of your unit
            output_price: Option<u64> = number(), range(0, 1_000_000_000_000).default("0");
            /// Price of a mebibyte stored for an epoch, in millionths of your unit; a turn's blob counts as 13
            storage_price: Option<u64> = number(), range(0, 1_000_000_000_000).default("0");
        }
        "Resources" {
            /// Maximum connections opened by other peers
            max_connections: Option<u32> = number(), range(8, 65_536).default("512");
            /// Memory for recently read blobs of histories, in megabytes
            cache_mb: Option<u32> = number(), range(0, 65_536).default("64");
            /// Disk space for blobs in the journal, in megabytes; blobs that are not stored elsewhere yet are
            /// always kept
            journal_mb: Option<u32> = number(), range(16, 1_048_576).default("512");
        }
        "Operation" {
            /// Address for status and metrics (HTTP, this machine only), or none
            admin: Option<AdminSetting> =
                ADMIN, text("a loopback address such as \"127.0.0.1:9464\", \"localhost:9464\" or \":9464\", or \"none\"")
                    .default("\"127.0.0.1:9464\"");
            /// Log level on standard error
            log: Option<LogLevel> =
                choice("LEVEL"), text("\"error\", \"warn\", \"info\", \"debug\" or \"trace\"")
                    .default("\"info\"");
            /// Log format
            log_format: Option<LogFormat> =
                choice("FORMAT"), text("\"pretty\", \"compact\" or \"json\"").default("\"pretty\"");
            /// Print events (ready, stopped) on standard output, one JSON object a line
            [num_args = 0..=1, require_equals = true, default_missing_value = "true"] json: Option<bool> =
                SWITCH, switch("false");
            /// Seconds for running turns to finish at shutdown
            drain_seconds: Option<u32> = number(), range(0, 3600).default("30");
            /// With --engine echo: milliseconds before each token
            echo_delay_ms: Option<u32> = number(), range(0, 60_000).default("0");
        }
        "" {
            /// Pause the process at this step of a turn, for crash tests
            [value_name = "STEP", hide = true] pause_at: Option<Step>;
            /// Clock error in seconds: positive for ahead, negative for behind. For tests
            [value_name = "SECONDS", hide = true, allow_negative_numbers = true] clock_offset: Option<i64>;
        }
    }
}
