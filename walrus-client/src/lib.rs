//! Walrus blob IDs, quilts, and an HTTP client for publishers and aggregators.
//!
//! The crate owns:
//! - blob IDs ([`mod@blob_id`]) and quilts ([`quilt`]),
//! - the HTTP client of a store ([`http_store`]), with its tokens ([`jwt`], [`token_file`]),
//! - the JSON of Walrus's HTTP interface ([`wire`]), which the embedded store (`baton-walrus-store`) writes.
//!
//! The feature `http` (on by default) has all but blob IDs, quilts and the JSON.
//!
//! Node, client and testnet call it through the traits of `baton_proto::store`. It knows nothing of sessions
//! or libp2p. Every blob is opaque bytes: its content never reaches a log, an error or a metric.
//!
//! A client stores a blob in an embedded store, and reads it back:
//!
//! ```
//! use baton_proto::store::PutOptions;
//! use baton_walrus_client::{
//!     HttpStore, ShardCount, blob_id,
//!     http_store::Verification,
//! };
//! use baton_walrus_store::{EmbeddedConfig, EmbeddedStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let shards = ShardCount::TESTBED;
//! let folder = tempfile::tempdir()?;
//! let config = EmbeddedConfig { shards, ..EmbeddedConfig::new(folder.path()) };
//! let store = EmbeddedStore::open(config, |_| Err("this store has no heads".to_owned()))?;
//! let listener = EmbeddedStore::bind("127.0.0.1:0".parse()?).await?;
//! let url = format!("http://{}", listener.local_addr()?);
//! tokio::spawn(async move { store.serve(listener, std::future::pending()).await });
//!
//! let client = HttpStore::builder(&url, &url, shards).build()?;
//! let stored = client.store(&b"sealed bytes"[..], &PutOptions::default()).await?;
//! assert_eq!(stored.blob_id, blob_id(b"sealed bytes", shards)?);
//! assert_eq!(client.read(stored.blob_id, 1024, Verification::BlobId).await?, b"sealed bytes");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```

// Bytes of others come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

pub mod blob_id;
#[cfg(feature = "http")]
pub mod http_client;
#[cfg(feature = "http")]
pub mod http_store;
#[cfg(feature = "http")]
pub mod jwt;
pub mod quilt;
#[cfg(feature = "http")]
pub mod token_file;
pub mod wire;

pub use blob_id::{
    BlobIdError, BlobSource, BlobSourceError, ShardCount, ShardCountError, blob_id, blob_id_of,
    encoded_length,
};
#[cfg(feature = "http")]
pub use http_store::{
    HttpStore, HttpStoreBuilder, HttpStoreConfigError, PutPermission, SHARDS_HEADER, SHARDS_WAIT,
    differing_shards, http_date,
};
#[cfg(feature = "http")]
pub use jwt::{PublisherToken, TokenError};
pub use quilt::{Quilt, QuiltError, QuiltIndex, QuiltPatch, QuiltPatchId};
#[cfg(feature = "http")]
pub use token_file::{TokenFile, TokenFileError};

/// Largest encoded head record that is sent, stored or read, in bytes. A head record has a fixed layout well
/// below this. The bound limits how much an unknown peer can make a store hold under one key.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;
