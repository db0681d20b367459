//! The lifetimes of stored blobs, and their renewal.
//!
//! Walrus keeps a blob for the paid epochs. HTTP neither reports nor extends a lifetime. So a client that
//! stores blobs must record the answers and store the same bytes again.
//!
//! The [`Ledger`] is that record. It belongs to the client that stores and pays. It is pure, bounded and
//! serializable, lists [due blobs](Ledger::due) and makes a [report](Ledger::report).
//! [`HttpStore::renew`](crate::HttpStore::renew) renews blobs and notes each result in the ledger. No entry
//! ever leaves the ledger by itself.

mod clock;
mod ledger;
mod renew;
mod report;

pub use clock::{EpochBounds, EpochClock, TimeBounds};
pub use ledger::{Ledger, LedgerEntry, LedgerError, Trouble};
pub use renew::{Checkpoint, RenewOptions, Renewal, RenewalEnded};
pub use report::{BlobLine, BlobState, LifetimeReport};
