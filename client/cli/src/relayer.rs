//! Requests to a relayer's HTTP endpoint, signed by the account key of this machine.

pub(crate) mod authority;
pub(crate) mod client;
pub(crate) mod items;
pub(crate) mod memory;
