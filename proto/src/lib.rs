//! Wire objects, codec, chain verification and error codes of Baton.
//!
//! Everything here is pure: bytes in, objects or a named error out. `docs/PROTOCOL.md` describes every layout
//! for other languages. Callers are the node, the client, the relayer and the stores; none of them encodes
//! anything itself.
//!
//! A receiver verifies a signed object before it uses it, and refuses every change:
//!
//! ```
//! use baton_keys::{SecretSigningKey, session::SessionRoot};
//! use baton_proto::{ErrorCode, SignedObject, limits::VERSION, note::{TurnNote, TurnNoteKind}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = SessionRoot::generate();
//! let note = TurnNote {
//!     version: VERSION,
//!     session_id: root.session_id(),
//!     session_key: root.signing_key().public_key(),
//!     seq: 3,
//!     turn_id: root.draw_turn_id(&[7; 16]),
//!     attempt: 0,
//!     node: SecretSigningKey::generate().node_id(),
//!     time_ms: 1_800_000_000_000,
//!     kind: TurnNoteKind::Status,
//! };
//! let signed = SignedObject::sign(note, &root.signing_key());
//!
//! let received = SignedObject::<TurnNote>::verify_encoded(&signed.encode())?;
//! assert_eq!(received.turn_id, signed.turn_id);
//!
//! let mut changed = signed.bytes().clone();
//! changed.signature.0[0] ^= 1;
//! assert_eq!(SignedObject::<TurnNote>::verify(changed), Err(ErrorCode::BadSignature));
//! # Ok(())
//! # }
//! ```

// Bytes of others come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

pub mod chain;
pub mod check;
pub mod codec;
pub mod commit;
pub mod contradiction;
pub mod embed;
pub mod error;
pub mod export;
pub mod head;
pub mod ids;
pub mod limits;
pub mod link;
pub mod memory;
pub mod node_record;
pub mod note;
pub mod receipt;
pub mod record;
pub mod right;
pub mod segment;
pub mod signed;
pub mod store;
pub mod text;
pub mod tools;
pub mod turn;
pub mod wire;

pub use error::{ErrorCode, Retry};
pub use signed::{Signable, SignedBytes, SignedObject};
