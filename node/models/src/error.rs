//! Errors of model files, with messages that say what to do.

use std::{io, path::PathBuf};

/// Why a model is not available.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A catalogue, a package index, a hub or a file is not usable.
    #[error("{0}")]
    Unusable(String),
    /// The catalogue has no such model.
    #[error("no model named {name} in the catalogue; `models list` shows what there is")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The licence must be accepted first.
    #[error(
        "{name} comes under the {licence}, which must be accepted first: `models pull {name}` shows them and asks, \
         `--accept-licence` accepts them"
    )]
    TermsNotAccepted {
        /// The model.
        name: String,
        /// Its licence.
        licence: String,
    },
    /// The name is invalid or taken.
    #[error("{name} cannot be the name of a model: {reason}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The model folder is not usable.
    #[error("cannot write or read {path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
