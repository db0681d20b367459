//! Memory across conversations: one model, one service, sealed storage, exact recall.

pub mod api;
pub mod content;
mod dates;
pub mod eval;
mod events;
pub mod extraction;
pub mod ids;
mod jobs;
pub mod keyring;
pub mod limits;
pub mod model;
mod owner;
mod retry;
pub mod rotation;
mod scope;
pub mod search;
mod service;
mod state;
pub mod storage;
pub mod vault;

pub use jobs::ConsolidationReport;
pub use service::{Clock, Counters, Memory, Parts, RecordChanges};
pub use storage::embedded::catches_panics;
