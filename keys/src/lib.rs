//! Identities, the session key schedule, sealing and key files of Baton.
//!
//! This crate owns every cipher, signature and secret of the project; no other crate touches one. It is pure
//! except for key files: no network, no async runtime. Its callers are `baton-proto`, which builds wire
//! objects from it, and the programs, for their identities.

pub mod account;
pub mod contexts;
pub mod exchange;
pub mod files;
pub mod ids;
pub mod master;
pub mod owner;
pub mod seal;
pub mod secret;
pub mod session;
pub mod sign;
pub mod stack;
pub mod words;

pub use seal::OpenError;
pub use sign::{BadSignature, SIGNATURE_LEN, SecretSigningKey};
