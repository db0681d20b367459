//! Totals since the start, for the status page's plot: the difference of two readings covers the time between
//! them.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{Metrics, source_name};
use crate::observer::BlobSource;

/// Every source, in the order of the search.
pub(super) const SOURCES: [BlobSource; 6] = [
    BlobSource::Inline,
    BlobSource::Journal,
    BlobSource::Cache,
    BlobSource::Store,
    BlobSource::Author,
    BlobSource::Peer,
];
/// Possible results of a source.
pub(super) const CONTENTS: [&str; 4] = ["right", "wrong", "missing", "failed"];

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Tokens generated, also in turns without a commit so far.
    pub(crate) tokens: u64,
    /// First tokens of committed turns.
    pub(crate) first_tokens: u64,
    /// Sum of the milliseconds from admission to these first tokens.
    pub(crate) first_token_ms: u64,
}

/// Results of one source of blobs, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceCounts {
    /// `inline`, `journal`, `cache`, `store`, `author` or `peer`.
    pub(crate) source: String,
    /// Blobs with the right bytes.
    pub(crate) right: u64,
    /// Blobs with wrong bytes.
    pub(crate) wrong: u64,
    /// Requests for a blob that it did not have.
    pub(crate) missing: u64,
    /// Failed reads, and requests without an answer.
    pub(crate) failed: u64,
}

impl Metrics {
    /// Figures for the plot.
    #[must_use]
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            tokens: self.tokens_made.get(),
            first_tokens: self.first_tokens.load(Ordering::Relaxed),
            first_token_ms: self.first_token_ms.load(Ordering::Relaxed),
        }
    }

    /// Results of each source of blobs, in the order of the search.
    #[must_use]
    pub(crate) fn sources(&self) -> Vec<SourceCounts> {
        let row = |source| {
            let name = source_name(source);
            let [right, wrong, missing, failed] = CONTENTS.map(|content| {
                self.store.blobs.get_or_create(&[("source", name), ("content", content)]).get()
            });
            SourceCounts { source: name.to_owned(), right, wrong, missing, failed }
        };
        SOURCES.map(row).into()
    }
}
