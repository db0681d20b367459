//! How long stored blobs are kept, and storing them again before that is over.
//!
//! Walrus keeps a blob until the epochs that were paid for are over. HTTP neither tells when a blob ends nor
//! lengthens its time: whoever stores blobs must write down what the answers said and store the same bytes again.
//! The [`Ledger`] is that book: it belongs to the one who stores (nobody else may pay), is pure, bounded and
//! serializable, and says what is [due](Ledger::due) and [what ends when](Ledger::report).
//! [`HttpStore::renew`](crate::HttpStore::renew) carries renewals out and notes in the book how each one ended; no
//! entry ever leaves the book by itself.

mod clock;
mod ledger;
mod renew;
mod report;

pub use clock::{EpochBounds, EpochClock, TimeBounds};
pub use ledger::{KeptBlob, Ledger, LedgerError, Trouble};
pub use renew::{Checkpoint, RenewOptions, Renewal, RenewalEnded};
pub use report::{BlobLine, BlobState, LifetimeReport};
