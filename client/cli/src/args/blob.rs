//! The arguments of `baton blob`.

use std::{ffi::OsString, path::PathBuf};

use baton_proto::ids::BlobId;
use baton_walrus_client::QuiltPatchId;
use clap::{Args, Subcommand};

/// Prefixes that may precede an ID.
const ID_PREFIX: &str = "id:";

/// The command line with a prefix before every ID that begins with a dash. One ID in 64 does, and clap would
/// take it for flags.
pub(crate) fn with_prefixed_ids(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with('-') && is_id(text) => format!("{ID_PREFIX}{text}").into(),
        _ => argument,
    })
}

fn is_id(text: &str) -> bool {
    text.parse::<BlobId>().is_ok() || text.parse::<QuiltPatchId>().is_ok()
}

/// Removes the prefix of an ID.
pub(crate) fn without_prefix(text: &str) -> &str {
    text.strip_prefix(ID_PREFIX).unwrap_or(text)
}

/// The commands for blobs.
#[derive(Debug, Subcommand)]
pub(crate) enum BlobCommand {
    /// Store a file and print its blob ID.
    ///
    /// The client computes the ID and compares it with the publisher's. If the answer to a PUT is lost, the
    /// client asks the aggregators before it sends again: the PUT may have been paid for.
    Put {
        /// File to store; `-` is standard input.
        file: PathBuf,
        #[command(flatten)]
        storing: StoreArguments,
    },
    /// Fetch a blob, verified against its ID.
    Get {
        /// Blob ID, or with --object the ID of a blob object (0x...).
        id: String,
        /// Output file; `-` is standard output [default: standard output].
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Range of bytes, both ends included, such as 0-99. The whole blob is read to check them, unless
        /// --unverified.
        #[arg(long, value_name = "FIRST-LAST")]
        range: Option<String>,
        /// Treat ID as the ID of a blob object.
        #[arg(long)]
        object: bool,
        /// BLAKE3 hash (hex) to check instead of the ID.
        #[arg(long, value_name = "HEX", conflicts_with_all = ["sha256", "unverified"])]
        blake3: Option<String>,
        /// SHA-256 hash (hex) to check instead of the ID.
        #[arg(long, value_name = "HEX", conflicts_with = "unverified")]
        sha256: Option<String>,
        /// Trust the aggregator.
        #[arg(long)]
        unverified: bool,
        /// Maximum size of the blob, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        limit: u64,
    },
    /// Compute the blob IDs of files, without network access.
    Id {
        /// Files; `-` is standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Verify a blob at every aggregator against its ID, or a file against the ID.
    Verify {
        /// Blob ID.
        id: String,
        /// File to check instead of the aggregators.
        file: Option<PathBuf>,
        /// Maximum size of the blob, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        limit: u64,
    },
    /// Show a blob's size, its size in the store, and its expiry; without an ID, all blobs stored with this
    /// command.
    #[command(alias = "stat")]
    Show {
        /// Blob IDs.
        ids: Vec<String>,
    },
    /// Renew blobs stored with this command that expire soon.
    Renew {
        /// Blob IDs [default: all].
        ids: Vec<String>,
        /// Also renew blobs that may expire within this many days [default: less than one epoch].
        #[arg(long, value_name = "NUMBER")]
        within_days: Option<u32>,
        /// Epochs, 1 to 53, to store the blob from now on.
        #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=53))]
        epochs: u32,
        /// Pay again if an answer was lost and the last renewal may have been paid.
        #[arg(long)]
        retry_uncertain: bool,
    },
    /// Store many small files in one blob, at a cost hundreds of times lower.
    Quilt {
        /// The quilt command.
        #[command(subcommand)]
        command: QuiltCommand,
    },
}

/// Options for storing.
#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    /// Epochs, 1 to 53, to store the blob.
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=53))]
    pub epochs: u32,
    /// Prevent deletion before expiry, even by the publisher.
    #[arg(long)]
    pub permanent: bool,
    /// Sui address (0x...) that receives the blob object, instead of the publisher.
    #[arg(long, value_name = "ADDRESS")]
    pub send_to: Option<String>,
}

/// The commands for quilts.
#[derive(Debug, Subcommand)]
pub(crate) enum QuiltCommand {
    /// Store files as one quilt, and print its ID and the patch IDs.
    Put {
        /// Files; the name in the quilt is the file name, or NAME in NAME=FILE.
        #[arg(required = true)]
        files: Vec<String>,
        /// Tag of a file, as NAME:KEY=VALUE; may be repeated.
        #[arg(long, value_name = "NAME:KEY=VALUE")]
        tag: Vec<String>,
        #[command(flatten)]
        storing: StoreArguments,
    },
    /// Fetch and verify one file of a quilt, by quilt ID and file name, or by patch ID.
    Get {
        /// Quilt ID or patch ID.
        id: String,
        /// File name in the quilt; omit it with a patch ID.
        name: Option<String>,
        /// Output file; `-` is standard output [default: standard output].
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Trust the aggregator, and read only this file instead of the whole quilt.
        #[arg(long)]
        unverified: bool,
    },
    /// List a quilt's files with their patch IDs and tags.
    List {
        /// Quilt ID.
        id: String,
        /// Trust the aggregator's list, instead of reading the whole quilt.
        #[arg(long)]
        unverified: bool,
    },
    /// Compute the IDs of files as a quilt, without network access.
    Id {
        /// Files; the name in the quilt is the file name, or NAME in NAME=FILE.
        #[arg(required = true)]
        files: Vec<String>,
        /// Tag of a file, as NAME:KEY=VALUE; may be repeated.
        #[arg(long, value_name = "NAME:KEY=VALUE")]
        tag: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn an_id_that_begins_with_a_dash_is_no_flag() {
        for first in ["-BiY", "-oAA", "-hAA", "--AA", "AAAA"] {
            let id = format!("{first}{}", "A".repeat(39));
            let words = ["baton", "blob", "get", "-o", "file", &id, "--limit", "7"];
            let parsed = Arguments::parse_from(with_prefixed_ids(words.into_iter().map(OsString::from)));
            let Some(Command::Blob { command: BlobCommand::Get { id: found, out, limit, .. } }) =
                parsed.command
            else {
                panic!("not blob get");
            };
            assert_eq!(
                (without_prefix(&found), out, limit),
                (id.as_str(), Some("file".into()), 7),
                "{first}"
            );
        }
    }

    #[test]
    fn flags_stay_flags() {
        let words = ["baton", "-o", "--blake3", "-", "--", "-x"].map(OsString::from);
        assert!(with_prefixed_ids(words.clone().into_iter()).eq(words));
    }
}
