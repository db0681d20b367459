//! Wire objects, codec, chain verification and error codes of Baton.

pub mod ids;
pub mod store;
