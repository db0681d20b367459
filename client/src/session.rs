//! One session on this device: its journal on the disk, its state, and their lifetime in the store.
//!
//! Knows nothing of the network.

pub(crate) mod fork;
pub(crate) mod index_view;
pub(crate) mod info;
pub(crate) mod journal;
pub(crate) mod lifetime;
pub(crate) mod open_session;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod title;
