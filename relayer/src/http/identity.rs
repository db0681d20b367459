//! The relayer's description of itself at `/relayer`: how to reach it, and where its memory goes.
//!
//! It is open, so it names no owner, counts none, and quotes no address that the operator configured but its own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reads the current identity. It must not block: anyone may ask.
pub type IdentitySource = Arc<dyn Fn() -> RelayerIdentity + Send + Sync>;

/// The answer of `/relayer`. A client that knows only the HTTP address finds the libp2p addresses here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RelayerIdentity {
    /// The relayer's public key, 64 hex characters.
    pub relayer: String,
    /// The URL at which it serves, if the operator set `public_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The relayer's signature over that URL, 128 hex characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_signature: Option<String>,
    /// Its libp2p peer id, which derives from the key.
    pub peer_id: String,
    /// Its libp2p addresses with `/p2p/`, the widest reachable first: confirmed external addresses, those of
    /// this machine's networks, loopback. Empty while it listens nowhere.
    pub addresses: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Its libp2p peers.
    pub peers: PeerCounts,
    /// What memory is made with, and who reads it.
    pub memory: MemoryFacts,
    /// Whether it holds conversations over HTTP (`POST /v1/chat`).
    pub conversations: bool,
}

/// Numbers of libp2p peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PeerCounts {
    /// Peers with an open connection.
    pub connected: u64,
    /// All known peers.
    pub known: u64,
}

/// The parts of memory, without addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFacts {
    /// Storage of the sealed records: `embedded` or `postgres`.
    pub storage: String,
    /// Id of the embedder: model, version and dimensions.
    pub embedder: String,
    /// What judges and extracts: `rules`, `endpoint` (a language model of the operator) or `nodes`
    /// (third-party nodes, for owners that allow it).
    pub judge: String,
    /// Where encrypted contents are: `local`, or `walrus` for stores outside.
    pub contents: String,
}
