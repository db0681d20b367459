//! The caller of a request, and its rights.

use std::sync::Arc;

use super::NamedKey;

/// The caller of a request.
#[derive(Debug, Clone, Default)]
pub(crate) enum Caller {
    /// The home's owner, who sees every session and has no quota.
    #[default]
    Owner,
    /// A program with a key that has a name.
    Key(Arc<NamedKey>),
}

impl Caller {
    /// The project whose sessions it sees; none for all.
    pub(crate) fn project(&self) -> Option<&str> {
        match self {
            Self::Owner => None,
            Self::Key(key) => Some(&key.project),
        }
    }

    /// Whether it may use memory, where the endpoint has any.
    pub(crate) fn may_use_memory(&self) -> bool {
        match self {
            Self::Owner => true,
            Self::Key(key) => key.memory,
        }
    }
}
