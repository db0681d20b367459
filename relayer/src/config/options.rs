//! The only list of options, for flags, environment and file.

use std::path::PathBuf;

use baton_command::options;
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
            http: Option<HttpSetting>;
            /// URL at which clients reach the HTTP server [default: from their Host header]
            public_url: Option<String>;
            /// Most requests per minute of one owner [default: 600]
            requests_per_minute: Option<u32>;
            /// Most requests per minute of one key [default: 300]
            key_requests_per_minute: Option<u32>;
            /// Most requests per minute from one subnet: a /24 of IPv4, a /48 of IPv6 [default: 3000]
            subnet_requests_per_minute: Option<u32>;
            /// Most concurrent requests; a subnet has a quarter of them, a key a sixteenth [default: 256]
            max_requests: Option<u32>;
            /// Most concurrent bodies of more than 2 MiB, such as imports [default: 4]
            max_large_bodies: Option<u32>;
            /// Header in which a proxy reports the client's address, such as x-forwarded-for; it counts from
            /// trusted_proxies alone [default: clients connect directly]
            client_address_header: Option<String>;
            /// Addresses or networks of the proxies that client_address_header is believed from, such as 127.0.0.1
            [long = "trusted-proxy", id = "trusted_proxies", value_delimiter = ','] trusted_proxies: Vec<NetworkSetting>;
            /// Networks of your own machines, which have no limit by subnet for requests and sealed turns
            [long = "own-network", id = "own_networks", value_delimiter = ','] own_networks: Vec<NetworkSetting>;
        }
        "Owners" {
            /// Refuse signed requests that do not name this relayer in their query [default: false]
            require_audience: Option<bool>;
            /// Who may have memory here: open, listed or invited [default: open while http is on loopback
            /// without public_url or client_address_header, else listed]
            owners: Option<OwnerAdmission>;
            /// Account ids of listed owners, 0x and 64 hex characters; repeatable
            [long = "allow-owner", id = "allowed_owners", value_delimiter = ','] allowed_owners: Vec<AccountSetting>;
            /// Serial numbers of revoked invitations
            [long = "revoke-invitation", id = "revoked_invitations", value_delimiter = ','] revoked_invitations: Vec<SerialSetting>;
            /// Most owners [default: 10000]
            max_owners: Option<u32>;
            /// Most bytes of the embedded database with the key files; 0 is no limit [default: 68719476736]
            max_bytes: Option<u64>;
            /// Most blobs per hour at the publishers, for all owners; 0 is no limit [default: 1000]
            blobs_per_hour: Option<u64>;
            /// Most calls of model_url per hour, for all owners; 0 is no limit [default: 6000]
            model_calls_per_hour: Option<u64>;
            /// Most calls of model_url per hour for one owner; 0 is no limit [default: 600]
            owner_model_calls_per_hour: Option<u64>;
        }
        "Memory" {
            /// Storage of sealed records: embedded or postgres [default: embedded]
            storage: Option<StorageSetting>;
            /// File (mode 600) with the URL of the Postgres database
            postgres_url_file: Option<PathBuf>;
            /// Folder of the owners' key files, outside the database [default: keys/ in the data folder]
            keys_dir: Option<PathBuf>;
            /// Most items per owner [default: 250000]
            max_items: Option<u64>;
            /// Embedder: auto, hashing, static, minilm or endpoint [default: auto]
            embedder: Option<EmbedderSetting>;
            /// Folder of downloaded models [default: models/ in the data folder]
            model_dir: Option<PathBuf>;
            /// Base URL of an embedding endpoint, such as http://127.0.0.1:8080/v1; it receives the texts
            embedder_url: Option<String>;
            /// Name of the model at the embedding endpoint
            embedder_model: Option<String>;
            /// Dimensions of the model at the embedding endpoint
            embedder_dimensions: Option<u32>;
            /// How the embedding endpoint distinguishes queries from documents: none, prefix or input_type
            /// [default: none]
            embedder_roles: Option<RolesSetting>;
            /// Prefix or input_type of queries
            embedder_query_role: Option<String>;
            /// Prefix or input_type of documents
            embedder_document_role: Option<String>;
            /// File (mode 600) with the embedding endpoint's key
            embedder_key_file: Option<PathBuf>;
            /// Base URL of a language model that judges, extracts and answers; it receives turns [default:
            /// rules alone]
            model_url: Option<String>;
            /// Name of the language model
            model: Option<String>;
            /// File (mode 600) with the language model's key
            model_key_file: Option<PathBuf>;
            /// Let third-party nodes judge and extract, for owners who allow it; ignored with model_url
            /// [default: false]
            through_nodes: Option<bool>;
            /// Name or id of the language model for through_nodes
            through_nodes_model: Option<String>;
        }
        "Walrus" {
            /// Base URL of a Walrus publisher; repeatable, in order of preference [default: contents stay
            /// local]
            [long = "publisher", id = "publishers", value_delimiter = ','] publishers: Vec<String>;
            /// Base URL of a Walrus aggregator; repeatable, in order of preference
            [long = "aggregator", id = "aggregators", value_delimiter = ','] aggregators: Vec<String>;
            /// File (mode 600) with the publishers' bearer token
            [conflicts_with = "publisher_secret_file"] publisher_token_file: Option<PathBuf>;
            /// File (mode 600) with the secret to make a token for each PUT
            publisher_secret_file: Option<PathBuf>;
            /// Number of shards of the storage network [default: 1000]
            shards: Option<u16>;
            /// Storage duration of contents, in epochs [default: 53]
            epochs: Option<u32>;
            /// Base URL of the head index, for conversations over HTTP
            heads: Option<String>;
        }
        "Network" {
            /// Let echo test engines serve conversations over HTTP and answer for through_nodes [default:
            /// false]
            allow_echo: Option<bool>;
            /// Listen addresses for sealed turns [default: /ip4/0.0.0.0/tcp/4101]
            [value_delimiter = ','] listen: Vec<Multiaddr>;
            /// Addresses of bootstrap nodes
            [value_delimiter = ','] bootstrap: Vec<Multiaddr>;
            /// Discover nodes on the local network [default: true]
            mdns: Option<bool>;
            /// Seconds for running turns to finish at shutdown [default: 30]
            drain_seconds: Option<u32>;
        }
    }
}
