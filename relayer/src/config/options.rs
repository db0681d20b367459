//! The only list of options, for flags, environment and file.

use std::path::PathBuf;

use baton_kit::options;
use baton_mesh::Multiaddr;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::owners::OwnerAdmission;

use super::values::{
    AccountSetting, EmbedderSetting, HttpSetting, NetworkSetting, RolesSetting, SerialSetting, StorageSetting,
};

options! {
    /// Options as given, all optional. Flags, environment and file share them.
    #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Options, "BATON_RELAYER_" {
        "HTTP" {
            /// Address of the HTTP server, or `off` [default: 127.0.0.1:8000]
            [value_name = "ADDRESS"] http: Option<HttpSetting>;
            /// URL at which clients reach the HTTP server [default: from their Host header]
            [value_name = "URL"] public_url: Option<String>;
            /// Most requests per minute of one owner [default: 600]
            [value_name = "N"] requests_per_minute: Option<u32>;
            /// Most requests per minute of one key [default: 300]
            [value_name = "N"] key_requests_per_minute: Option<u32>;
            /// Most requests per minute from one subnet: a /24 of IPv4, a /48 of IPv6 [default: 3000]
            [value_name = "N"] subnet_requests_per_minute: Option<u32>;
            /// Most concurrent requests; a subnet has a quarter of them, a key a sixteenth [default: 256]
            [value_name = "N"] max_requests: Option<u32>;
            /// Most concurrent bodies of more than 2 MiB, such as imports [default: 4]
            [value_name = "N"] max_large_bodies: Option<u32>;
            /// Header in which a proxy reports the client's address, such as x-forwarded-for; it counts from
            /// trusted_proxies alone [default: clients connect directly]
            [value_name = "HEADER"] client_address_header: Option<String>;
            /// Addresses or networks of the proxies that client_address_header is believed from, such as 127.0.0.1
            [long = "trusted-proxy", id = "trusted_proxies", value_delimiter = ',', value_name = "NETWORK"] trusted_proxies: Vec<NetworkSetting>;
            /// Networks of your own machines, which have no limit by subnet for requests and sealed turns
            [long = "own-network", id = "own_networks", value_delimiter = ',', value_name = "NETWORK"] own_networks: Vec<NetworkSetting>;
        }
        "Owners" {
            /// Refuse signed requests that do not name this relayer in their query [default: false]
            [value_name = "BOOL"] require_audience: Option<bool>;
            /// Who may have memory here: open, listed or invited [default: open while http is on loopback
            /// without public_url or client_address_header, else listed]
            [value_name = "WHO"] owners: Option<OwnerAdmission>;
            /// Account ids of listed owners, 0x and 64 hex characters; repeatable
            [long = "allow-owner", id = "allowed_owners", value_delimiter = ',', value_name = "ACCOUNT"] allowed_owners: Vec<AccountSetting>;
            /// Serial numbers of revoked invitations
            [long = "revoke-invitation", id = "revoked_invitations", value_delimiter = ',', value_name = "SERIAL"] revoked_invitations: Vec<SerialSetting>;
            /// Most owners [default: 10000]
            [value_name = "N"] max_owners: Option<u32>;
            /// Most bytes of the embedded database with the key files; 0 is no limit [default: 68719476736]
            [value_name = "N"] max_bytes: Option<u64>;
            /// Most blobs per hour at the publishers, for all owners; 0 is no limit [default: 1000]
            [value_name = "N"] blobs_per_hour: Option<u64>;
            /// Most calls of model_url per hour, for all owners; 0 is no limit [default: 6000]
            [value_name = "N"] model_calls_per_hour: Option<u64>;
            /// Most calls of model_url per hour for one owner; 0 is no limit [default: 600]
            [value_name = "N"] owner_model_calls_per_hour: Option<u64>;
        }
        "Memory" {
            /// Storage of sealed records: embedded or postgres [default: embedded]
            [value_name = "STORAGE"] storage: Option<StorageSetting>;
            /// File (mode 600) with the URL of the Postgres database
            [value_name = "FILE"] postgres_url_file: Option<PathBuf>;
            /// Folder of the owners' key files, outside the database [default: keys/ in the data folder]
            [value_name = "DIR"] keys_dir: Option<PathBuf>;
            /// Most items per owner [default: 250000]
            [value_name = "N"] max_items: Option<u64>;
            /// Embedder: auto, hashing, static, minilm or endpoint [default: auto]
            [value_name = "EMBEDDER"] embedder: Option<EmbedderSetting>;
            /// Folder of downloaded models [default: models/ in the data folder]
            [value_name = "DIR"] model_dir: Option<PathBuf>;
            /// Base URL of an embedding endpoint, such as http://127.0.0.1:8080/v1; it receives the texts
            [value_name = "URL"] embedder_url: Option<String>;
            /// Name of the model at the embedding endpoint
            [value_name = "NAME"] embedder_model: Option<String>;
            /// Dimensions of the model at the embedding endpoint
            [value_name = "N"] embedder_dimensions: Option<u32>;
            /// How the embedding endpoint distinguishes queries from documents: none, prefix or input_type
            /// [default: none]
            [value_name = "ROLES"] embedder_roles: Option<RolesSetting>;
            /// Prefix or input_type of queries
            [value_name = "TEXT"] embedder_query_role: Option<String>;
            /// Prefix or input_type of documents
            [value_name = "TEXT"] embedder_document_role: Option<String>;
            /// File (mode 600) with the embedding endpoint's key
            [value_name = "FILE"] embedder_key_file: Option<PathBuf>;
            /// Base URL of a language model that judges, extracts and answers; it receives turns [default:
            /// rules alone]
            [value_name = "URL"] model_url: Option<String>;
            /// Name of the language model
            [value_name = "NAME"] model: Option<String>;
            /// File (mode 600) with the language model's key
            [value_name = "FILE"] model_key_file: Option<PathBuf>;
            /// Let third-party nodes judge and extract, for owners who allow it; ignored with model_url
            /// [default: false]
            [value_name = "BOOL"] through_nodes: Option<bool>;
            /// Name or id of the language model for through_nodes
            [value_name = "NAME"] through_nodes_model: Option<String>;
        }
        "Walrus" {
            /// Base URL of a Walrus publisher; repeatable, in order of preference [default: contents stay
            /// local]
            [long = "publisher", id = "publishers", value_delimiter = ',', value_name = "URL"] publishers: Vec<String>;
            /// Base URL of a Walrus aggregator; repeatable, in order of preference
            [long = "aggregator", id = "aggregators", value_delimiter = ',', value_name = "URL"] aggregators: Vec<String>;
            /// File (mode 600) with the publishers' bearer token
            [conflicts_with = "publisher_secret_file", value_name = "FILE"] publisher_token_file: Option<PathBuf>;
            /// File (mode 600) with the secret to make a token for each PUT
            [value_name = "FILE"] publisher_secret_file: Option<PathBuf>;
            /// Number of shards of the storage network [default: 1000]
            [value_name = "N"] shards: Option<u16>;
            /// Storage duration of contents, in epochs [default: 53]
            [value_name = "N"] epochs: Option<u32>;
            /// Base URL of the head index, for conversations over HTTP
            [value_name = "URL"] heads: Option<String>;
        }
        "Network" {
            /// Let echo test engines serve conversations over HTTP and answer for through_nodes [default:
            /// false]
            [value_name = "BOOL"] allow_echo: Option<bool>;
            /// Listen addresses for sealed turns [default: /ip4/0.0.0.0/tcp/4101]
            [value_delimiter = ',', value_name = "MULTIADDR"] listen: Vec<Multiaddr>;
            /// Addresses of bootstrap nodes
            [value_delimiter = ',', value_name = "MULTIADDR"] bootstrap: Vec<Multiaddr>;
            /// Discover nodes on the local network [default: true]
            [value_name = "BOOL"] mdns: Option<bool>;
            /// Seconds for running turns to finish at shutdown [default: 30]
            [value_name = "N"] drain_seconds: Option<u32>;
        }
    }
}
