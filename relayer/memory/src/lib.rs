//! Memory across conversations: one model, one service, sealed storage, exact recall.
//!
//! A relayer opens a [`Memory`] on a [`Vault`](vault::Vault) and an embedder. Then it remembers and recalls
//! for each owner:
//!
//! ```
//! use std::sync::Arc;
//!
//! use baton_memory::{
//!     Memory, Parts,
//!     api::{Place, RecallRequest, RememberRequest},
//!     ids::OwnerId,
//!     storage::embedded::{EmbeddedConfig, EmbeddedStorage},
//!     vault::Vault,
//! };
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let master = baton_keys::master::MasterKey::from_bytes([7; 32]);
//! # let embedder = Arc::new(baton_models::embed::Hashing);
//! let storage = Arc::new(EmbeddedStorage::open(&EmbeddedConfig::new(folder.join("memory")))?);
//! let vault = Vault::new(storage, &folder.join("keys"), master).await?;
//! let memory = Memory::open(Parts::new(vault, embedder, Arc::new(|| 1_772_323_200_000_u64))).await?;
//!
//! let owner = OwnerId([1; 32]);
//! let fact = RememberRequest::new(Place::default(), "The anchor weighs forty kilograms.");
//! memory.remember(owner, vec![fact]).await?;
//!
//! let query = "How much does the anchor weigh?".into();
//! let request = RecallRequest { query, limit: 6, ..RecallRequest::default() };
//! let recall = memory.recall(owner, request).await;
//! assert_eq!(&*recall.hits[0].view.text, "The anchor weighs forty kilograms.");
//! # Ok(())
//! # }
//! ```

pub mod api;
pub mod backup;
pub mod content;
mod dates;
mod events;
pub mod extraction;
pub mod ids;
mod jobs;
pub mod keyring;
pub mod limits;
mod locks;
pub mod model;
mod owner;
mod retry;
mod scope;
pub mod search;
mod service;
mod state;
pub mod storage;
#[cfg(test)]
mod testing;
pub mod vault;

pub use service::{Clock, Memory, Parts, RecordChanges};
