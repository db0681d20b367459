//! A local endpoint that speaks the APIs of OpenAI, Anthropic and Ollama. Existing programs keep their
//! conversations in sealed sessions without knowing of them.
//!
//! An adapter of each API (`apis`) reads its requests into one inner form (`form`), and writes the steps of an
//! answer. `sessions` finds the session of a request, `turns` runs its turn, `state` holds what requests share. No adapter knows another, so a session that began over one API goes on over another.
//!
//! A program sends the whole conversation with every request. The messages before its new ones identify the
//! session (`state/session_index.rs`):
//! - If all of them match, the session continues.
//! - If they diverge at some point, the request becomes an edit of the last turn or a branch.
//! - If no session matches, a new session begins with all messages.
//!
//! No earlier turn is lost.
//!
//! The endpoint serves only programs with the bearer key or a key with a name, under a loopback name or an
//! allowed host. It serves pages of another origin only if that origin is allowed. A key with a name sees the
//! sessions of its project alone.
//!
//! An endpoint needs a client with an open home folder:
//!
//! ```no_run
//! use baton_client::{Client, TurnInput};
//! use baton_gateway::{Gateway, GatewayConfig};
//! use tokio::net::TcpListener;
//! use zeroize::Zeroizing;
//!
//! # async fn serve(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let config = GatewayConfig {
//!     key: Some(Zeroizing::new("sk-example".to_owned())),
//!     ..GatewayConfig::new(TurnInput::new(Vec::new()))
//! };
//! let gateway = Gateway::open(client, config).await?;
//! let listener = TcpListener::bind("127.0.0.1:8788").await?;
//! // Serves until this future is done.
//! gateway.serve(listener, std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

// Requests of programs and pages come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

mod apis;
mod clock;
mod form;
mod guard;
mod http;
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page has no file of keys"))]
mod keys;
mod memory;
mod models;
mod privacy;
mod routes;
#[cfg(not(target_family = "wasm"))]
mod serve;
mod sessions;
mod state;
mod turns;

pub use keys::{
    KeyListError, KeyListFile, KeyQuotas, MAX_KEY_NAME_BYTES, MAX_KEYS, NamedKey,
    accounts::{NamedKeys, read_usage},
    generate_key,
    usage::{KeyUsage, UsageCounts, UsageTable},
};
pub use memory::{
    GatewayMemory, HintExtent, MemoryEntry, MemoryFailure, MemoryFilter, MemoryFuture, MemorySharing,
};
pub use privacy::{Addressee, PrivacySettings};
#[cfg(not(target_family = "wasm"))]
pub use serve::{
    acme::AcmeSettings,
    is_loopback,
    tls::{TlsError, TlsIdentity},
};
pub use state::{Gateway, GatewayConfig};
