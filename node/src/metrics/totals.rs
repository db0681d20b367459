//! Figures since the start, as the status page plots them: differences of two readings are what happened between.

use serde::{Deserialize, Serialize};

use super::{Metrics, source_name};
use crate::observer::BlobSource;

/// Every source, in the order in which they are asked.
pub(super) const SOURCES: [BlobSource; 6] = [
    BlobSource::Inline,
    BlobSource::Journal,
    BlobSource::Cache,
    BlobSource::Store,
    BlobSource::Author,
    BlobSource::Peer,
];
/// What a source may have had.
pub(super) const CONTENTS: [&str; 4] = ["right", "wrong", "missing", "failed"];

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens made, also of turns that are not committed (yet).
    pub tokens: u64,
    /// First tokens of committed turns.
    pub first_tokens: u64,
    /// Milliseconds from admission to those, all together.
    pub first_token_ms: u64,
}

/// What one source of blobs had, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCounts {
    /// `inline`, `journal`, `cache`, `store`, `author` or `peer`.
    pub source: String,
    /// Blobs with the right bytes.
    pub right: u64,
    /// Blobs with others.
    pub wrong: u64,
    /// Times that it had none.
    pub missing: u64,
    /// Times that it could not be read or gave no answer.
    pub failed: u64,
}

impl Metrics {
    /// Figures for the plot.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            tokens: self.tokens_made.get(),
            first_tokens: self.first_tokens.get(),
            first_token_ms: self.first_token_ms.get(),
        }
    }

    /// What each source of blobs had, in the order in which they are asked.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceCounts> {
        let row = |source| {
            let name = source_name(source);
            let [right, wrong, missing, failed] = CONTENTS
                .map(|content| self.blobs.get_or_create(&[("source", name), ("content", content)]).get());
            SourceCounts { source: name.to_owned(), right, wrong, missing, failed }
        };
        SOURCES.map(row).into()
    }
}
