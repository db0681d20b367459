//! The state of a session's head indexes, as the last look found it.

use baton_proto::ErrorCode;

/// The state of an index, compared with the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexStatus {
    /// Its name.
    pub name: String,
    /// Its answer.
    pub shows: IndexAnswer,
}

/// An index's answer about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexAnswer {
    /// The newest record of all indexes.
    Newest {
        /// Its sequence.
        sequence: u64,
    },
    /// An older record than another index has: it withholds the newest, lost it, or never got it.
    Behind {
        /// Its sequence.
        sequence: u64,
    },
    /// No record.
    Nothing,
    /// Bytes that are no record of this session.
    Wrong {
        /// The reason.
        code: ErrorCode,
    },
    /// No answer, or none in time.
    Unavailable {
        /// The reason.
        reason: String,
    },
}

impl IndexAnswer {
    /// Whether it answered with a record of the session, or with none.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Newest { .. } | Self::Behind { .. } | Self::Nothing)
    }
}

impl std::fmt::Display for IndexAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Newest { .. } => f.write_str("has the newest record"),
            Self::Behind { .. } => f.write_str("behind, or withholding: it shows an older record"),
            Self::Nothing => f.write_str("has no record"),
            Self::Wrong { code } => write!(f, "shows what is no record of this session: {code}"),
            Self::Unavailable { reason } => write!(f, "unavailable: {reason}"),
        }
    }
}
