//! Identities, the session key schedule, sealing and key files of Baton.
//!
//! This crate owns every cipher, signature and secret of the project; no other crate touches one. It is pure
//! except for key files: no network, no async runtime. Its callers are `baton-proto`, which builds wire
//! objects from it, and the programs, for their identities.
//!
//! A session's root gives all of its keys, and 24 words restore it. A record opens under its own identity
//! alone:
//!
//! ```
//! use baton_keys::{
//!     SecretSigningKey,
//!     session::{RecordIdentity, SessionRoot},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = SessionRoot::generate();
//! let identity = RecordIdentity {
//!     session_id: root.session_id(),
//!     segment: 0,
//!     seq: 0,
//!     turn_id: root.draw_turn_id(&[7; 16]),
//!     attempt: 0,
//!     author: SecretSigningKey::generate().node_id(),
//! };
//! let sealed = root.record_key(&identity).seal(&identity, b"the text of a turn");
//!
//! let restored = SessionRoot::from_words(&root.to_words())?;
//! let opened = restored.record_key(&identity).open(&identity, &sealed)?;
//! assert_eq!(opened.as_slice(), b"the text of a turn");
//!
//! let other = RecordIdentity { attempt: 1, ..identity };
//! assert!(restored.record_key(&other).open(&other, &sealed).is_err());
//! # Ok(())
//! # }
//! ```

// Bytes of others come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

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
pub mod token;
pub mod words;

pub use seal::OpenError;
pub use sign::{BadSignature, SIGNATURE_LEN, SecretSigningKey};
