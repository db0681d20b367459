//! A session beside its other copies: head indexes, other devices, the store, exports and listings.

pub(crate) mod conversation;
pub(crate) mod equivocations;
pub(crate) mod head;
pub(crate) mod receipts;
pub(crate) mod reconcile;
pub(crate) mod search;
pub(crate) mod sessions;
pub mod transfer;
pub(crate) mod verify;
