//! The only list of options, for flags, environment and file.

use std::path::PathBuf;

use baton_kit::{
    config::{
        ANY_URL, OptionType, SWITCH, URL, choice, list, number, parsed, path, range, switch, text, words,
    },
    endpoint::listen_address,
    options,
};
use baton_memory::ids::OwnerId;
use baton_mesh::{IpNetwork, Multiaddr};
use baton_models::embed::Roles;
use baton_proto::ids::RightId;
use clap::Args;

use super::values::{EmbedderSetting, ROLES};
use crate::owners::OwnerAdmission;

/// Most addresses, servers or networks in a list.
const MAX_ADDRESSES: usize = 32;
/// Most accounts, and most serial numbers.
const MAX_OWNERS: usize = 10_000;
const ANY_COUNT: u64 = i64::MAX as u64;
const NETWORKS: &str = "networks such as \"192.168.1.0/24\", or addresses";
const ANY_FILE: &str = "a file";

/// An address of an HTTP server.
const HTTP: OptionType<String> = OptionType::new(
    "ADDRESS",
    |_, text| listen_address(text).map(|address| address.to_string()),
    |value| value.clone().into(),
);

options! {
    /// Options as given, all optional. Flags, environment and file share them.
    #[derive(Args, Clone, Debug, Default, PartialEq)]
    pub struct Options, "BATON_RELAYER_", table {
        "HTTP" {
            /// Address of the HTTP server; put a TLS proxy in front before you open it to others
            http: Option<String> =
                HTTP, text("an address such as \"localhost:8000\"").default("\"127.0.0.1:8000\"");
            /// URL at which clients reach the HTTP server
            public_url: Option<String> = URL, text(ANY_URL).in_words("from their Host header");
            /// Most requests per minute of one owner; a subnet (a /24 of IPv4, a /48 of IPv6) has five times as many
            requests_per_minute: Option<u32> = number(), range(2, 100_000_000).default("600");
            /// Addresses or networks of your proxies, such as 127.0.0.1; they report a client's address in
            /// X-Forwarded-For
            [long = "trusted-proxy"] trusted_proxies: Option<Vec<IpNetwork>> =
                parsed::<IpNetwork>("NETWORK"), list(MAX_ADDRESSES, NETWORKS).default("[]").in_words("none");
            /// Networks of your own machines, which have no limit by subnet for requests and sealed turns
            [long = "own-network"] own_networks: Option<Vec<IpNetwork>> =
                parsed::<IpNetwork>("NETWORK"), list(MAX_ADDRESSES, NETWORKS).default("[]").in_words("none");
        }
        "Owners" {
            /// Refuse signed requests that do not name this relayer in their query: another relayer of the same
            /// owner could have sent them on
            require_audience: Option<bool> = SWITCH, switch("false");
            /// Who may have memory here: any account key, the allowed_owners, or also holders of invitations
            owners: Option<OwnerAdmission> =
                choice("WHO"), text("\"open\", \"listed\" or \"invited\"")
                    .in_words("open while http is on loopback without public_url or trusted_proxies, else listed");
            /// Account ids of listed owners; repeat, or separate with commas
            [long = "allow-owner"] allowed_owners: Option<Vec<OwnerId>> =
                parsed::<OwnerId>("ACCOUNT"), list(MAX_OWNERS, "account ids, each 0x and 64 hex characters")
                    .default("[]")
                    .in_words("none");
            /// Serial numbers of revoked invitations; repeat, or separate with commas
            [long = "revoke-invitation"] revoked_invitations: Option<Vec<RightId>> =
                parsed::<RightId>("ID"), list(MAX_OWNERS, "ids, each 32 hex characters")
                    .default("[]")
                    .in_words("none");
            /// Most owners
            max_owners: Option<u32> = number(), range(1, 1_000_000_000).default("10000");
            /// Most bytes of the embedded database with the key files; 0 is no limit
            max_bytes: Option<u64> = number(), range(0, ANY_COUNT).default("68719476736");
            /// Most blobs per hour at the publishers, for all owners; 0 is no limit
            blobs_per_hour: Option<u64> = number(), range(0, ANY_COUNT).default("1000");
            /// Most calls of model_url per hour, for all owners; one has a tenth of them; 0 is no limit
            model_calls_per_hour: Option<u64> = number(), range(0, ANY_COUNT).default("6000");
        }
        "Memory" {
            /// File (mode 600) with postgres://user:password@host/database; sealed records then lie there, and
            /// several relayers can share them
            postgres_url_file: Option<PathBuf> =
                path("FILE"), text(ANY_FILE).in_words("an embedded database in the data folder");
            /// Folder of the owners' key files. With it, the master key and the database, anyone can read
            /// everything: back it up apart from the database
            keys_dir: Option<PathBuf> = path("DIR"), text("a folder").in_words("keys/ in the data folder");
            /// Embedder; auto is static once its model is pulled, else hashing
            embedder: Option<EmbedderSetting> =
                choice("EMBEDDER"), text("\"auto\", \"hashing\", \"static\", \"minilm\" or \"endpoint\"")
                    .default("\"auto\"");
            /// Folder of downloaded models
            model_dir: Option<PathBuf> = path("DIR"), text("a folder").in_words("models/ in the data folder");
            /// Base URL of an embedding endpoint, such as http://127.0.0.1:8080/v1; it receives the owners' texts
            embedder_url: Option<String> = URL, text(ANY_URL).in_words("none");
            /// Name of the model at the embedding endpoint
            embedder_model: Option<String> = words("NAME"), text("a model's name").in_words("none");
            /// Dimensions of the model at the embedding endpoint
            embedder_dimensions: Option<u32> = number(), range(1, 1_000_000).in_words("none");
            /// How the embedding endpoint tells queries from documents, such as "prefix:query: |passage: ", or
            /// "input_type:search_query|search_document"
            embedder_roles: Option<Roles> =
                ROLES, text("\"none\", \"prefix:QUERY|DOCUMENT\" or \"input_type:QUERY|DOCUMENT\"").default("\"none\"");
            /// File (mode 600) with the embedding endpoint's key
            embedder_key_file: Option<PathBuf> = path("FILE"), text(ANY_FILE).in_words("none");
            /// Base URL of a language model that judges, extracts and answers; it receives turns
            model_url: Option<String> = URL, text(ANY_URL).in_words("none, and rules decide");
            /// Name of the language model
            model: Option<String> = words("NAME"), text("a model's name").in_words("none");
            /// File (mode 600) with the language model's key
            model_key_file: Option<PathBuf> = path("FILE"), text(ANY_FILE).in_words("none");
            /// Model (baton nodes lists them) of third-party nodes that judge and extract, for owners who allow
            /// it; not used beside model_url
            through_nodes: Option<String> = words("NAME"), text("a model's name or id").in_words("none");
        }
        "Walrus" {
            /// Base URL of a Walrus publisher, in order of preference; repeat, or separate with commas
            [long = "publisher"] publishers: Option<Vec<String>> =
                URL, list(MAX_ADDRESSES, ANY_URL).default("[]").in_words("none, and contents stay local");
            /// Base URL of a Walrus aggregator, in order of preference; repeat, or separate with commas
            [long = "aggregator"] aggregators: Option<Vec<String>> =
                URL, list(MAX_ADDRESSES, ANY_URL).default("[]").in_words("none");
            /// File (mode 600) with the publishers' bearer token
            [conflicts_with = "publisher_secret_file"] publisher_token_file: Option<PathBuf> =
                path("FILE"), text(ANY_FILE).in_words("none");
            /// File (mode 600) with the secret to make a token for each PUT
            publisher_secret_file: Option<PathBuf> = path("FILE"), text(ANY_FILE).in_words("none");
            /// Number of shards of the storage network (1000 on Walrus's mainnet and testnet)
            shards: Option<u16> =
                number(), range(4, 2048).in_words("the store's number; 1000 if it announces none");
            /// Storage duration of contents, in epochs
            epochs: Option<u32> = number(), range(1, 53).default("53");
            /// Base URL of the head index, for conversations over HTTP
            heads: Option<String> = URL, text(ANY_URL).in_words("none");
        }
        "Network" {
            /// Let echo test engines serve conversations over HTTP and answer for through_nodes
            allow_echo: Option<bool> = SWITCH, switch("false");
            /// Listen addresses for sealed turns; repeat, or separate with commas
            listen: Option<Vec<Multiaddr>> =
                parsed::<Multiaddr>("MULTIADDR"), list(MAX_ADDRESSES, "addresses such as \"/ip4/0.0.0.0/tcp/4101\"")
                    .default("[\"/ip4/0.0.0.0/tcp/4101\"]");
            /// Addresses of bootstrap nodes; repeat, or separate with commas
            bootstrap: Option<Vec<Multiaddr>> =
                parsed::<Multiaddr>("MULTIADDR"), list(MAX_ADDRESSES, "addresses such as \"/ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...\"")
                    .default("[]")
                    .in_words("none");
            /// Discover nodes on the local network
            mdns: Option<bool> = SWITCH, switch("true");
        }
    }
}
