//! Wire objects, codec, chain verification and error codes of Baton.
//!
//! Everything here is pure: bytes in, objects or a named error out. `docs/PROTOCOL.md` describes every layout
//! for other languages. Callers are the node, the client, the relayer and the stores; none of them encodes
//! anything itself.

pub mod ack;
pub mod audit;
pub mod chain;
pub mod codec;
pub mod commit;
pub mod embed;
pub mod error;
pub mod export;
pub mod head;
pub mod ids;
pub mod limits;
pub mod link;
pub mod memory;
pub mod node_record;
pub mod quota;
pub mod receipt;
pub mod record;
pub mod segment;
pub mod signed;
pub mod store;
pub mod tools;
pub mod turn;
pub mod wire;

pub use error::{ErrorCode, Retry};
pub use signed::{Signable, Signed, SignedBytes};
