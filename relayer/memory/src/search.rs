//! Search of items: the stored features of a text, the scan over them, and the ranking. Pure: no clock, no
//! storage, no keys but the one that hashes terms.
//!
//! One scan and one ranking serve both storages. With the embedded one, an [`Index`] has all items of an opened owner. A
//! database compares [rows](RowKey) and gives the statistics; then an index has the best of them. The caller decides
//! on visibility **before** the scan, so statistics and limits know nothing of hidden items.

mod background;
mod candidates;
mod threshold;

mod features;
mod index;
mod question;
mod rank;
mod record;
mod rotation;
mod rows;
mod stop_words;
mod terms;
mod vector;

pub use background::Background;
pub use candidates::{CandidateRow, Candidates};

pub use features::{ASSISTANT_SPEAKER, Features, USER_SPEAKER, document_features, features, indexed_text};
pub use index::Index;
pub use question::Question;
pub use rank::{DEFAULT_THRESHOLD, Documents, RankedItem, Weights, rank};
pub(crate) use record::FeatureRecord;
pub use rows::RowKey;
pub(crate) use rows::{RowQuestion, embedder_hash};
pub use terms::TermHasher;
pub use vector::QuantisedVector;
