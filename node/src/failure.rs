//! Failures of the program's commands, with their exit codes.

use std::any::TypeId;

use baton_keys::files::KeyFileError;

use crate::{config::ConfigError, identity::IdentityError, journal::JournalError};

/// Why the process ends, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// A failure without a code of its own; for `status`: the node is not ready.
    Failure = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The node cannot listen on an address.
    Address = 3,
    /// The data directory cannot be used.
    Storage = 4,
    /// The model cannot be fetched or loaded.
    Model = 5,
    /// `replay`: the model gives a different answer.
    Different = 6,
    /// `replay`: the turn cannot be recomputed.
    NotReplayable = 7,
}

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The event and the fix.
    pub(crate) error: anyhow::Error,
}

impl Failure {
    /// A failure with its cause.
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    /// A failure from a text.
    #[must_use]
    pub(crate) fn text(exit: Exit, text: impl std::fmt::Display) -> Self {
        Self { exit, error: anyhow::anyhow!("{text}") }
    }
}

impl std::fmt::Display for Failure {
    /// The failure and its causes in one line. Omits causes that the text already contains.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !said.contains(&cause) {
                said.push_str(if said.is_empty() { "" } else { ": " });
                said.push_str(&cause);
            }
        }
        f.write_str(&said)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    /// The exit code follows from the error's type. An error that means several codes has no place here.
    fn from(error: E) -> Self {
        let is_storage =
            [TypeId::of::<KeyFileError>(), TypeId::of::<IdentityError>(), TypeId::of::<JournalError>()];
        let exit = match TypeId::of::<E>() {
            config if config == TypeId::of::<ConfigError>() => Exit::Usage,
            other if is_storage.contains(&other) => Exit::Storage,
            _ => Exit::Failure,
        };
        Self::new(exit, error)
    }
}
