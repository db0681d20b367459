//! Search of items: the stored features of a text, the scan over them, and the ranking. Pure: no clock, no
//! storage, no keys but the one that hashes terms.
//!
//! One ranking serves both stores. The embedded store keeps an [`Index`] of an opened owner in memory and
//! scans it. A database does the scan itself and answers with [`Scan`](crate::storage::Scan), which
//! [`candidates_from_scan`] reads. [`rank()`] ranks the candidates of both. The caller decides on visibility
//! **before** the scan, so statistics and limits know nothing of hidden items.

mod background;
mod candidates;
mod threshold;

mod features;
mod index;
mod question;
mod rank;
mod stop_words;
mod table;
mod terms;
mod vector;

pub use background::Background;
pub use candidates::{CandidateRow, Candidates, candidates_from_scan};

pub use features::{ASSISTANT_SPEAKER, Features, USER_SPEAKER, document_features, features, indexed_text};
pub use index::Index;
pub use question::Question;
pub use rank::{DEFAULT_THRESHOLD, Documents, RankedItem, Weights, rank, rank_weighted};
pub use terms::TermHasher;
pub use vector::QuantisedVector;
